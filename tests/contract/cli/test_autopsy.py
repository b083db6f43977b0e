"""`trainshed jobs autopsy`: what failed replicas left, opened and copied (spec/operations#autopsies)."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import FakeService, job

JOB = "/trainshed/v1/jobs/7"


@pytest.fixture(autouse=True)
def a_failed_job(service: FakeService) -> None:
    service.on("GET", JOB, job(state="FAILED", autopsies=[kept()]))


def kept(**changes: Any) -> dict[str, Any]:
    return {
        "replica": "workerpool1-0",
        "task": "workerpool1-0",
        "attempt": 2,
        "incarnation": 1,
        "keptTime": "2026-11-20T06:00:05.000000Z",
        "expireTime": "2026-11-21T06:00:05.000000Z",
        "bytes": 3_500_000,
        "how": "exit code 3",
        "argv": ["python3", "-m", "trainer", "--note", "a b"],
    } | changes


def archive(*members: tuple[str, str]) -> bytes:
    """Of files with content; what begins with -> is a link."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as made:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            if content.startswith("->"):
                entry.type, entry.linkname = tarfile.SYMTYPE, content[2:]
                made.addfile(entry)
            else:
                entry.size = len(content)
                made.addfile(entry, io.BytesIO(content.encode()))
    return packed.getvalue()


def test_files_are_copied_but_none_leads_out(
    service: FakeService, trainshed: Invoke, tmp_path: Path
) -> None:
    """A program made these files, and may mean harm."""
    content = archive(
        ("work/result", "0.93"), ("../outside", "x"), ("work/link", "->/etc/passwd")
    )  # fmt: skip
    service.on("GET", f"{JOB}/autopsyFiles", content)
    target = tmp_path / "copied" / "here"
    done = trainshed("jobs", "autopsy", "7", "worker 0", "--attempt", "2", "--copy", str(target))
    assert done.exit_code == 0, done.output
    assert (target / "work" / "result").read_text() == "0.93"
    assert not (tmp_path / "copied" / "outside").exists()
    assert not (target / "work" / "link").is_symlink()
    assert "left out: ../outside" in done.stderr
    assert service.sent[-1].query == {"replica": "worker 0", "attempt": "2"}
    again = trainshed("jobs", "autopsy", "7", "--copy", str(target))
    assert again.exit_code == 1
    assert "not empty" in again.output


def test_a_copy_that_broke_off_says_so(
    service: FakeService, trainshed: Invoke, tmp_path: Path
) -> None:
    service.on("GET", f"{JOB}/autopsyFiles", archive(("work/result", "x" * 5000))[:2000])
    done = trainshed("jobs", "autopsy", "7", "--copy", str(tmp_path / "copied"))
    assert done.exit_code == 1
    assert "broke off" in done.output


def test_a_shell_that_cannot_be_had_is_told(service: FakeService, trainshed: Invoke) -> None:
    service.refuse("POST", f"{JOB}:shell", 400, "It is over.")
    for command in ("shell", "autopsy"):
        done = trainshed("jobs", command, "7")
        assert done.exit_code == 1
        assert "It is over." in done.output
    assert json.loads(service.sent[-1].body) == {"replica": "", "autopsy": True}
