"""A data disk without a free byte: nobody is killed or started over, the service says why, and all goes on by
itself.

On a file system of its own that the test fills; mounting one takes root.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import marked, new_mark, processor_seconds
from tests.e2e.running import CUSTOM_JOBS, Service, container_job, running, submit, trainshed
from tests.e2e.stories import at, make_pipe, timeline, until
from trainshed.replica.observe import disk

PATIENCE = 60.0
COUNT = 300


class Place:
    """A small file system. `data`: a data directory on it."""

    def __init__(self, root: Path) -> None:
        self.data = root / "data"
        self._filler = root / "filler"

    def fill(self, leave: int = 0) -> None:
        """Leave so many bytes on it."""
        with self._filler.open("ab", buffering=0) as file:
            with contextlib.suppress(OSError):
                while file.write(b"x" * 1000):
                    pass
            file.truncate(file.tell() - leave)

    def make_room(self) -> None:
        self._filler.unlink()


@pytest.fixture
def place() -> Iterator[Place]:
    """Of 24 MB, where programs may look for what is theirs."""
    if os.geteuid() or sys.platform != "linux":
        pytest.skip("only root can mount a small disk: a full one is NOT tested")
    root = Path(tempfile.mkdtemp(prefix="trainshed-small-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=755", "tmpfs", str(root)]
    if subprocess.run(mount, check=False, timeout=PATIENCE).returncode:
        root.rmdir()
        pytest.skip("nothing can be mounted here: a full disk is NOT tested")
    try:
        yield Place(root)
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True, timeout=PATIENCE)
        root.rmdir()


def counting(gate: Path, mark: str, then: str = "") -> str:
    """A program that says "begun", and behind the gate more than a pipe holds."""
    prints = f"for n in range({COUNT}): print(n, 'x' * 5000, flush=True)"
    return f"print('begun', flush=True)\n{at(gate)}\n{prints}\n{then}\n# {mark}"


def until_blocked(mark: str) -> int:
    """Wait until a program waits for somebody to read what it says; returns its process id."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for pid in marked(mark):
            with contextlib.suppress(OSError):
                if "pipe_w" in Path(f"/proc/{pid}/wchan").read_text():
                    return pid
        threading.Event().wait(0.02)
    raise AssertionError("it was never seen to wait for its reader")


def until_refused(service: Service) -> str:
    """Submit jobs until one does not fit any more; what the answer says."""
    for _ in range(200):
        with contextlib.suppress(AssertionError):
            body = container_job("pass")
            failure = service.call("POST", CUSTOM_JOBS, body, expect=503)
            return failure["error"]["message"]
    raise AssertionError("a full disk took 200 jobs")


def numbers(service: Service, job_id: str) -> list[str]:
    words = [line.split()[0] for line in service.lines(job_id, "workerpool0-0")]
    return [word for word in words if word.isdigit()]


def notes(service: Service, job_id: str) -> list[str]:
    noted = [entry["details"].get("note") for entry in timeline(service, job_id)]
    return [name for name in noted if name in (disk.LOG_WAITS, disk.LOG_GOES_ON)]


def test_a_full_disk_kills_no_program_and_passes_by_itself(place: Place, commons: Path) -> None:
    """Issue: a job that printed one line on a full data disk was killed and started over."""
    gate, mark = make_pipe(commons / "gate"), new_mark()
    ends, ends_mark = make_pipe(commons / "ends"), new_mark()
    with running(place.data) as service:
        job_id = submit(service, container_job(counting(gate, mark)))
        ending = submit(service, container_job(counting(ends, ends_mark, "exit(3)")))
        for job in (job_id, ending):
            until(service.follow(job), "begun")
        place.fill()
        gate.write_text("go")
        ends.write_text("go")
        until_blocked(ends_mark)
        pid = until_blocked(mark)
        assert "the disk that holds the data directory is full" in until_refused(service)
        view = service.call("GET", f"/trainshed/v1/jobs/{job_id}")
        assert (view["state"], view["attempt"]) == ("RUNNING", 1)
        before = processor_seconds(service.pid)
        assert not threading.Event().wait(2)
        assert processor_seconds(service.pid) - before < 0.4
        assert until_blocked(mark) == pid
        place.make_room()
        view = service.finish(job_id, PATIENCE)
        assert (view["state"], view["attempt"]) == ("SUCCEEDED", 1)
        assert view["replicas"][0]["incarnation"] == 1
        assert numbers(service, job_id) == [str(n) for n in range(COUNT)]
        assert notes(service, job_id) == [disk.LOG_WAITS, disk.LOG_GOES_ON]
        view = service.finish(ending, PATIENCE)
        assert (view["state"], view["attempt"]) == ("FAILED", 1)
        assert view["replicas"][0]["exit"]["exitCode"] == 3
        assert numbers(service, ending) == [str(n) for n in range(COUNT)]


def test_up_on_a_full_disk_says_so_in_one_line(place: Place, commons: Path) -> None:
    """Also where a job goes on meanwhile, which is taken over once there is room."""
    gate, mark = make_pipe(commons / "gate"), new_mark()
    with running(place.data) as service:
        job_id = submit(service, container_job(counting(gate, mark)))
        until(service.follow(job_id), "begun")
        place.fill()
        gate.write_text("go")
        until_blocked(mark)
        service.kill()
    for path in place.data.glob("buckets.state/records.db-*"):
        path.unlink()  # As of a bucket process that had the time to end by itself.
    place.fill()
    for data in (place.data, place.data.with_name("fresh")):
        words = ("up", "--port", "0", "--data", str(data))
        refused = trainshed(*words, data=data, status=1)
        assert refused.stderr.splitlines() == [
            f"Error: The disk that holds the data directory {data} is full, so nothing can be stored "
            "there. Make room on it and start again; programs that run wait for room as well and lose "
            "nothing."
        ]
    place.make_room()
    with running(place.data) as service:
        view = service.finish(job_id, PATIENCE)
        assert (view["state"], view["attempt"]) == ("SUCCEEDED", 1)
        assert numbers(service, job_id) == [str(n) for n in range(COUNT)]
    with running(place.data.with_name("fresh")):
        pass
