"""`trainshed down`: jobs are over before the service is asked to end."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest

from tests.commands import running
from tests.contract.cli.conftest import Invoke, write_service_file
from tests.contract.cli.fake_service import FakeService, job
from trainshed.cli import processes
from trainshed.core.held import Leftover, text

JOBS = "/trainshed/v1/jobs"
EMPTY: dict[str, Any] = {"jobs": [], "nextPageToken": ""}


@pytest.fixture
def process(service: FakeService, tmp_path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A process that stands for the service's, and that a signal ends."""
    with running(sys.executable, "-c", "input()", stdin=subprocess.PIPE) as waits:
        write_service_file(tmp_path, service.address, pid=waits.pid)
        yield waits


def test_it_cancels_waits_stops(service: FakeService, process: "subprocess.Popen[bytes]") -> None:
    jobs = [job(uid=str(number)) for number in range(1, 26)]
    seen = (jobs, jobs[-1:], list[dict[str, Any]]())
    service.on("GET", JOBS, *({"jobs": live, "nextPageToken": ""} for live in seen))
    for number in range(1, 26):
        service.on("POST", f"{JOBS}/{number}:cancel", {})
    result = service.cli("down")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "Cancelling 1 digits"
    assert (len(lines), lines[-2:]) == (22, ["Cancelling 5 more", "The service has ended."])
    assert process.wait(60) == -15
    requests = [(a.method, a.query.get("state")) for a in service.sent]
    live = "QUEUED,PREPARING,RUNNING,CANCELLING"
    assert requests == [("GET", live), *[("POST", None)] * 25, ("GET", live), ("GET", live)]


def test_a_shell_that_is_pointed_at_another_service_stops_none_by_mistake(
    service: FakeService,
    process: "subprocess.Popen[bytes]",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It cancels all jobs: those of a service that nobody has named are not for it."""
    (tmp_path / ".trainshed").symlink_to(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TRAINSHED_DATA")
    monkeypatch.setenv("TRAINSHED_ENDPOINT", "http://127.0.0.1:9")
    result = service.cli("down")
    assert result.exit_code == 1
    assert "http://127.0.0.1:9" in result.stderr and service.address in result.stderr
    assert process.poll() is None and service.sent == []
    service.on("GET", JOBS, EMPTY)
    monkeypatch.setenv("TRAINSHED_ENDPOINT", f"{service.address}/")
    assert service.cli("down").exit_code == 0


def test_a_service_that_cannot_be_told_is_not_taken_for_none(
    service: FakeService, tmp_path: Path
) -> None:
    (tmp_path / "service.json").write_text("{")
    result = service.cli("down")
    assert (result.exit_code, "service.json cannot be read" in result.stderr) == (1, True)


def test_a_job_that_does_not_end_keeps_the_service(
    service: FakeService, process: "subprocess.Popen[bytes]"
) -> None:
    service.on("GET", JOBS, {"jobs": [job()], "nextPageToken": ""})
    service.on("POST", f"{JOBS}/7:cancel", {})
    result = service.cli("down", "--timeout", "0.1")
    assert result.exit_code == 1
    assert "1 of 1 jobs have not finished" in result.stderr
    assert process.poll() is None


def test_a_temporary_directory_stays_while_a_service_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); input()"
    with running(sys.executable, "-uc", deaf, stdin=-1, stdout=-1) as process:
        assert process.stdout is not None and process.stdout.readline()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr(processes, "_STOP_TIMEOUT", 0.01)
        monkeypatch.setattr(processes, "start", Mock(return_value=process))
        with pytest.raises(click.ClickException, match=f"down --data {tmp_path}"):
            processes.own_service(None).__enter__()
    assert len([*tmp_path.glob("trainshed-run-*")]) == 1


def hold(data: Path, *commands: list[str]) -> Path:
    """A service that has ended could not give back what these commands do."""
    file = data / "engines" / "slurm" / "held.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    left = [
        Leftover(f"hold-{n}", "Slurm is away", tuple(single)) for n, single in enumerate(commands)
    ]
    file.write_text(text(left))
    return file


def test_what_is_still_held_is_told_and_release_gives_back_what_it_can(
    trainshed: Invoke, tmp_path: Path
) -> None:
    file = hold(tmp_path, ["true"], ["sh", "-c", "exit 1"])
    plain = trainshed("down")
    assert plain.exit_code == 1
    assert "2 allocations may still exist" in plain.stderr
    assert "hold-0: Slurm is away\n    true\n" in plain.stderr
    assert "sh -c 'exit 1'" in plain.stderr and "trainshed down --release" in plain.stderr
    tried = trainshed("down", "--release")
    assert tried.exit_code == 1 and tried.stdout == "hold-0 was released.\n"
    assert "1 allocation may still exist" in tried.stderr
    assert "hold-1" in file.read_text() and "hold-0" not in file.read_text()
    hold(tmp_path, ["true"])
    done = trainshed("down", "--release")
    assert done.exit_code == 0 and not file.exists()
