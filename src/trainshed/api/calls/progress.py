"""Finds how far programs are when somebody asks, and remembers it, so that later looks read only what is new.

Nothing is read of a job that nobody asks about. The first look samples the job's whole log, so that it does
not matter who looked before, or whether the service was away.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from trainshed.core.lifecycle.records import Job, Replica
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.progress.estimate import Estimate, Tracker
from trainshed.core.progress.lines import Count, Level, totals_of
from trainshed.core.streams import StreamSource
from trainshed.core.units import Nanos
from trainshed.store.logs.progress import Place, Report
from trainshed.store.logs.reader import LogReader

_MOST: Final = 4096
"""Most jobs that are remembered: some 20 kB each."""
_SECOND: Final = 10**9
_ABOUT: Final = 0.15
"""The margin of a program's own estimate, as a fraction of it."""
_STEPS: Final = (("current_step", "total_steps", "step"), ("currentEpoch", "totalEpochs", "epoch"))
"""Metrics by which programs count (done, total, word for one), as Hugging Face's and others' do."""


class Known(Struct, frozen=True):
    """How far a job's primary program is."""

    #: The last line that it printed; "" = none.
    last_line: str = ""
    #: None = nothing was counted.
    estimate: Estimate | None = None
    #: "output": from what it prints; "report": the program said so; "" = not known.
    source: str = ""
    #: When it reported (ns since the epoch); 0 = it did not.
    at: Nanos = 0
    #: What else it reported.
    metrics: Mapping[str, str] = field(default_factory=dict[str, str])


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
        if (report := reported(logs, job, now)) is not None:
            return Known(
                followed.last_line, report.estimate, report.source, report.at, report.metrics
            )
        estimate = followed.tracker.estimate(now / _SECOND)
        return Known(followed.last_line, estimate, "output" if estimate else "")

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


def reported(logs: LogReader, job: Job, now: Nanos) -> Known | None:
    """Return what a job's primary program has reported of itself in the last attempt; None = nothing."""
    reports = logs.reports(StreamSource(job.uid, job.attempt, _primary(job).id))
    if not reports:
        return None
    newest = reports[-1]
    return Known("", _estimate(reports, job, now), "report", newest.at, newest.metrics)


def _estimate(reports: tuple[Report, ...], job: Job, now: Nanos) -> Estimate | None:
    newest = reports[-1]
    counted = _counted(newest.metrics)
    if newest.percent is None and counted is None and newest.left is None:
        return None
    done = counted.done / counted.total if counted else None
    if newest.percent is not None and (done is None or newest.percent == 100):
        done = newest.percent / 100
    text = (
        counted.text if counted else f"{newest.percent:g} %" if newest.percent is not None else ""
    )
    if job.state.is_final:
        return Estimate(done, text)
    if newest.left is not None:
        left = max(newest.left - max(now - newest.at, 0) / _SECOND, 0.0)
        return Estimate(done, text, left, left * _ABOUT)
    tracker = Tracker()
    for report in reports:
        if report.percent is not None:
            tracker.count(report.at / _SECOND, (Count(Level.STEP, "", report.percent, 100),))
    guess = tracker.estimate(now / _SECOND)
    return Estimate(done, text, guess.remaining, guess.margin) if guess else Estimate(done, text)


def _counted(metrics: Mapping[str, str]) -> Count | None:
    for done, total, word in _STEPS:
        try:
            of, all_ = float(metrics[done]), float(metrics[total])
        except (KeyError, ValueError):
            continue
        if 0 <= of <= all_ and all_ > 0:
            return Count(Level.STEP, word, of, all_)
    return None


def _primary(job: Job) -> Replica:
    primary = ReplicaId(job.spec.pools[0].position, 0)
    return next((replica for replica in job.replicas if replica.id == primary), Replica(primary))
