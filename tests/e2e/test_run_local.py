"""`trainshed run --local`: a job without a service (spec/program#local-runs)."""

import os
import signal
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.processes import marked, new_mark, wait_until_gone
from tests.e2e.running import SKLEARN, beginning
from tests.isolation import needs_view

SLIM = f"--image={SKLEARN}"


@contextmanager
def _local_run(place: Path, *words: str, **env: str) -> Generator["subprocess.Popen[str]"]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        # What a shell that knows a service has; none of it is for this one.
        known = {
            "TRAINSHED_ENDPOINT": "http://127.0.0.1:9",
            "TRAINSHED_HOST": "0.0.0.0",
            "TRAINSHED_GRPC_PORT": str(taken.getsockname()[1]),
        }
        with beginning(place, "run", "--local", SLIM, *words, **known, **env) as process:
            yield process


def _finished(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Its exit status, and what it printed."""
    printed, output = process.communicate(timeout=300)
    return process.returncode, printed + output


def test_the_jobs_result_is_the_commands_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(
        "import sys; print('got', *sys.argv[1:], flush=True); sys.exit(3)"
    )
    mark = new_mark()
    with _local_run(tmp_path, "task.py", "--", "-a", "b", MARK=mark) as process:
        result, text = _finished(process)
    assert result == 1, text
    assert "got -a b" in text
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "unused").exists()
    assert marked(mark) == []


@needs_view
def test_a_data_directory_of_ones_own_stays_with_the_model(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("import pathlib; pathlib.Path('/gcs/trainshed/m').touch()")
    data = tmp_path / "kept"
    with _local_run(tmp_path, "task.py", f"--data={data}") as process:
        result, text = _finished(process)
    assert result == 0, text
    assert (data / "buckets" / "trainshed" / "m").exists()
    assert f"On disk  {data}" in text and "Page" not in text, "nobody serves the page any more"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_whoever_ends_the_command_ends_its_job_and_its_service(
    tmp_path: Path, number: signal.Signals
) -> None:
    """After SIGKILL the directory alone is left."""
    (tmp_path / "task.py").write_text("import time; print('it is up', flush=True); time.sleep(300)")
    mark = new_mark()
    with _local_run(tmp_path, "task.py", f"--env=JOB={mark}", MARK=mark) as process:
        assert process.stdout is not None and any("it is up" in line for line in process.stdout)
        service_and_program = [pid for pid in marked(mark) if pid != process.pid]
        assert service_and_program
        os.kill(process.pid, number)
        if number != signal.SIGKILL:
            status, text = _finished(process)
            assert status == 130, text
            assert "Cancelling the job" in text
            assert list((tmp_path / "tmp").iterdir()) == []
        wait_until_gone(service_and_program, seconds=60)
