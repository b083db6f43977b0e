"""`trainshed down`: all jobs end before the service stops."""

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
    """A process in place of the service's. A signal ends it."""
    with running(sys.executable, "-c", "input()", stdin=subprocess.PIPE) as waits:
        write_service_file(tmp_path, service.address, pid=waits.pid)
        yield waits


def test_down_cancels_jobs_waits_and_stops_the_service(
    service: FakeService, process: "subprocess.Popen[bytes]"
) -> None:
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


def test_down_with_an_endpoint_variable_does_not_stop_the_local_service(
    service: FakeService, process: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command cancels all jobs, so it must not apply to a service that the user has not named."""
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


def test_down_reports_an_unreadable_service_file(service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "service.json").write_text("{")
    result = service.cli("down")
    assert (result.exit_code, "service.json cannot be read" in result.stderr) == (1, True)


def test_down_does_not_stop_the_service_while_a_job_runs(
    service: FakeService, process: "subprocess.Popen[bytes]"
) -> None:
    service.on("GET", JOBS, {"jobs": [job()], "nextPageToken": ""})
    service.on("POST", f"{JOBS}/7:cancel", {})
    result = service.cli("down", "--timeout", "0.1")
    assert result.exit_code == 1
    assert "1 of 1 jobs have not finished" in result.stderr
    assert process.poll() is None


def test_temporary_directory_is_kept_while_its_service_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignores_sigterm = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); input()"
    with running(sys.executable, "-uc", ignores_sigterm, stdin=-1, stdout=-1) as process:
        assert process.stdout is not None and process.stdout.readline()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr(processes, "_STOP_TIMEOUT", 0.01)
        monkeypatch.setattr(processes, "start", Mock(return_value=process))
        with pytest.raises(click.ClickException, match=f"down --data {tmp_path}"):
            processes.own_service(None).__enter__()
    assert len([*tmp_path.glob("trainshed-run-*")]) == 1


def store_allocations(data: Path, *commands: list[str]) -> Path:
    """Store allocations of an ended service that it could not release, one per command."""
    file = data / "engines" / "slurm" / "held.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    left = [Leftover(f"hold-{n}", "Slurm is away", tuple(single)) for n, single in enumerate(commands)]
    file.write_text(text(left))
    return file


def test_down_command_lists_leftover_allocations_and_releases_allocations_on_request(
    trainshed: Invoke, tmp_path: Path
) -> None:
    file = store_allocations(tmp_path, ["true"], ["sh", "-c", "exit 1"])
    plain = trainshed("down")
    assert plain.exit_code == 1
    assert "2 allocations may still exist" in plain.stderr
    assert "hold-0: Slurm is away\n    true\n" in plain.stderr
    assert "sh -c 'exit 1'" in plain.stderr and "trainshed down --release" in plain.stderr
    tried = trainshed("down", "--release")
    assert tried.exit_code == 1 and tried.stdout == "hold-0 was released.\n"
    assert "1 allocation may still exist" in tried.stderr
    assert "hold-1" in file.read_text() and "hold-0" not in file.read_text()
    store_allocations(tmp_path, ["true"])
    done = trainshed("down", "--release")
    assert done.exit_code == 0 and not file.exists()
