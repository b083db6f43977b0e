"""`trainshed jobs autopsy`: what failed replicas left, opened and copied (spec/operations#autopsies)."""

import contextlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import FakeService, job
from trainshed.cli.jobs import shell

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


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What tar says in a shell there, its status, and then what the shell was asked for."""
    answers: list[Any] = [b"", 0]

    def run(_: object, uid: str, which: dict[str, Any], line: str, *, output: int) -> int:
        answers.append((which, line))
        with contextlib.suppress(BrokenPipeError):
            os.write(output, answers[0])
        return answers[1]

    monkeypatch.setattr(shell, "run_shell", run)
    return answers


def test_files_are_copied_but_none_leads_out(
    packed: list[Any], trainshed: Invoke, tmp_path: Path
) -> None:
    """A program made these files, and may mean harm."""
    packed[0] = archive(("result", "0.93"), ("../outside", "x"), ("link", "->/etc/passwd"))
    packed[1] = 2
    target = tmp_path / "copied" / "here"
    done = trainshed("jobs", "autopsy", "7", "worker 0", "--attempt", "2", "--copy", str(target))
    assert done.exit_code == 0, done.output
    assert (target / "result").read_text() == "0.93"
    assert not (tmp_path / "copied" / "outside").exists()
    assert not (target / "link").is_symlink()
    assert "left out: ../outside" in done.stderr
    assert "left out: what tar cannot read: it ended with status 2" in done.stderr
    which, line = packed[2]
    assert which == {"replica": "worker 0", "autopsy": True, "attempt": 2}
    assert line.startswith("tar -c")
    again = trainshed("jobs", "autopsy", "7", "--copy", str(target))
    assert again.exit_code == 1
    assert "not empty" in again.output


def test_no_chain_of_links_leads_out(packed: list[Any], trainshed: Invoke, tmp_path: Path) -> None:
    """The end of one that is longer than any path is no link for Python before 3.13.4."""
    deep, steps = "d" * 240, "abcdefghijklmnop"
    links = [("/".join((deep,) * depth + (at,)), f"->{deep}") for depth, at in enumerate(steps)]
    file, far = "/".join((deep,) * 16 + ("file",)), "/".join((*steps, "l" * 254))
    out = ((far, "->" + "../" * 16), ("out", f"->{far}/../outside"), ("out/file", ""))
    packed[0] = archive((file, "kept"), *links, *out)
    (tmp_path / "outside").mkdir()
    trainshed("jobs", "autopsy", "7", "--copy", str(tmp_path / "copied"))
    assert not any((tmp_path / "outside").iterdir())
    assert (tmp_path / "copied" / file).read_text() == "kept"


@pytest.mark.parametrize("members", [[("result", "x" * 5000)], [("a", ""), ("a/b", "")]])
def test_a_copy_that_broke_off_says_so(
    members: list[Any], packed: list[Any], trainshed: Invoke, tmp_path: Path
) -> None:
    packed[0] = archive(*members)[:2000]
    done = trainshed("jobs", "autopsy", "7", "--copy", str(tmp_path / "copied"))
    assert done.exit_code == 1
    assert "broke off" in done.output


@pytest.mark.parametrize("size", [0, 17 << 30])
def test_a_copy_without_end_is_broken_off(
    size: int, packed: list[Any], trainshed: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "_MOST_FILES", 3)
    entries = [tarfile.TarInfo(f"file-{number}") for number in range(9)]
    entries[1].size = size
    packed[0] = b"".join(entry.tobuf() for entry in entries)
    done = trainshed("jobs", "autopsy", "7", "--copy", str(tmp_path / "copied"))
    assert "broke off (it is more than 16 GiB or a million files)" in done.output
    assert len(list((tmp_path / "copied").iterdir())) == (1 if size else 3)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_without_end_takes_no_memory(
    kind: bytes, packed: list[Any], trainshed: Invoke, tmp_path: Path
) -> None:
    """Also where a directory, which holds nothing, says that it holds much."""
    directory, header = tarfile.TarInfo("made"), tarfile.TarInfo("header")
    directory.type, directory.size = tarfile.DIRTYPE, 1 << 30
    header.type, header.size = kind, 8 << 20
    packed[0] = directory.tobuf() + header.tobuf() + bytes(header.size)
    done = trainshed("jobs", "autopsy", "7", "--copy", str(tmp_path / "copied"))
    assert "broke off (a header of it is longer than 1 MiB)" in done.output


def test_a_shell_that_cannot_be_had_is_told(service: FakeService) -> None:
    service.refuse("POST", f"{JOB}:shell", 400, "It is over.")
    for command in ("shell", "autopsy"):
        done = service.cli("jobs", command, "7")
        assert done.exit_code == 1
        assert "It is over." in done.output
    assert json.loads(service.sent[-1].body) == {"replica": "", "autopsy": True}
