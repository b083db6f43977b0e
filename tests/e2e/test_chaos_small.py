"""A small chaos run; `./dev chaos` is the large one (tests/chaos)."""

import subprocess
import sys

from tests.e2e.running import ROOT


def test_jobs_end_as_they_should_while_the_service_is_killed() -> None:
    """SPEC §2, §2.1, §5; DESIGN §3.3, §3.7, §3.8. On failure the output says what was wrong and how to run it again."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "tests.chaos", "--jobs", "12", "--kills", "6"),
            *("--seed", "7", "--life", "0.2", "0.6"),
        ],
        cwd=ROOT,
        timeout=180,
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
