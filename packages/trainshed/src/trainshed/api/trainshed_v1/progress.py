"""Tells how far a job is, for how long it will still run, and in one line what it does at the moment."""

import asyncio
import contextlib
import math
from collections.abc import Sequence
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from trainshed.api.calls.services import Services
from trainshed.api.trainshed_v1.curves import number
from trainshed.api.trainshed_v1.describing import seen, waits_of
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.pipelines import Pipeline
from trainshed.core.printed_measures import Bound, rank, split_name
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.wire.trainshed_v1 import jobs as records

_LONGEST: Final = 300
"""Most characters of a last line."""


async def glance(
    services: Services, work: Work, etag: str
) -> tuple[records.Glance, records.Progress | None]:
    """Return what a work waits for and prints, and its progress. Reads nothing for an ended one."""
    last_line, progress = await activity(services, work)
    if work.state.is_final:
        return records.Glance(), progress
    waits = await waits_of(services, await seen(services, work, etag))
    return records.Glance(waits=waits[0] if waits else "", last_line=last_line), progress


async def activity(services: Services, work: Work) -> tuple[str, records.Progress | None]:
    """Return the last line that a work prints, "" if it prints none now, and its progress; None if that is
    not known."""
    if isinstance(work, TuningJob):
        done, total = work.succeeded + work.infeasible, work.spec.max_trials
        share = done / total if total else None
        words = f"{done} of {total} trials"
        return "", records.Progress(done=share, text=words, source="trials")
    if isinstance(work, Pipeline) or work.state is not JobState.RUNNING:
        return "", None
    known = await services.progress.look(services.logs, work)
    last_line = known.last_line[:_LONGEST]
    estimate = known.taker.estimate(services.now() / 1e9)
    if estimate is None:
        return last_line, None
    return last_line, records.Progress(
        done=estimate.done,
        text=estimate.text,
        remaining_seconds=estimate.remaining and round(estimate.remaining, 1),
        source="output",
    )


class _Measured(Struct, frozen=True):
    """What a work measures under one name."""

    name: str
    #: Of the data, if the name has none.
    part: str
    #: The last is the newest; None = no finite number.
    values: tuple[float | None, ...]
    is_logged: bool = False

    def is_within(self, bound: Bound) -> bool:
        return bound.admits(self.name, self.part, self.values[-1])


async def _measured(services: Services, work: Work, *, reads: bool = True) -> list[_Measured]:
    """Return what a job prints and logs in event files; a pipeline's job; the best trial of a tuning job.
    Reads a bounded part of a log, and with `reads` also of a job that nobody has asked about before."""
    if not isinstance(work, Job):
        with contextlib.suppress(NotFound):  # What is deleted meanwhile measures nothing.
            if isinstance(work, Pipeline):
                child, _ = await services.reader.job_by_uid(work.job)
                return await _measured(services, child, reads=reads)
            best = work.best and (await services.studies.trial(work.study, work.best)).trial.final
            return [_Measured(name, "", (value,)) for name, value in best.metrics] if best else []
        return []
    if not work.started or not (reads or services.trends.knows(work)):
        return []
    known = await services.trends.look(services.logs, work)
    printed = [
        _Measured(series.measure, series.part, tuple([point.value for point in series.points]))
        for series in known.taker.series
    ]
    logged = await services.curves.series(work.uid)
    return printed + [
        _Measured(curve.tag, split_name(curve.run)[1], (curve.value,), True) for curve in logged
    ]


async def trend(
    services: Services, work: Work, bounds: Sequence[Bound], *, reads: bool
) -> records.Trend | UnsetType:
    """Return what a work measures: what is within the first bound, else what its program prints, else what it
    logs in event files. `reads`: as of `_measured`."""
    measured = await _measured(services, work, reads=reads)
    if not measured:
        return UNSET
    wanted = [known for known in measured for bound in bounds[:1] if known.is_within(bound)]
    shown = min(
        wanted or measured,
        key=lambda known: (known.is_logged, rank(split_name(known.name)[0]), known.part),
    )
    values = tuple([number(math.nan if value is None else value) for value in shown.values])
    return records.Trend(measure=shown.name[:_LONGEST], values=values)


async def meets(services: Services, work: Work, bounds: Sequence[Bound]) -> bool:
    """Whether the last values of what a work measures are within all bounds."""
    measured = await _measured(services, work)
    # It may have logged a thousand.
    return await asyncio.to_thread(
        lambda: all(any(known.is_within(bound) for known in measured) for bound in bounds)
    )
