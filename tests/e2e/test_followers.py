"""Followers of the command line while the service is killed and started again (spec/logs#durability): no line
is lost or doubled."""

import json
import subprocess
from pathlib import Path

from tests.e2e.running import command, container_job, environment, running, start, submit
from tests.ports import free_port

COUNTS = """
import os, time
for n in range({count}):
    print(n, flush=True)
    while n == {held} and not os.path.exists({gate!r}):
        time.sleep(0.02)
"""
"""Counts; goes on after `held` when there is a file at `gate`."""
GONE = "does not answer any more"


def follower(data: Path, *words: str) -> subprocess.Popen[str]:
    """A command that follows, by the file that the service left."""
    return subprocess.Popen(
        command("jobs", *words, "--format", "json", "--data", str(data)),
        env=environment(data),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(process: subprocess.Popen[str], key: str, value: str) -> list[str]:
    """What it tells under a key, up to one value."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(json.loads(line)[key])
        if lines[-1] == value:
            return lines
    raise AssertionError(f"it ended without {value!r}: {lines}")


def test_followers_outlast_a_killed_service(data: Path, commons: Path) -> None:
    """The first time it comes back at the same port, the second time at another one. Lines that are written
    meanwhile are told as well."""
    port = str(free_port())
    gates = [commons / "first", commons / "second"]
    script = COUNTS.format(count=100, held=49, gate=str(gates[0])) + COUNTS.format(
        count=100, held=49, gate=str(gates[1])
    )
    service = start(data, "--port", port)
    job_id = submit(service, container_job(script, pools=(1, 1)))
    only = ("--replica", "workerpool0-0")
    lines = follower(data, "logs", "-f", job_id, *only)
    views = follower(data, "watch", job_id)
    told = until(lines, "message", "49")
    seen = until(views, "state", "RUNNING")

    service.kill()
    gates[0].touch()
    service = start(data, "--port", port)
    told += until(lines, "message", "99") + until(lines, "message", "49")

    service.kill()
    gates[1].touch()
    with running(data) as service:
        rest, complaints = lines.communicate(timeout=60)
        assert lines.returncode == 0, complaints
        told += [json.loads(line)["message"] for line in rest.splitlines()]
        assert [text for text in told if text.isdigit()] == [str(n) for n in range(100)] * 2
        assert complaints.count(GONE) == 2
        rest, complaints = views.communicate(timeout=60)
        assert views.returncode == 0, complaints
        seen += [json.loads(line)["state"] for line in rest.splitlines()]
        assert seen[-1] == "SUCCEEDED"
        # Of the time between the two kills it may have noticed nothing.
        assert complaints.count(GONE) in (1, 2)
