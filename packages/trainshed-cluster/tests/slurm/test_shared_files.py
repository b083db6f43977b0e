"""The shared file system hangs under a gang that runs, for a minute, as a file server that is started again
does: whoever writes to it stands still, the service as well. A real file system, frozen by the kernel."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.running import Service, common_place, submit
from tests.e2e.stories import PRIMARY, WORKER, make_pipe, pools, story, timeline
from tests.slurm.lab import SlurmLab, why_not
from tests.slurm.whole import configure, service_on

pytestmark = pytest.mark.soak  # Two minutes.

HANGS = 60.0
"""Seconds."""

COUNTS = """
import itertools, select, os
gate = os.open({gate!r}, os.O_RDWR | os.O_NONBLOCK)
for number in itertools.count():
    print("number", number, flush=True)
    if select.select([gate], [], [], 0.05)[0] and os.read(gate, 9):
        break
"""
"""Has nothing to do with the shared file system."""

WRITES = """
import itertools, os, pathlib, time
kept = pathlib.Path("/gcs/trainshed/steps")
for step in itertools.count():
    begun = time.monotonic()
    with kept.open("a") as file:
        print(step, file=file, flush=True)
        os.fsync(file.fileno())
    print("step", step, "after", round(time.monotonic() - begun), flush=True)
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of its own."""
    if reason := why_not():
        pytest.skip(f"NOT TESTED: the Slurm engine: {reason}")
    place = tmp_path_factory.mktemp("server")
    image, mounted = place / "image", place / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(512 << 20)
    try:
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(mounted)], check=True)
    except (OSError, subprocess.CalledProcessError) as failure:
        pytest.skip(f"NOT TESTED: a shared file system that hangs: {failure}")
    yield mounted
    subprocess.run(["umount", "--lazy", str(mounted)], check=True)


@pytest.fixture(scope="module")
def service(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    place = tmp_path_factory.mktemp("frozen")
    with SlurmLab.open(place, nodes=2, shown=[common_place(), shared]) as lab:
        directory = configure(lab, "service", lease=2 * HANGS, place=shared)
        with service_on(lab, directory) as started:
            yield started


def said(service: Service, job_id: str, replica: str, word: str) -> list[int]:
    """The numbers behind a word."""
    lines = service.lines(job_id, replica)
    return [int(line.split()[1]) for line in lines if line.startswith(word)]


def test_a_gang_outlives_a_shared_file_system_that_hangs(service: Service, shared: Path) -> None:
    gate = make_pipe(common_place() / "frozen-gate")
    job_id = submit(service, pools(COUNTS.format(gate=str(gate)), WRITES))
    for replica, word in ((PRIMARY, "number 20"), (WORKER, "step 20 ")):
        lines = service.follow(job_id, replica)
        assert any(line.startswith(word) for line in lines), timeline(service, job_id)
    subprocess.run(["fsfreeze", "--freeze", str(shared)], check=True)
    try:
        time.sleep(HANGS)  # What the fault lasts.
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(shared)], check=True)
    lines = service.follow(job_id, WORKER)
    late = next(
        line for line in lines if line.startswith("step ") and int(line.split()[-1]) > HANGS / 2
    )
    went_on = next(lines)
    assert int(went_on.split()[1]) == int(late.split()[1]) + 1
    gate.write_text("enough")
    told = story(service, job_id)
    assert told.state == "SUCCEEDED"
    assert told.begun == {PRIMARY: 1, WORKER: 1} and not told.verdicts
    numbers = said(service, job_id, PRIMARY, "number ")
    assert numbers == list(range(len(numbers)))
    # It went on meanwhile, and all of it has come.
    assert len(numbers) > HANGS / 0.05 / 4
    steps = said(service, job_id, WORKER, "step ")
    assert steps == list(range(len(steps)))
    # The stall is told, of each of its nodes, and its end.
    nodes = {entry["details"]["node"] for entry in told.of_kind("replica_started")}
    begun, ended = told.of_kind("disk_warning"), told.of_kind("disk")
    for entries, words in ((begun, "do not answer"), (ended, "answer again, after")):
        assert {entry["details"]["node"] for entry in entries} == nodes
        assert len(entries) == len(nodes)
        assert all(words in entry["message"] for entry in entries)
    # Another job begins as if nothing had been.
    assert service.finish(submit(service, pools("pass")))["state"] == "SUCCEEDED"
