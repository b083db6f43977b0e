"""Reads progress and metrics from the logs of programs.

The log of a job is read only after the first request for the job. The first request samples the whole log.
The result therefore does not depend on earlier requests or on restarts of the service. Later requests read
only new lines.
"""

import asyncio
from collections import OrderedDict
from typing import Final

from msgspec import Struct, field

from trainshed.core.lifecycle.records import Job, Replica
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.printed_measures import Measures
from trainshed.core.progress import Tracker, totals_of
from trainshed.core.streams import StreamSource
from trainshed.store.logs.progress import Sample
from trainshed.store.logs.reader import LogReader

_MAX_PARSED_ON_LOOP: Final = 4_000
"""Maximum number of characters that are parsed on the event loop. This takes a few milliseconds."""
_SECOND: Final = 10**9


class LogState(Struct):
    """The state of reading the log of one replica."""

    attempt: int
    incarnation: int
    #: The progress of the program.
    progress: Tracker
    #: The metrics that the program has printed.
    measures: Measures
    #: Number of bytes of the log that were read.
    place: int = 0
    #: The last line that was read; None = no line was read.
    last_line: str | None = None
    #: Whether the log was complete when it was read, because the job had finished before.
    is_complete: bool = False
    #: Held while the log is read.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def feed(self, sample: Sample) -> None:
        for time, text in sample.lines:
            self.progress.feed(time / _SECOND, text)
            self.measures.feed(time / _SECOND, text)


class ProgressReader:
    """Reads progress and metrics from the logs of jobs. Keeps the state of the last `max_jobs` requested
    jobs.

    `points`: maximum number of points per metric. `complete_size`: maximum number of bytes of new lines that
    are read completely. More than that is sampled.
    """

    def __init__(self, max_jobs: int, points: int, complete_size: int) -> None:
        self._max_jobs = max_jobs
        self._points = points
        self._complete_size = complete_size
        self._states: OrderedDict[tuple[JobUid, ReplicaId], LogState] = OrderedDict()

    async def read(self, logs: LogReader, job: Job, replica: Replica | None = None) -> LogState:
        """Read the log of a started job's replica, and return its state. `replica`: None = the primary
        replica. Reads a limited number of bytes."""
        replica = replica or primary_of(job)
        state = self._of(job, replica)
        async with state.lock:
            if state.is_complete:
                return state
            # Never return to an earlier attempt, or to an earlier run (incarnation) of a replica: a slow call
            # may have read `job` before a retry that another call has already handled.
            if (state.attempt, state.incarnation) < (job.attempt, replica.incarnation):
                if state.attempt != job.attempt:
                    state.place = 0
                state.attempt, state.incarnation = job.attempt, replica.incarnation
                state.progress.record_restart()
                state.measures.record_restart()
            source = StreamSource(job.uid, state.attempt, replica.id)
            sample = await logs.sample(source, state.place, self._complete_size)
            state.place = sample.place
            state.last_line = sample.last or state.last_line
            if sum(len(text) for _, text in sample.lines) > _MAX_PARSED_ON_LOOP:
                await asyncio.to_thread(state.feed, sample)
            else:
                state.feed(sample)
            state.is_complete = job.state.is_final
        return state

    def has_read(self, job: Job) -> bool:
        """Whether the job's log was already read."""
        return (job.uid, primary_of(job).id) in self._states

    def _of(self, job: Job, replica: Replica) -> LogState:
        key = job.uid, replica.id
        state = self._states.get(key)
        if state is None:
            began = replica.started / _SECOND if replica.started else None
            program = job.spec.pool(replica.id.pool).program
            tracker = Tracker(began, totals_of((*program.command, *program.args)))
            measures = Measures(most=self._points, was_restarted=replica.incarnation > 1)
            state = LogState(job.attempt, replica.incarnation, tracker, measures)
            self._states[key] = state
            if len(self._states) > self._max_jobs:
                self._states.popitem(last=False)
        self._states.move_to_end(key)
        return state


def list_progress_reader() -> ProgressReader:
    """Return a reader for lists of jobs. It needs about 80 kB of memory per job, for many jobs, and at most
    about 20 ms per call."""
    return ProgressReader(max_jobs=1000, points=32, complete_size=32 << 10)


def page_progress_reader() -> ProgressReader:
    """Return a reader for the pages of single jobs. It needs about 800 kB of memory per job. It reads large
    parts of a log, because a program may print an epoch only once, long before the metrics."""
    return ProgressReader(max_jobs=100, points=400, complete_size=1 << 20)


def primary_of(job: Job) -> Replica:
    """Return a job's primary replica. If the job has no replicas yet, return a new, unstarted replica."""
    own = (replica for replica in job.replicas if replica.id == job.spec.primary)
    return next(own, Replica(job.spec.primary))
