"""`trainshed run --local`: a job without a service (spec/program#local-runs)."""

import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.processes import find_marked, new_mark, wait_until_gone
from tests.e2e.running import SKLEARN, beginning

SLIM = f"--image={SKLEARN}"


@contextmanager
def _local_run(place: Path, *words: str, **env: str) -> Generator["subprocess.Popen[str]"]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        # Variables of a shell with a service, all unused here.
        known = {
            "TRAINSHED_ENDPOINT": "http://127.0.0.1:9",
            "TRAINSHED_HOST": "0.0.0.0",
            "TRAINSHED_GRPC_PORT": str(taken.getsockname()[1]),
        }
        with beginning(place, "run", "--local", SLIM, *words, **known, **env) as process:
            yield process


def test_ending_the_command_run_local_stops_its_job_and_its_service(tmp_path: Path) -> None:
    """SIGTERM ends it. `test_emulate.py` tests SIGKILL, and `test_demo.py` a persistent directory with
    results."""
    (tmp_path / "task.py").write_text("import sys, time; print(*sys.argv[1:], flush=True); time.sleep(300)")
    mark = new_mark()
    words = ("task.py", f"--env=JOB={mark}", "--", "-a", "b")
    with _local_run(tmp_path, *words, MARK=mark) as process:
        assert process.stdout is not None and any("-a b" in line for line in process.stdout)
        processes = find_marked(mark)
        assert len(processes) > 2, "this command, its service and its program"
        process.terminate()
        printed, errors = process.communicate(timeout=300)
        assert process.returncode == 130, printed + errors
        assert "Cancelling the job" in errors
        wait_until_gone(processes, seconds=60)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "unused").exists()
