"""Reads the logs of programs when somebody asks, and remembers what follows from them, so that later looks
read only what is new.

Nothing is read of a job that nobody asks about. The first look samples the job's whole log, so that it does
not matter who looked before, or whether the service was away.
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

_AT_ONCE: Final = 4_000
"""Characters that are looked at on the event loop: some milliseconds, whatever they are."""
_SECOND: Final = 10**9


class Followed(Struct):
    """The state of reading the log of a job's primary program, or of another one."""

    attempt: int
    incarnation: int
    #: How far it is.
    progress: Tracker
    #: What it prints of what it measures.
    measures: Measures
    #: How many bytes of its log were read.
    place: int = 0
    #: The last line that was read; None = none yet.
    last_line: str | None = None
    #: The job was over before its log was read: nothing more comes.
    is_whole: bool = False
    #: Held during a look.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def feed(self, sample: Sample) -> None:
        for at, text in sample.lines:
            self.progress.feed(at / _SECOND, text)
            self.measures.feed(at / _SECOND, text)


class LogBook:
    """Remembers what follows from the logs of the `most` jobs that somebody asked about last. `points`: most
    points of a measure. `whole`: bytes of new lines that are read completely."""

    def __init__(self, most: int, points: int, whole: int) -> None:
        self._most = most
        self._points = points
        self._whole = whole
        self._followed: OrderedDict[tuple[JobUid, ReplicaId], Followed] = OrderedDict()

    async def look(self, logs: LogReader, job: Job, replica: Replica | None = None) -> Followed:
        """Return what is known of a job, which has begun, by what a replica prints; None = its primary. Reads
        a bounded number of bytes."""
        replica = replica or primary_of(job)
        followed = self._of(job, replica)
        async with followed.lock:
            if followed.is_whole:
                return followed
            # A look that began before a retry may come after one that knows of it.
            if (followed.attempt, followed.incarnation) < (job.attempt, replica.incarnation):
                if followed.attempt != job.attempt:
                    followed.place = 0
                followed.attempt, followed.incarnation = job.attempt, replica.incarnation
                followed.progress.restarted()
                followed.measures.restarted()
            source = StreamSource(job.uid, followed.attempt, replica.id)
            sample = await logs.sampled(source, followed.place, self._whole)
            followed.place = sample.place
            followed.last_line = sample.last or followed.last_line
            if sum(len(text) for _, text in sample.lines) > _AT_ONCE:
                await asyncio.to_thread(followed.feed, sample)
            else:
                followed.feed(sample)
            followed.is_whole = job.state.is_final
        return followed

    def knows(self, job: Job) -> bool:
        """Whether somebody has asked about the job before."""
        return (job.uid, primary_of(job).id) in self._followed

    def _of(self, job: Job, replica: Replica) -> Followed:
        key = job.uid, replica.id
        followed = self._followed.get(key)
        if followed is None:
            began = replica.started / _SECOND if replica.started else None
            program = job.spec.pool(replica.id.pool).program
            tracker = Tracker(began, totals_of((*program.command, *program.args)))
            measures = Measures(most=self._points, was_restarted=replica.incarnation > 1)
            followed = Followed(job.attempt, replica.incarnation, tracker, measures)
            self._followed[key] = followed
            if len(self._followed) > self._most:
                self._followed.popitem(last=False)
        self._followed.move_to_end(key)
        return followed


def book_of_lists() -> LogBook:
    """Return a book for lists: some 80 kB for each of many jobs, and for a look some 20 ms at most."""
    return LogBook(most=1000, points=32, whole=32 << 10)


def book_of_curves() -> LogBook:
    """Return a book for pages of jobs, some 800 kB each. Much of a log is read: an epoch may be named only
    once, long before its measures."""
    return LogBook(most=100, points=400, whole=1 << 20)


def primary_of(job: Job) -> Replica:
    """Return a job's primary replica, also before it has one."""
    own = (replica for replica in job.replicas if replica.id == job.spec.primary)
    return next(own, Replica(job.spec.primary))
