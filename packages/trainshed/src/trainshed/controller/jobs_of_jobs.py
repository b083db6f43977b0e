"""The live works that programs of jobs have created: their number, and the works that end together
with a job.

All of it follows from the stored works; the controller reports each start and end of a work.
"""

from collections.abc import Callable
from typing import Final

from trainshed.core.errors import FailedPrecondition, ResourceExhausted
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.core.lifecycle.records import OUTLIVES_LABEL, ActingJob, Job
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed.core.works import Work

DEFAULT_MAX_CHILD_JOBS: Final = 20
"""The default of the setting `max_child_jobs`."""


class JobsOfJobs:
    """The live works that programs of jobs have made. `stored`: returns a job that may be live; None = it is
    over, or was deleted. `most`: how many works there may be at a time of one line of jobs."""

    def __init__(self, stored: Callable[[JobUid], Job | None], most: int) -> None:
        self._stored = stored
        self._most = most
        #: By the uid of each such work.
        self._makers: dict[JobUid, ActingJob] = {}

    def admit(self, uid: JobUid, maker: ActingJob) -> bool:
        """Count a new work that is about to be stored. Returns False if it counts already. Raises
        FailedPrecondition (the job that makes it is about to end), ResourceExhausted."""
        if uid in self._makers:
            return False
        job = self._stored(maker.uid)
        if job is None or job.state.is_final or job.outcome is not None:
            raise FailedPrecondition(
                f"{maker.name} has ended, or is about to end, and cannot create further jobs."
            )
        live = sum(other.root == maker.root for other in self._makers.values())
        if live >= self._most:
            raise ResourceExhausted(
                f"{maker.name}, and jobs of the same line, have {live} unfinished jobs, and "
                f"this service allows {self._most} at a time (setting max_child_jobs). Wait "
                "until one ends, cancel one, or have an operator raise the setting."
            )
        self._makers[uid] = maker
        return True

    def add(self, work: Work) -> None:
        """Count a live work that is stored, if a job's program has made it."""
        if work.maker is not None:
            self._makers[work.uid] = work.maker

    def remove(self, uid: JobUid) -> None:
        """Count a work no more: it is over, or was not stored."""
        self._makers.pop(uid, None)

    def of(self, maker: JobUid) -> tuple[JobUid, ...]:
        """Return the live works that programs of this job have made."""
        return tuple(uid for uid, made_by in self._makers.items() if made_by.uid == maker)

    def cancels(self, work: Work, now: Nanos) -> tuple[CancelRequested, ...]:
        """Return the cancel of a live work that ends with the job that made it, if that job is over; else
        nothing."""
        maker = work.maker
        if maker is None or work.state.is_final or dict(work.labels).get(OUTLIVES_LABEL) == "on":
            return ()
        job = self._stored(maker.uid)
        if job is not None and not job.state.is_final:
            return ()
        return (CancelRequested(CancelCause.CREATOR, now, work.creator),)
