"""What is told of disks on the timeline of a job, and at a failure (spec/machines#disk)."""

import msgspec
import pytest

from tests.unit.jobs import CREATED, PRIMARY, SECOND, WORKER, Life, job
from tests.unit.test_lifecycle_notes import noted
from trainshed.core.lifecycle import notes
from trainshed.core.lifecycle.events import Event, JobAdmitted
from trainshed.core.lifecycle.notes import NO_ROOM, ROOM_AGAIN
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import ReplicaId
from trainshed.replica.observe import disk

TAIL = "Traceback\nOSError: [Errno 28] No space left on device: 'model.h5'"


def seen(
    name: str, text: str = "it is full.", replica: ReplicaId = PRIMARY, number: int = 1, **more: int
) -> Event:
    return noted(number, text, name=name, replica=replica, severity="WARNING", **more)


def told(life: Life) -> list[str]:
    return [entry.message for entry in life.told if entry.kind in ("disk", "disk_warning")]


@pytest.fixture
def life() -> Life:
    """Two replicas on node `a`."""
    return Life(job(1, 1)).see(JobAdmitted(((PRIMARY, "a"), (WORKER, "a")))).up()


def test_the_names_are_those_that_shims_give() -> None:
    names = {disk.NEARLY_FULL, disk.NO_ROOM, disk.ROOM_AGAIN}
    names |= {disk.LOG_WAITS, disk.LOG_GOES_ON, disk.EXCEEDED}
    assert names == {name for name, kind in notes.KINDS.items() if kind == "disk"}
    assert (disk.NO_ROOM, disk.ROOM_AGAIN) == (NO_ROOM, ROOM_AGAIN)


def test_files_that_are_too_many_are_told_of_their_replica(life: Life) -> None:
    life.see(seen(disk.NEARLY_FULL, "91 GB", WORKER), seen(disk.NEARLY_FULL, "104 GB"))
    assert told(life) == ["workerpool1-0: 91 GB", "workerpool0-0: 104 GB"]
    entry = life.told[-1]
    assert (entry.kind, entry.at) == ("disk_warning", CREATED + SECOND)
    assert entry.details["note"] == disk.NEARLY_FULL
    assert (entry.details["replica"], entry.details["node"]) == ("workerpool0-0", "a")
    assert life.job.state is JobState.RUNNING


def test_a_restarted_replica_tells_nothing_that_is_known(life: Life) -> None:
    life.see(seen(NO_ROOM)).loses(PRIMARY, "its shim was killed")
    life.see(
        seen(NO_ROOM, incarnation=2), seen(disk.NEARLY_FULL, "104 GB", number=2, incarnation=2)
    )
    assert told(life) == ["Node a: it is full.", "workerpool0-0: 104 GB"]
    life.up().exits(PRIMARY, 139).up()
    life.see(msgspec.structs.replace(seen(NO_ROOM), attempt=2))
    assert told(life)[2:] == ["Node a: it is full."], "another attempt is told anew"


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (TAIL, "OSError: [Errno 28] No space left on device: 'model.h5'"),
        ("node: ENOSPC: no space", "node: ENOSPC: no space"),
    ],
)
def test_a_failure_names_the_full_disk_that_the_log_names(tail: str, reason: str) -> None:
    life = Life(job(1)).up().exits(PRIMARY, 1, tail=tail)
    assert life.job.error is not None
    assert (life.job.error.code, life.job.error.reason) == (3, reason)
