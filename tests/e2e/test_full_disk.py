"""A service that is to start on a disk without a free byte. Programs that run while it is full:
`tests/contract/replica/test_room.py`; what a store answers: `tests/contract/store/test_store_sqlite.py`."""

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import disk_of
from tests.e2e.processes import marked, new_mark
from tests.e2e.running import Service, container_job, running, submit, trainshed
from tests.e2e.stories import at, make_pipe, until

PATIENCE = 60.0
COUNT = 300


@pytest.fixture
def place() -> Iterator[Path]:
    """Of 24 MB, where programs may look for what is theirs."""
    with tempfile.TemporaryDirectory(prefix="trainshed-small-") as root:
        Path(root).chmod(0o755)
        with disk_of("size=24m,mode=755", Path(root, "disk")) as small:
            yield small


def fill(place: Path) -> None:
    with (place / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 1000):
            pass


def counting(gate: Path, mark: str) -> str:
    """A program that says "begun", and behind the gate more than a pipe holds."""
    prints = f"for n in range({COUNT}): print(n, 'x' * 5000, flush=True)"
    return f"print('begun', flush=True)\n{at(gate)}\n{prints}\n# {mark}"


def until_blocked(mark: str) -> None:
    """Until a program waits for somebody to read what it says."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for pid in marked(mark):
            with contextlib.suppress(OSError):
                if "pipe_w" in Path(f"/proc/{pid}/wchan").read_text():
                    return
        threading.Event().wait(0.02)
    raise AssertionError("it was never seen to wait for its reader")


def numbers(service: Service, job_id: str) -> list[str]:
    words = [line.split()[0] for line in service.lines(job_id, "workerpool0-0")]
    return [word for word in words if word.isdigit()]


def test_up_on_a_full_disk_says_so_in_one_line(place: Path, commons: Path) -> None:
    """Also where a job goes on meanwhile, which is taken over once there is room."""
    gate, mark, old = make_pipe(commons / "gate"), new_mark(), place / "data"
    with running(old) as service:
        job_id = submit(service, container_job(counting(gate, mark)))
        until(service.follow(job_id), "begun")
        fill(place)
        gate.write_text("go")
        until_blocked(mark)
        service.kill()
    for path in old.glob("buckets.state/records.db-*"):
        path.unlink()  # As of a bucket process that had the time to end by itself.
    fill(place)
    for data in (old, place / "fresh"):
        words = ("up", "--port", "0", "--data", str(data))
        refused = trainshed(*words, data=data, status=1)
        assert refused.stderr.splitlines() == [
            f"Error: The disk that holds the data directory {data} is full, so nothing can be stored "
            "there. Make room on it and start again; programs that run wait for room as well and lose "
            "nothing."
        ]
    (place / "filler").unlink()
    with running(old) as service:
        view = service.finish(job_id, PATIENCE)
        assert (view["state"], view["attempt"]) == ("SUCCEEDED", 1)
        assert numbers(service, job_id) == [str(n) for n in range(COUNT)]
    with running(place / "fresh"):
        pass
