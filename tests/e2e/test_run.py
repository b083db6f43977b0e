"""`trainshed run` against a real service: the README's shortest way to a job of one's own."""

import json
import os
import signal
from pathlib import Path

from tests.e2e import running
from tests.e2e.running import SKLEARN


def test_a_service_in_the_background_says_what_it_took_over(data: Path, gate: Path) -> None:
    """Killed, and started again: the job ran on, and its timeline says that nobody was there."""

    def trainshed(*words: str) -> str:
        return running.trainshed(*words, data=data).stdout

    program = gate.parent / "wait.sh"
    program.write_text(f"cat {gate}\n")
    assert "Trainshed serves" in trainshed("up", "--detach", "--port", "0")
    try:
        name = trainshed("run", str(program), "--image", SKLEARN, "--detach").strip()
        while (
            json.loads(trainshed("jobs", "describe", name, "--format", "json"))["state"]
            != "RUNNING"
        ):
            pass
        os.kill(json.loads(trainshed("status", "--format", "json"))["pid"], signal.SIGKILL)
        assert "Taken over: 1 job that ran on" in trainshed("up", "--detach", "--port", "0")
        gate.write_text("")
        assert "SUCCEEDED" in trainshed("jobs", "wait", "wait", "--timeout", "60")
        assert "The service was away, for" in trainshed("jobs", "timeline", "@last")
    finally:
        trainshed("down")
