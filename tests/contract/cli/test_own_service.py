"""A service of a command's own; real ones: `tests/e2e/test_emulate.py`, `tests/e2e/test_run_local.py`."""

import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import click
import pytest

from tests.commands import running
from trainshed.cli import processes


def start_in(place: Path, monkeypatch: pytest.MonkeyPatch, *services: object) -> Mock:
    """Have these processes in place of services that are started, and temporary directories in `place`."""
    start = Mock(side_effect=services)
    monkeypatch.setattr(processes, "start", start)
    monkeypatch.setattr(processes, "local", Mock())
    monkeypatch.setattr(processes, "answering", Mock())
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return start


def test_another_service_cancels_the_jobs_of_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then its directory can go, and the command says what happened."""
    waits = (sys.executable, "-c", "input()")
    with running(*waits, stdin=-1) as first, running(*waits, stdin=-1) as second:
        start = start_in(tmp_path, monkeypatch, first, second)
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


def test_what_a_command_ends_with_is_its_status_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/program#local-runs: so a job that failed is told by the status of `trainshed run --local`."""
    ends = "import signal; signal.signal(15, lambda *_: exit()); print(); input()"
    with running(sys.executable, "-uc", ends, stdin=-1, stdout=-1) as service:
        assert service.stdout is not None and service.stdout.readline()
        start_in(tmp_path, monkeypatch, service)
        with pytest.raises(SystemExit, match=r"^1$"), processes.own_service(None):
            assert len([*tmp_path.iterdir()]) == 1
            raise SystemExit(1)
        assert service.poll() == 0
    assert list(tmp_path.iterdir()) == []
