"""What jobs measure: their curves, thinned (facts/experiments#curves), of their event files, else of what
they printed. What searches are expected to measure. How far a job is, and in one line what it does at the
moment."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from trainshed.access.permissions import authorize
from trainshed.api.calls.progress import primary_of
from trainshed.api.calls.project_names import project_in
from trainshed.api.calls.services import Services
from trainshed.api.resources.jobs import find_work, jobs_below
from trainshed.api.trainshed_v1 import describing
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.core.curves import CurveSeries, Point, last_point, thinned
from trainshed.core.errors import (
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    Unavailable,
    Violation,
)
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import StudyName, log_task_name
from trainshed.core.pipelines import Pipeline
from trainshed.core.printed_measures import Bound, Measures, rank, split_name
from trainshed.core.tuning.records import TuningJob
from trainshed.core.units import Nanos, text_micros
from trainshed.core.works import Work
from trainshed.store.points import EVERYTHING, Part
from trainshed.studies.port import AdvisorFailed, trial_data
from trainshed.wire.trainshed_v1 import replicas as records
from trainshed.wire.trainshed_v1.jobs import Glance, Outlook, Progress, Trend

_MOST_POINTS: Final = 1000
"""Most points of one curve."""
_MOST_IN_ALL: Final = 100_000
_MOST_CURVES: Final = 2000
_MOST_PRINTING: Final = 100
"""Newest jobs below a work whose logs are read."""
_MOST_REPLICAS: Final = 16
_LINES: Final = 8
"""Most lines of a chart."""
_TRIALS: Final = "google.cloud.aiplatform.v1.VizierService.ListTrials"


async def curves(call: JsonCall) -> records.JobCurves:
    """`GET
    /trainshed/v1/jobs/{job}/curves?run=R&tag=T&points=N&charts=N&begin=S&end=S&means=true&replicas=true`:
    return the curves, of these runs and tags if any are named (both may be repeated), each by at most
    `points` points that have its extremes, or are means (1,000 by default and at most; fewer if there are
    more than a hundred curves). `charts`: only some curves of so many measures, loss first, have points. Of
    event files: with one point a curve, the one that was read last; steps from `begin` to `end`, 0 = all,
    with the points before and after. `replicas`: also what the first other replicas print."""
    most = call.number("points", None) or _MOST_POINTS
    if most > _MOST_POINTS:
        text = f"An answer has at most {_MOST_POINTS} points of a curve, not {most}."
        raise InvalidRequest((Violation("points", text),))
    # Steps may be negative.
    begin = call.number("begin", None) or EVERYTHING.begin
    end = call.number("end", None) or EVERYTHING.end
    has_means = call.flag("means")
    services = call.services
    work, _ = await find_work(services.reader, call.target)
    jobs = [work] if isinstance(work, Job) else await jobs_below(services.reader, work.uid)
    passes = _chooser(call)
    by_job: list[tuple[Job, Sequence[CurveSeries]]] = []
    left = _MOST_CURVES
    more = False
    for job in jobs:
        series = [curve for curve in await services.curves.series(job.uid) if passes(curve)]
        more = more or len(series) > left
        by_job.append((job, series[:left]))
        left -= min(left, len(series))
    charts = call.number("charts", None)
    drawn = {job.uid: await asyncio.to_thread(_telling, series, charts) for job, series in by_job}
    most = min(most, max(2, _MOST_IN_ALL // max(sum(map(len, drawn.values())), 1)))
    views: list[records.JobCurve] = []
    for job, series in by_job:
        if not series:
            continue
        points = {curve.uid: [last_point(curve)] for curve in drawn[job.uid]}
        if most > 1:
            part = Part(most, begin, end, has_means)
            points = await services.points.read(job.uid, list(points), part)
        shown = (_view(job, curve, points.get(curve.uid, ())) for curve in series)
        views += await asyncio.to_thread(list, shown)
    if not views:
        begun = [job for job in jobs if job.started]
        book = services.page_progress if isinstance(work, Job) else services.list_progress
        more = len(begun) > _MOST_PRINTING
        for job in begun[-_MOST_PRINTING:]:
            known = await book.read(services.logs, job)
            views += [view for view in _printed(job, known.measures, most) if passes(view)]
        if call.flag("replicas") and begun and isinstance(work, Job):
            primary = primary_of(work).id
            for replica in work.replicas[:_MOST_REPLICAS]:
                if replica.id != primary:
                    known = await services.page_progress.read(services.logs, work, replica)
                    task = log_task_name(work.name.api, replica.id)
                    views += filter(passes, _printed(work, known.measures, most, task))
    return records.JobCurves(job=str(work.name), curves=tuple(views), more=more)


async def outlook(call: JsonCall) -> Outlook:
    """`GET /trainshed/v1/jobs/{job}/outlook?parameter=P&parameter=Q`: return what the model of a tuning job,
    or of the study of that name, expects over one or two of its parameters. Computed in a second or so, by
    the process that suggests trials."""
    services, chosen = call.services, tuple(dict.fromkeys(call.query.get("parameter", ())))
    if "/studies/" in call.target:
        authorize(call.principal, _TRIALS, (project_in(call.target),))
        study = await services.studies.get(StudyName.parse(call.target))
        spec, uids = study.spec, (study.uid,)
    else:
        work, _ = await find_work(services.reader, call.target)
        if not isinstance(work, TuningJob):
            raise FailedPrecondition(f"{work.name} is not a tuning job, so it has no search.")
        spec, uids = work.spec.study, (*work.spec.resumed, work.study)
    names = sorted({parameter.id for parameter in spec.parameters})
    if not 1 <= len(chosen) <= 2 or not set(chosen) <= set(names):
        text = f"Name one or two of its parameters: {', '.join(names)}."
        raise InvalidRequest((Violation("parameter", text),))
    history = await services.studies.history(uids)
    try:
        return await services.outlook(spec, [trial_data(trial) for trial in history], chosen)
    except AdvisorFailed as failure:
        raise Unavailable(f"The outlook could not be computed: {failure}. Try again.") from failure


def _telling(series: Sequence[CurveSeries], charts: int | None) -> Sequence[CurveSeries]:
    """Return the first lines of so many measures; None = all curves."""
    if charts is None:
        return series
    lines: dict[str, list[CurveSeries]] = {}
    for curve in series:
        if curve.count > 1:
            lines.setdefault(split_name(curve.tag)[0] or curve.tag, []).append(curve)
    return [curve for name in sorted(lines, key=rank)[:charts] for curve in lines[name][:_LINES]]


def _printed(
    job: Job, measures: Measures, most: int, replica: str = ""
) -> Iterator[records.JobCurve]:
    for series in measures.series:
        part = "" if series.part == "train" else series.part
        kept = thinned([point.value for point in series.points], most)
        points = [series.points[place] for place in kept]
        yield records.JobCurve(
            job=str(job.name),
            trial=job.parent.trial if job.parent else 0,
            run=part,
            tag=series.measure,
            replica=replica,
            unit=series.unit,
            count=len(series.points),
            value=number(series.points[-1].value),
            points=tuple(
                [_point(point.step, Nanos(round(point.at * 1e9)), point.value) for point in points]
            ),
        )


def _chooser(call: JsonCall) -> Callable[[CurveSeries | records.JobCurve], bool]:
    runs, tags = (frozenset(call.query.get(name, ())) for name in ("run", "tag"))
    return lambda curve: (not runs or curve.run in runs) and (not tags or curve.tag in tags)


def _view(job: Job, series: CurveSeries, points: Sequence[Point]) -> records.JobCurve:
    return records.JobCurve(
        job=str(job.name),
        trial=job.parent.trial if job.parent else 0,
        run=series.run,
        tag=series.tag,
        count=series.count,
        value=number(last_point(series).value),
        points=tuple([_point(point.step, point.at, point.value) for point in points]),
    )


def _point(step: float, at: Nanos, value: float | bytes) -> records.CurvePoint:
    return records.CurvePoint(step=step, at=text_micros(at), value=number(value))


def number(value: float | bytes) -> float | str:
    """Return a value as records have it: numbers that JSON does not know as text."""
    assert isinstance(value, float)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


_LONGEST: Final = 300
"""Most characters of a last line."""


async def glance(services: Services, work: Work) -> tuple[Glance, Progress | None]:
    """Return what a work waits for and prints, and its progress. Reads nothing for an ended one."""
    last_line, progress = await activity(services, work)
    if work.state.is_final:
        return Glance(), progress
    waits = await describing.waits_of(services, await describing.seen(services, work))
    return Glance(waits=waits[0] if waits else "", last_line=last_line), progress


async def activity(services: Services, work: Work) -> tuple[str, Progress | None]:
    """Return the last line that a work prints, "" if it prints none now, and its progress; None if that is
    not known."""
    if isinstance(work, TuningJob):
        done, total = work.succeeded + work.infeasible, work.spec.max_trials
        share = done / total if total else None
        words = f"{done} of {total} trials"
        return "", Progress(done=share, text=words, source="trials")
    if isinstance(work, Pipeline) or work.state is not JobState.RUNNING:
        return "", None
    known = await services.list_progress.read(services.logs, work)
    last_line = (known.last_line or "")[:_LONGEST]
    estimate = known.progress.estimate(services.now() / 1e9)
    if estimate is None:
        return last_line, None
    return last_line, Progress(
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
            best = work.best and (await services.studies.trial(work.study, work.best)).final
            return [_Measured(name, "", (value,)) for name, value in best.metrics] if best else []
        return []
    if not work.started or not (reads or services.list_progress.has_read(work)):
        return []
    known = await services.list_progress.read(services.logs, work)
    printed = [
        _Measured(series.measure, series.part, tuple([point.value for point in series.points]))
        for series in known.measures.series
    ]
    logged = await services.curves.series(work.uid)
    return printed + [
        _Measured(curve.tag, split_name(curve.run)[1], (curve.value,), True) for curve in logged
    ]


async def trend(
    services: Services, work: Work, bounds: Sequence[Bound], *, reads: bool
) -> Trend | UnsetType:
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
    return Trend(measure=shown.name[:_LONGEST], values=values)


async def meets(services: Services, work: Work, bounds: Sequence[Bound]) -> bool:
    """Whether the last values of what a work measures are within all bounds."""
    measured = await _measured(services, work)
    # It may have logged a thousand.
    return await asyncio.to_thread(
        lambda: all(any(known.is_within(bound) for known in measured) for bound in bounds)
    )
