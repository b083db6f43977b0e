"""Tells how far a job is, for how long it will still run, and in one line what it does at the moment."""

import asyncio
from collections.abc import Sequence
from typing import Final, assert_never

from msgspec import UNSET, UnsetType

from trainshed.api.calls.services import Services
from trainshed.api.trainshed_v1.curves import number
from trainshed.api.trainshed_v1.describing import seen, waits_of
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.pipelines import Pipeline
from trainshed.core.printed_measures import Bound, rank, split_name
from trainshed.core.progress import Estimate
from trainshed.core.tensorboards import last_point
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.wire.trainshed_v1 import jobs as records

NOT_KNOWN: Final = Estimate(None, "")
_LONGEST: Final = 300
"""Most characters of a last line."""


async def progress_of(services: Services, work: Work) -> records.Progress | None:
    """Return the progress of a work; None if nothing is known."""
    if isinstance(work, TuningJob):
        done, total = work.succeeded + work.infeasible, work.spec.max_trials
        return records.Progress(
            done=done / total if total else None, text=f"{done} of {total} trials", source="trials"
        )
    if isinstance(work, Pipeline):
        return None
    if work.state is not JobState.RUNNING:
        return None
    known = await services.progress.look(services.logs, work)
    estimate = known.taker.estimate(services.now() / 1e9)
    if estimate is None:
        return None
    return records.Progress(
        done=estimate.done,
        text=estimate.text,
        remaining_seconds=seconds(estimate.remaining),
        source="output",
    )


def seconds(value: float | None) -> float | None:
    """Round to as many decimals as are shown."""
    return None if value is None else round(value, 1)


async def glance(services: Services, work: Work, etag: str) -> records.Glance:
    """Return the glance of a work. Reads nothing for an ended one."""
    if work.state.is_final:
        return _of_trials(work, "") if isinstance(work, TuningJob) else records.Glance()
    waits = await waits_of(services, await seen(services, work, etag))
    wait = waits[0] if waits else ""
    match work:
        case Job():
            return await _of_lines(services, work, wait)
        case TuningJob():
            return _of_trials(work, wait)
        case Pipeline():
            return records.Glance(waits=wait)
        case _:
            assert_never(work)


async def _of_lines(services: Services, job: Job, waits: str) -> records.Glance:
    if job.state is not JobState.RUNNING:
        return records.Glance(waits=waits)
    known = await services.progress.look(services.logs, job)
    estimate = known.taker.estimate(services.now() / 1e9) or NOT_KNOWN
    return records.Glance(
        waits=waits,
        last_line=known.last_line[:_LONGEST],
        done=estimate.done,
        progress=estimate.text,
        remaining_seconds=seconds(estimate.remaining),
    )


async def trend(services: Services, work: Work, *, reads: bool) -> records.Trend | UnsetType:
    """Return what a work measures: what its program prints, else what it logs in event files. `reads`: also
    of a job that nobody has asked about before."""
    if not isinstance(work, Job) or not work.started:
        return UNSET
    if not reads and not services.trends.knows(work):
        return UNSET
    known = await services.trends.look(services.logs, work)
    if printed := known.taker.series:
        shown = min(printed, key=lambda series: (rank(series.measure), series.part))
        values = tuple([number(point.value) for point in shown.points])
        return records.Trend(measure=shown.measure, values=values)
    if logged := await services.curves.series(work.uid):
        curve = min(logged, key=lambda curve: (rank(split_name(curve.tag)[0]), curve.run))
        last = number(last_point(curve).value)
        return records.Trend(measure=curve.tag[:_LONGEST], values=(last,))
    return UNSET


async def meets(services: Services, work: Work, bounds: Sequence[Bound]) -> bool:
    """Whether the last values of what a job logs in event files or prints are within all bounds. Reads
    a bounded part of its log."""
    if not isinstance(work, Job) or not work.started:
        return False
    logged = await services.curves.series(work.uid)
    known = await services.trends.look(services.logs, work)
    printed = [
        (series.measure, series.part, series.points[-1].value) for series in known.taker.series
    ]

    def within() -> bool:
        values = [
            *printed,
            *((curve.tag, split_name(curve.run)[1], curve.value) for curve in logged),
        ]
        return all(any(bound.admits(*value) for value in values) for bound in bounds)

    # It may have logged a thousand.
    return await asyncio.to_thread(within)


def _of_trials(work: TuningJob, waits: str) -> records.Glance:
    done, total = work.succeeded + work.infeasible, work.spec.max_trials
    return records.Glance(
        waits=waits, done=done / total if total else None, progress=f"{done} of {total} trials"
    )
