"""`trainshed doctor` reports each fault with its cause and its remedy (docs/security.md)."""

import itertools
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.commands import disk_of
from trainshed.core.capacity import Node
from trainshed.engines.findings import Finding, Verdict
from trainshed.engines.port import Capabilities
from trainshed.replica.sandbox import levels
from trainshed.serve.doctor import capability_findings, examine
from trainshed.serve.settings import Settings

STRONG = Capabilities(
    process_namespace=True, stable_hostname=True, isolation="own-user", process_limit="kernel"
)
NODE = Node("local-1", 2.0, 4 << 30)


def test_doctor_finding_requires_a_cause_and_a_remedy() -> None:
    for cause, remedy in (("", "Do so."), ("It is so.", ""), ("", "")):
        with pytest.raises(ValueError, match="a finding of a fault needs"):
            Finding("disk", Verdict.LESS, "is full.", cause, remedy)


def test_every_possible_doctor_finding_has_a_remedy() -> None:
    seen: set[tuple[str, Verdict]] = set()
    for level, memory, pids, has_namespaces in itertools.product(
        levels.LEVELS, ("kernel", "polling"), ("kernel", ""), (True, False)
    ):
        can = replace(
            STRONG,
            isolation=level,
            memory_limit=memory,
            process_limit=pids,
            process_namespace=has_namespaces,
            not_stronger=(("own-user", "the service does not run as root"),),
        )
        for finding in capability_findings(can, NODE, "As root: do so"):
            seen.add((finding.about, finding.verdict))
            if finding.verdict is not Verdict.GOOD:
                assert finding.cause.endswith(".")
                assert "`" in finding.remedy or "root" in finding.remedy
    expected = {"isolation", "memory limit", "process limit", "addresses"}
    assert {about for about, verdict in seen if verdict is Verdict.LESS} == expected


def test_doctor_reports_a_data_path_that_is_not_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(data=tmp_path / "file" / "data", cache=tmp_path)
    finding = next(iter(examine(settings)))
    assert (finding.about, finding.verdict) == ("data directory", Verdict.BAD)
    assert finding.cause == f"{tmp_path / 'file'} is not a directory."
    assert "--data" in finding.remedy


def test_doctor_reports_a_full_disk(tmp_path: Path) -> None:
    """The command must not end with a traceback."""
    with disk_of("nr_inodes=1", tmp_path / "small") as place:
        findings = list(examine(Settings(data=place, cache=tmp_path)))
    assert (findings[0].about, findings[0].verdict) == ("data directory", Verdict.BAD)
    assert (
        findings[0].cause
        == f"{place} is on a disk without space or in an error state (No space left on device)."
    )
    assert "isolation" in [finding.about for finding in findings]


def test_doctor_warns_about_a_data_directory_in_tmp(tmp_path: Path) -> None:
    settings = Settings(data=Path(f"/tmp/trainshed-{os.getpid()}"), cache=tmp_path)
    finding = next(iter(examine(settings)))
    assert (finding.about, finding.verdict) == ("data directory", Verdict.LESS)
    assert finding.cause.startswith("Systems empty /tmp at boot")
