"""A temporary service that a command starts for itself. Real ones are tested in
`tests/e2e/test_emulate.py` and `tests/e2e/test_run_local.py`."""

import contextlib
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from unittest.mock import Mock

import click
import pytest

from tests.commands import running
from tests.contract.cli.fake_service import FakeService
from trainshed.cli import emulate, processes
from trainshed.cli.connection import Endpoint, local


def mock_services(place: Path, monkeypatch: pytest.MonkeyPatch, *services: object) -> Mock:
    """Use these processes in place of started services, and create temporary directories in `place`."""
    start = Mock(side_effect=services)
    monkeypatch.setattr(processes, "start", start)
    monkeypatch.setattr(processes, "local", Mock())
    monkeypatch.setattr(processes, "with_defaults", Mock())
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return start


def test_jobs_of_a_killed_temporary_service_are_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards the directory can be deleted, and the command reports the crash."""
    waits = (sys.executable, "-c", "input()")
    with running(*waits, stdin=-1) as first, running(*waits, stdin=-1) as second:
        start = mock_services(tmp_path, monkeypatch, first, second)
        with (
            pytest.raises(click.ClickException, match=r"killed by signal 9.* were cancelled"),
            processes.own_service(None, "--emulate"),
        ):
            assert len([*tmp_path.iterdir()]) == 1
            first.kill()
        assert second.wait(60) == -15
    (words, place), (again, same) = (call.args for call in start.call_args_list)
    assert words == (*again, "--emulate") and place == same
    assert "--stop-jobs-on-exit" in again and str(place) in again
    assert list(tmp_path.iterdir()) == []


def test_temporary_service_preserves_the_jobs_exit_status_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/program#local-runs: `trainshed run --local` exits with the status of its job."""
    # Block the signal before the program reports its start: it cannot arrive between a check and the wait.
    ends = "import signal; signal.pthread_sigmask(0, [15]); print(); signal.sigwait([15])"
    with running(sys.executable, "-uc", ends, stdout=-1) as service:
        assert service.stdout is not None and service.stdout.readline()
        mock_services(tmp_path, monkeypatch, service)
        with pytest.raises(SystemExit, match=r"^1$"), processes.own_service(None):
            assert len([*tmp_path.iterdir()]) == 1
            raise SystemExit(1)
        assert service.poll() == 0
    assert list(tmp_path.iterdir()) == []


def test_emulate_command_runs_a_program_and_exits_with_its_status(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    @contextlib.contextmanager
    def own_service(data: Path | None, *words: str) -> Generator[Endpoint]:
        assert data is None
        started.extend(words)
        yield local(tmp_path)

    monkeypatch.setattr(emulate, "own_service", own_service)
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text("[]")
    program = "import os, sys; open('seen', 'w').write(os.environ['TRAINSHED_ENDPOINT']); sys.exit(7)"
    words = ("--port", "0", "--plan", "plan.json", "--capture", "sent.jsonl")
    ended = service.cli("emulate", *words, "--", sys.executable, "-c", program)
    assert ended.exit_code == 7, ended.stderr
    assert Path("seen").read_text() == service.address
    assert started[:3] == ["--emulate", "--port", "0"]
    assert started[3::2] == ["--plan", "--capture"]
    # The service has another working directory, so the paths are absolute.
    assert started[4::2] == [str(tmp_path / name) for name in ("plan.json", "sent.jsonl")]
    ended = service.cli("emulate", "--", "sh", "-c", "kill -9 $$")
    assert ended.exit_code == 128 + 9
