"""The jobs that wait and the room that is taken, kept up to date so that a decision needs no search."""

from bisect import bisect_left, insort

from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.scheduler.admission import Admit, QueuedJob, Snapshot, plan


class Queue:
    """Told of every stored change of a live job; gives the scheduler its snapshot."""

    def __init__(self, limit: int) -> None:
        self.nodes: tuple[str, ...] = ()
        self._limit = limit
        self._ranked: list[QueuedJob] = []
        self._waiting: dict[JobUid, QueuedJob] = {}
        self._placed: dict[JobUid, int] = {}
        self._running = 0

    def update(self, job: Job) -> None:
        """Take note of where a job stands now."""
        placed = 0 if job.state is JobState.QUEUED or job.state.is_final else len(job.replicas)
        self._running += placed - self._placed.pop(job.uid, 0)
        if placed:
            self._placed[job.uid] = placed
        if job.state is JobState.QUEUED:
            self._wait(job)
        else:
            self._leave(job.uid)

    def admissions(self) -> tuple[Admit, ...]:
        """Who starts now. Costs nothing to speak of while nobody waits."""
        if not self._ranked:
            return ()
        return plan(Snapshot(self._ranked, self.nodes, self._running, self._limit))

    def _wait(self, job: Job) -> None:
        if job.uid in self._waiting:
            return
        priority = job.spec.scheduling.priority
        queued = QueuedJob(job.uid, priority, job.created, job.spec.replicas())
        self._waiting[job.uid] = queued
        insort(self._ranked, queued, key=lambda waiting: waiting.rank)

    def _leave(self, uid: JobUid) -> None:
        queued = self._waiting.pop(uid, None)
        if queued is not None:
            at = bisect_left(self._ranked, queued.rank, key=lambda waiting: waiting.rank)
            del self._ranked[at]
