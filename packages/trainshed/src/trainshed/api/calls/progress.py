"""Finds how far programs are when somebody asks, and remembers it, so that later looks read only what is new.

Nothing is read of a job that nobody asks about. The first look samples the job's whole log, so that it does
not matter who looked before, or whether the service was away.
"""

import asyncio
from collections import OrderedDict
from typing import Final

from msgspec import Struct, field

from trainshed.core.lifecycle.records import Job, Replica
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.progress import Estimate, Tracker, totals_of
from trainshed.core.streams import StreamSource
from trainshed.core.units import Nanos
from trainshed.store.logs.progress import Place
from trainshed.store.logs.reader import LogReader

_MOST: Final = 4096
"""Most jobs that are remembered: some 20 kB each."""
_SECOND: Final = 10**9


class Known(Struct, frozen=True):
    """How far a job's primary program is."""

    #: The last line that it printed; "" = none.
    last_line: str = ""
    #: None = nothing was counted.
    estimate: Estimate | None = None


class _Followed(Struct):
    """The state of reading one job's log."""

    attempt: int
    incarnation: int
    tracker: Tracker
    #: The place up to which its log was read.
    place: Place = field(default_factory=Place)
    #: The last line that was read; "" = none yet.
    last_line: str = ""
    #: Held during a look.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ProgressBook:
    """Remembers how far jobs are, for the `most` jobs that somebody asked about last."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._followed: OrderedDict[JobUid, _Followed] = OrderedDict()

    async def look(self, logs: LogReader, job: Job, now: Nanos) -> Known:
        """Return how far a running job is; `now` in ns. Reads a bounded number of bytes."""
        replica = _primary(job)
        followed = self._of(job, replica)
        async with followed.lock:
            source = StreamSource(job.uid, followed.attempt, replica.id)
            sample = await logs.sampled(source, followed.place)
            followed.place = sample.place
            followed.last_line = sample.last or followed.last_line
            for at, text in sample.lines:
                followed.tracker.feed(at / _SECOND, text)
        return Known(followed.last_line, followed.tracker.estimate(now / _SECOND))

    def _of(self, job: Job, replica: Replica) -> _Followed:
        followed = self._followed.get(job.uid)
        if followed is None:
            began = replica.started / _SECOND if replica.started else None
            program = job.spec.pool(replica.id.pool).program
            tracker = Tracker(began, totals_of((*program.command, *program.args)))
            followed = _Followed(job.attempt, replica.incarnation, tracker)
            self._followed[job.uid] = followed
            if len(self._followed) > self._most:
                self._followed.popitem(last=False)
        elif (followed.attempt, followed.incarnation) != (job.attempt, replica.incarnation):
            if followed.attempt != job.attempt:
                followed.place = Place()
            followed.attempt, followed.incarnation = job.attempt, replica.incarnation
            followed.tracker.restarted()
        self._followed.move_to_end(job.uid)
        return followed


def _primary(job: Job) -> Replica:
    primary = ReplicaId(job.spec.pools[0].position, 0)
    return next((replica for replica in job.replicas if replica.id == primary), Replica(primary))
