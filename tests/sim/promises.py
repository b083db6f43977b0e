"""What must be true of a simulated service's store in the end: all that was promised on the way was kept."""

from collections.abc import Iterator

from tests.sim.clients import Accepted
from tests.sim.invariants import Books
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.works import Work
from trainshed.store.port import Reader

_SIGHTINGS = (
    "replica_started",
    "replica_exited",
    "running",
    "cancel_requested",
    "drill_ordered",
)
"""Entries that give the time at which something happened or was asked for, of which the controller may hear later."""


async def broken(reader: Reader, books: Books, accepted: Accepted) -> list[str]:
    """The promises that were not kept, in words."""
    found: list[str] = []
    for uid in sorted(accepted.submits):
        job, _ = await reader.job_by_uid(uid)
        story = await reader.timeline(uid)
        books.rules.update(e.details["rule"] for e in story if e.kind == "verdict")
        found += _of_submit(job, story)
    for uid, at in accepted.cancels.items():
        job, _ = await reader.job_by_uid(uid)
        if isinstance(job, Job):
            found += (f"{said}\n{books.judges[uid].told()}" for said in _of_cancel(job, at))
        else:
            found += await books.families.of_cancel(job, at)
    found += await books.families.broken()
    return found


def _of_submit(job: Work, story: tuple[TimelineEntry, ...]) -> Iterator[str]:
    """SPEC §2: every job ends, and its story is told in order."""
    if not job.state.is_final:
        yield f"job {job.uid} was accepted and is {job.state} in the end"
    times = [entry.at for entry in story if entry.kind not in _SIGHTINGS]
    if times != sorted(times):
        kinds = [(entry.at, entry.kind) for entry in story]
        yield f"the timeline of job {job.uid} goes backwards: {kinds}"


def _of_cancel(job: Job, at: int) -> Iterator[str]:
    """SPEC §2, "Cancel": after an accepted cancel the state is CANCELLED, unless the primary had already exited."""
    primary = next((r.exit for r in job.replicas if r.id.is_primary), None)
    if job.state is not JobState.CANCELLED and (primary is None or primary.ended > at):
        yield f"job {job.uid} was cancelled at {at} and is {job.state}"
