"""Disk warnings on the timeline of a job, and failures caused by a full disk (spec/machines#disk)."""

import msgspec
import pytest

from tests.unit.jobs import CREATED, PRIMARY, SECOND, WORKER, Life, job
from tests.unit.test_lifecycle_notes import note_event
from trainshed.core.lifecycle import notes
from trainshed.core.lifecycle.events import Event, JobAdmitted
from trainshed.core.lifecycle.notes import NO_ROOM, ROOM_AGAIN
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import ReplicaId
from trainshed.replica.observe import disk

TAIL = "Traceback\nOSError: [Errno 28] No space left on device: 'model.h5'"


def disk_note(
    name: str, text: str = "it is full.", replica: ReplicaId = PRIMARY, number: int = 1, **more: int
) -> Event:
    return note_event(number, text, name=name, replica=replica, severity="WARNING", **more)


def disk_messages(life: Life) -> list[str]:
    return [entry.message for entry in life.timeline if entry.kind in ("disk", "disk_warning")]


@pytest.fixture
def life() -> Life:
    """A job with two replicas on node `a`."""
    return Life(job(1, 1)).see(JobAdmitted(((PRIMARY, "a"), (WORKER, "a")))).up()


def test_controller_and_shim_use_equal_names_for_disk_notes() -> None:
    names = {disk.NEARLY_FULL, disk.NO_ROOM, disk.ROOM_AGAIN}
    names |= {disk.LOG_WAITS, disk.LOG_GOES_ON, disk.EXCEEDED}
    assert names == {name for name, kind in notes.KINDS.items() if kind == "disk"}
    assert (disk.NO_ROOM, disk.ROOM_AGAIN) == (NO_ROOM, ROOM_AGAIN)


def test_disk_warning_on_the_timeline_names_the_replica_and_the_node(life: Life) -> None:
    life.see(disk_note(disk.NEARLY_FULL, "91 GB", WORKER), disk_note(disk.NEARLY_FULL, "104 GB"))
    assert disk_messages(life) == ["workerpool1-0: 91 GB", "workerpool0-0: 104 GB"]
    entry = life.timeline[-1]
    assert (entry.kind, entry.at) == ("disk_warning", CREATED + SECOND)
    assert entry.details["note"] == disk.NEARLY_FULL
    assert (entry.details["replica"], entry.details["node"]) == ("workerpool0-0", "a")
    assert life.job.state is JobState.RUNNING


def test_restarted_replica_does_not_repeat_disk_warnings(life: Life) -> None:
    life.see(disk_note(NO_ROOM)).loses(PRIMARY, "its shim was killed")
    life.see(
        disk_note(NO_ROOM, incarnation=2), disk_note(disk.NEARLY_FULL, "104 GB", number=2, incarnation=2)
    )
    assert disk_messages(life) == ["Node a: it is full.", "workerpool0-0: 104 GB"]
    life.up().exits(PRIMARY, 139).up()
    life.see(msgspec.structs.replace(disk_note(NO_ROOM), attempt=2))
    assert disk_messages(life)[2:] == ["Node a: it is full."], "another attempt reports its own warnings"


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (TAIL, "OSError: [Errno 28] No space left on device: 'model.h5'"),
        ("node: ENOSPC: no space", "node: ENOSPC: no space"),
    ],
)
def test_failure_reason_of_a_job_is_the_disk_error_in_its_log(tail: str, reason: str) -> None:
    life = Life(job(1)).up().exits(PRIMARY, 1, tail=tail)
    assert life.job.error is not None
    assert (life.job.error.code, life.job.error.reason) == (3, reason)
