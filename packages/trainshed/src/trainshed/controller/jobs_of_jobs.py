"""Counts the unfinished works (jobs, tuning jobs and pipelines) that programs of jobs have created, and finds
the works that end together with a job.

The stored works determine all results. The controller reports each start and end of a work.
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
    """The unfinished jobs, tuning jobs and pipelines that programs of jobs have created.

    `stored`: returns an unfinished job, or None if it has finished or was deleted. `most`: maximum number of
    them in one chain of jobs that create each other.
    """

    def __init__(self, stored: Callable[[JobUid], Job | None], most: int) -> None:
        self._stored = stored
        self._most = most
        #: For each unfinished job, tuning job or pipeline that a program has created, by its UID: the job of
        #: that program.
        self._makers: dict[JobUid, ActingJob] = {}

    def admit(self, uid: JobUid, maker: ActingJob) -> bool:
        """Count a new job, tuning job or pipeline that is about to be stored. Return False if it is already
        counted. Raise FailedPrecondition if the job whose program creates it is about to end, or
        ResourceExhausted."""
        if uid in self._makers:
            return False
        job = self._stored(maker.uid)
        if job is None or job.state.is_final or job.outcome is not None:
            raise FailedPrecondition(
                f"{maker.name} has finished, or is stopping, and cannot create further jobs. Create the "
                "job with the token of a user or a service account."
            )
        live = sum(other.root == maker.root for other in self._makers.values())
        if live >= self._most:
            raise ResourceExhausted(
                f"{maker.name} cannot create another job. Its chain of jobs has {live} unfinished jobs, "
                f"and this service allows {self._most} at a time (setting max_child_jobs). Wait until one "
                "finishes, cancel one, or ask an operator to raise the setting."
            )
        self._makers[uid] = maker
        return True

    def add(self, work: Work) -> None:
        """Count a stored unfinished job, tuning job or pipeline if a job's program has created it."""
        if work.creating_job is not None:
            self._makers[work.uid] = work.creating_job

    def remove(self, uid: JobUid) -> None:
        """Stop counting a job, tuning job or pipeline, because it has finished or was not stored."""
        self._makers.pop(uid, None)

    def works_of(self, maker: JobUid) -> tuple[JobUid, ...]:
        """Return the unfinished jobs, tuning jobs and pipelines that programs of this job have created."""
        return tuple(uid for uid, made_by in self._makers.items() if made_by.uid == maker)

    def cancels(self, work: Work, now: Nanos) -> tuple[CancelRequested, ...]:
        """Return the cancel for an unfinished job, tuning job or pipeline (`work`) if the job whose program
        created it has finished. Return () in all other cases, and if `work` has the label `OUTLIVES_LABEL` =
        "on"."""
        maker = work.creating_job
        if maker is None or work.state.is_final or dict(work.labels).get(OUTLIVES_LABEL) == "on":
            return ()
        job = self._stored(maker.uid)
        if job is not None and not job.state.is_final:
            return ()
        return (CancelRequested(CancelCause.CREATOR, now, work.creator),)
