"""Reads the logs of programs when somebody asks, and remembers what follows from them, so that later looks
read only what is new.

Nothing is read of a job that nobody asks about. The first look samples the job's whole log, so that it does
not matter who looked before, or whether the service was away.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from msgspec import Struct, field

from trainshed.core.lifecycle.records import Job, Replica
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.printed_measures import Measures
from trainshed.core.progress import Tracker, totals_of
from trainshed.core.streams import StreamSource
from trainshed.store.logs.progress import FEW, Sample
from trainshed.store.logs.reader import LogReader

_MOST_TRACKED: Final = 4096
"""Most jobs whose progress is remembered: some 20 kB each."""
_MOST_MEASURED: Final = 100
"""Most jobs whose measures are remembered: some 800 kB each at most."""
TREND: Final = 32
"""Most points of a measure in a list of jobs."""
_MOST_TRENDS: Final = 1000
"""Most jobs of which these are remembered: some 60 kB each at most."""
_OF_A_TREND: Final = 16 << 10
"""Bytes that are read of a log for them: some 20 ms, if all its lines tell of measures."""
_WHOLE: Final = 1 << 20
"""Bytes of a log of which all is read for its measures: an epoch may be named only once, long before them."""
_AT_ONCE: Final = 8_000
"""Characters that are looked at on the event loop: some milliseconds, whatever they are."""
_SECOND: Final = 10**9


class Taker(Protocol):
    """What takes the lines of one program."""

    def feed(self, at: float, text: str) -> None: ...
    def restarted(self) -> None: ...


T = TypeVar("T", bound=Taker)


class Followed(Struct, Generic[T]):
    """The state of reading the log of a job's primary program."""

    attempt: int
    incarnation: int
    taker: T
    #: How many bytes of its log were read.
    place: int = 0
    #: The last line that was read; "" = none yet.
    last_line: str = ""
    #: The job was over before its log was read: nothing more comes.
    is_whole: bool = False
    #: Held during a look.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class LogBook(Generic[T]):
    """Remembers what follows from the logs of the `most` jobs that somebody asked about last. `make`: makes
    what takes the lines of a job's primary. `whole`: bytes of new lines that are read completely."""

    def __init__(self, make: Callable[[Job, Replica], T], most: int, whole: int = FEW) -> None:
        self._make = make
        self._whole = whole
        self._most = most
        self._followed: OrderedDict[tuple[JobUid, ReplicaId], Followed[T]] = OrderedDict()

    async def look(self, logs: LogReader, job: Job, replica: Replica | None = None) -> Followed[T]:
        """Return what is known of a job, which has begun, by what a replica prints; None = its primary. Reads
        a bounded number of bytes."""
        replica = replica or primary_of(job)
        followed = self._of(job, replica)
        async with followed.lock:
            if followed.is_whole:
                return followed
            source = StreamSource(job.uid, followed.attempt, replica.id)
            sample = await logs.sampled(source, followed.place, self._whole)
            followed.place = sample.place
            followed.last_line = sample.last or followed.last_line
            if sum(len(text) for _, text in sample.lines) > _AT_ONCE:
                await asyncio.to_thread(_feed, followed.taker, sample)
            else:
                _feed(followed.taker, sample)
            followed.is_whole = job.state.is_final
        return followed

    def knows(self, job: Job) -> bool:
        """Whether somebody has asked about the job before."""
        return (job.uid, primary_of(job).id) in self._followed

    def _of(self, job: Job, replica: Replica) -> Followed[T]:
        key = job.uid, replica.id
        followed = self._followed.get(key)
        if followed is None:
            followed = Followed(job.attempt, replica.incarnation, self._make(job, replica))
            self._followed[key] = followed
            if len(self._followed) > self._most:
                self._followed.popitem(last=False)
        elif (followed.attempt, followed.incarnation) != (job.attempt, replica.incarnation):
            if followed.attempt != job.attempt:
                followed.place = 0
            followed.attempt, followed.incarnation = job.attempt, replica.incarnation
            followed.taker.restarted()
        self._followed.move_to_end(key)
        return followed


def progress_book() -> LogBook[Tracker]:
    """Return the book of how far programs are."""

    def tracker(job: Job, replica: Replica) -> Tracker:
        began = replica.started / _SECOND if replica.started else None
        program = job.spec.pool(replica.id.pool).program
        return Tracker(began, totals_of((*program.command, *program.args)))

    return LogBook(tracker, _MOST_TRACKED)


def measures_book() -> LogBook[Measures]:
    """Return the book of what programs print of what they measure."""
    return LogBook(
        lambda _, replica: Measures(was_restarted=replica.incarnation > 1), _MOST_MEASURED, _WHOLE
    )


def trends_book() -> LogBook[Measures]:
    """Return the book of the same in so few points that many jobs are remembered, for lists."""
    return LogBook(
        lambda _, replica: Measures(most=TREND, was_restarted=replica.incarnation > 1),
        _MOST_TRENDS,
        _OF_A_TREND,
    )


def _feed(taker: Taker, sample: Sample) -> None:
    for at, text in sample.lines:
        taker.feed(at / _SECOND, text)


def primary_of(job: Job) -> Replica:
    """Return a job's primary replica, also before it has one."""
    own = (replica for replica in job.replicas if replica.id == job.spec.primary)
    return next(own, Replica(job.spec.primary))
