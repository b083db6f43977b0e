"""The metrics of jobs: curves with a reduced number of points (facts/experiments#curves) from event files or
printed values, predictions of searches, and the progress and current activity of a job."""

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
from trainshed.api.resources.jobs import descendant_jobs, find_work
from trainshed.api.trainshed_v1 import describing
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.core.curves import CurveSeries, Point, last_point, thin
from trainshed.core.errors import FailedPrecondition, InvalidRequest, NotFound, Unavailable, Violation
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import StudyName, log_task_name
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.pipelines import Pipeline
from trainshed.core.printed_measures import Bound, Measures, rank, split_name
from trainshed.core.tuning.records import TuningJob
from trainshed.core.units import Nanos, text_micros
from trainshed.core.works import Work
from trainshed.store.points import EVERYTHING, Part
from trainshed.studies.port import AdvisorFailed, trial_data
from trainshed.wire.trainshed_v1 import replicas as records
from trainshed.wire.trainshed_v1.jobs import Glance, Outlook, Progress, Trend

_MAX_POINTS: Final = 1000
"""Maximum number of points of one curve."""
_MAX_TOTAL_POINTS: Final = 100_000
_MAX_CURVES: Final = 2000
_MAX_PRINTING_JOBS: Final = 100
"""Maximum number of jobs of a tuning job or pipeline whose logs are read. The newest jobs are read."""
_MAX_REPLICAS: Final = 16
_MAX_CHART_LINES: Final = 8
"""Maximum number of curves in a chart."""
_LIST_TRIALS_METHOD: Final = "google.cloud.aiplatform.v1.VizierService.ListTrials"


async def curves(call: JsonCall) -> records.JobCurves:
    """`GET
    /trainshed/v1/jobs/{job}/curves?run=R&tag=T&points=N&charts=N&begin=S&end=S&means=true&replicas=true`:
    return the curves of a job.

    `run` and `tag` select runs and tags; both may be repeated. `points`: maximum number of points per curve.
    The points include the extremes of the curve; with `means`, they are averages. The default and the maximum
    of `points` are 1,000, and lower if there are more than a hundred curves. If `points` is 1, the point is
    the last one. `charts`: return points for only this number of metrics, starting with the loss. `begin` and
    `end`: return the steps in this range, and one point before and after it, for curves from event files; 0 =
    no limit. `replicas`: also return values that the first other replicas have printed.
    """
    max_points = call.number("points", None) or _MAX_POINTS
    if max_points > _MAX_POINTS:
        text = f"At most {_MAX_POINTS} points of a curve can be returned, not {max_points}."
        raise InvalidRequest((Violation("points", text),))
    # Without limits, select all steps, including negative steps.
    begin = call.number("begin", None) or EVERYTHING.begin
    end = call.number("end", None) or EVERYTHING.end
    has_means = call.flag("means")
    services = call.services
    work, _ = await find_work(services.reader, call.target)
    jobs = [work] if isinstance(work, Job) else await descendant_jobs(services.reader, work.uid)
    passes = _curve_filter(call)
    curves_by_job: list[tuple[Job, Sequence[CurveSeries]]] = []
    remaining = _MAX_CURVES
    more = False
    for job in jobs:
        series = [curve for curve in await services.curves.series(job.uid) if passes(curve)]
        more = more or len(series) > remaining
        curves_by_job.append((job, series[:remaining]))
        remaining -= min(remaining, len(series))
    charts = call.number("charts", None)
    drawn = {job.uid: await asyncio.to_thread(_chart_curves, series, charts) for job, series in curves_by_job}
    max_points = min(max_points, max(2, _MAX_TOTAL_POINTS // max(sum(map(len, drawn.values())), 1)))
    views: list[records.JobCurve] = []
    for job, series in curves_by_job:
        if not series:
            continue
        points = {curve.uid: [last_point(curve)] for curve in drawn[job.uid]}
        if max_points > 1:
            part = Part(max_points, begin, end, has_means)
            points = await services.points.read(job.uid, list(points), part)
        shown = (_view(job, curve, points.get(curve.uid, ())) for curve in series)
        views += await asyncio.to_thread(list, shown)
    if not views:
        started_jobs = [job for job in jobs if job.started]
        reader = services.page_progress if isinstance(work, Job) else services.list_progress
        more = len(started_jobs) > _MAX_PRINTING_JOBS
        for job in started_jobs[-_MAX_PRINTING_JOBS:]:
            known = await reader.read(services.logs, job)
            views += [view for view in _printed_curves(job, known.measures, max_points) if passes(view)]
        if call.flag("replicas") and started_jobs and isinstance(work, Job):
            primary = primary_of(work).id
            for replica in work.replicas[:_MAX_REPLICAS]:
                if replica.id != primary:
                    known = await services.page_progress.read(services.logs, work, replica)
                    task = log_task_name(work.name.api, replica.id)
                    views += filter(passes, _printed_curves(work, known.measures, max_points, task))
    return records.JobCurves(job=str(work.name), curves=tuple(views), more=more)


async def outlook(call: JsonCall) -> Outlook:
    """`GET /trainshed/v1/jobs/{job}/outlook?parameter=P&parameter=Q`: return the prediction of the model of a
    tuning job or study, over one or two of its parameters. The process that suggests trials computes the
    prediction in about a second."""
    services, chosen = call.services, tuple(dict.fromkeys(call.query.get("parameter", ())))
    if "/studies/" in call.target:
        authorize(call.principal, _LIST_TRIALS_METHOD, (project_in(call.target),))
        study = await services.studies.get(StudyName.parse(call.target))
        spec, uids = study.spec, (study.uid,)
    else:
        work, _ = await find_work(services.reader, call.target)
        if not isinstance(work, TuningJob):
            raise FailedPrecondition(
                f"{work.name} is not a tuning job, so no model predicts its results. Use a tuning job or a "
                "study."
            )
        spec, uids = work.spec.study, (*work.spec.resumed, work.study)
    names = sorted({parameter.id for parameter in spec.parameters})
    if not 1 <= len(chosen) <= 2 or not set(chosen) <= set(names):
        text = f"Set one or two of the parameters {', '.join(names)}."
        raise InvalidRequest((Violation("parameter", text),))
    history = await services.studies.history(uids)
    try:
        return await services.outlook(spec, [trial_data(trial) for trial in history], chosen)
    except AdvisorFailed as failure:
        raise Unavailable(
            f"The prediction of the results could not be computed: {failure}. Try again."
        ) from failure


def _chart_curves(series: Sequence[CurveSeries], charts: int | None) -> Sequence[CurveSeries]:
    """Return the curves of the first `charts` metrics, and at most _MAX_CHART_LINES curves per metric.
    `charts`: None = return all curves."""
    if charts is None:
        return series
    lines: dict[str, list[CurveSeries]] = {}
    for curve in series:
        if curve.count > 1:
            lines.setdefault(split_name(curve.tag)[0] or curve.tag, []).append(curve)
    return [curve for name in sorted(lines, key=rank)[:charts] for curve in lines[name][:_MAX_CHART_LINES]]


def _printed_curves(
    job: Job, measures: Measures, max_points: int, replica: str = ""
) -> Iterator[records.JobCurve]:
    for series in measures.series:
        part = "" if series.part == "train" else series.part
        indexes = thin([point.value for point in series.points], max_points)
        points = [series.points[place] for place in indexes]
        yield records.JobCurve(
            job=str(job.name),
            trial=job.parent.trial if job.parent else 0,
            run=part,
            tag=series.measure,
            replica=replica,
            unit=series.unit,
            count=len(series.points),
            value=json_number(series.points[-1].value),
            points=tuple([_point(point.step, Nanos(round(point.at * 1e9)), point.value) for point in points]),
        )


def _curve_filter(call: JsonCall) -> Callable[[CurveSeries | records.JobCurve], bool]:
    runs, tags = (frozenset(call.query.get(name, ())) for name in ("run", "tag"))
    return lambda curve: (not runs or curve.run in runs) and (not tags or curve.tag in tags)


def _view(job: Job, series: CurveSeries, points: Sequence[Point]) -> records.JobCurve:
    return records.JobCurve(
        job=str(job.name),
        trial=job.parent.trial if job.parent else 0,
        run=series.run,
        tag=series.tag,
        count=series.count,
        value=json_number(last_point(series).value),
        points=tuple([_point(point.step, point.at, point.value) for point in points]),
    )


def _point(step: float, at: Nanos, value: float | bytes) -> records.CurvePoint:
    return records.CurvePoint(step=step, at=text_micros(at), value=json_number(value))


def json_number(value: float | bytes) -> float | str:
    """Return a number for a record. Numbers that JSON cannot represent become strings."""
    assert isinstance(value, float)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


_MAX_LINE_LENGTH: Final = 300
"""Maximum number of characters of a job's last printed line, and of the name of a trend's metric."""


async def current_activity(services: Services, work: Work) -> tuple[Glance, Progress | None]:
    """Return the current activity of a job, tuning job or pipeline: the reason why it waits, the last printed
    line, and the progress. If it has finished, no log is read."""
    last_line, progress = await progress_of(services, work)
    if work.state.is_final:
        return Glance(), progress
    waits = await describing.waiting_reasons(services, await describing.state_of(services, work))
    return Glance(waits=waits[0] if waits else "", last_line=last_line), progress


async def progress_of(services: Services, work: Work) -> tuple[str, Progress | None]:
    """Return the last line that a job, tuning job or pipeline has printed ("" = none), and its progress (None
    = not known)."""
    if isinstance(work, TuningJob):
        done, total = work.succeeded + work.infeasible, work.spec.max_trials
        fraction = done / total if total else None
        words = f"{done} of {total} trials"
        return "", Progress(done=fraction, text=words, source="trials")
    if isinstance(work, PipelineJob):
        done, total = work.counts.finished, work.counts.total
        fraction = done / total if total else None
        return "", Progress(done=fraction, text=f"{done} of {total} tasks", source="tasks")
    if isinstance(work, Pipeline) or work.state is not JobState.RUNNING:
        return "", None
    known = await services.list_progress.read(services.logs, work)
    last_line = (known.last_line or "")[:_MAX_LINE_LENGTH]
    estimate = known.progress.estimate(services.now() / 1e9)
    if estimate is None:
        return last_line, None
    return last_line, Progress(
        done=estimate.done,
        text=estimate.text,
        remaining_seconds=estimate.remaining and round(estimate.remaining, 1),
        source="output",
    )


class _Measure(Struct, frozen=True):
    """The values of one metric of a job, tuning job or pipeline."""

    name: str
    #: The data set (train or validation), if the metric's name does not contain it.
    part: str
    #: The values, newest last; None = not a finite number.
    values: tuple[float | None, ...]
    is_logged: bool = False

    def is_within(self, bound: Bound) -> bool:
        return bound.admits(self.name, self.part, self.values[-1])


async def _read_measures(services: Services, work: Work, *, reads: bool = True) -> list[_Measure]:
    """Return the metrics that a job has printed or logged in event files.

    For a pipeline, these are the metrics of its job; for a tuning job, those of its best trial. A limited
    part of a log is read. `reads`: also read the log of a job whose log was never read before.
    """
    if isinstance(work, PipelineJob):
        return []
    if not isinstance(work, Job):
        with contextlib.suppress(NotFound):  # If the job was deleted, it has no metrics.
            if isinstance(work, Pipeline):
                child, _ = await services.reader.job_by_uid(work.job)
                return await _read_measures(services, child, reads=reads)
            best = work.best and (await services.studies.trial(work.study, work.best)).final
            return [_Measure(name, "", (value,)) for name, value in best.metrics] if best else []
        return []
    if not work.started or not (reads or services.list_progress.has_read(work)):
        return []
    known = await services.list_progress.read(services.logs, work)
    printed = [
        _Measure(series.measure, series.part, tuple([point.value for point in series.points]))
        for series in known.measures.series
    ]
    logged = await services.curves.series(work.uid)
    return printed + [_Measure(curve.tag, split_name(curve.run)[1], (curve.value,), True) for curve in logged]


async def trend(services: Services, work: Work, bounds: Sequence[Bound], *, reads: bool) -> Trend | UnsetType:
    """Return the trend of one metric of a job, tuning job or pipeline. This is the metric of the first bound,
    or else a printed metric, or else a metric in event files. `reads`: as for `_read_measures`."""
    measured = await _read_measures(services, work, reads=reads)
    if not measured:
        return UNSET
    bounded = [known for known in measured for bound in bounds[:1] if known.is_within(bound)]
    shown = min(
        bounded or measured, key=lambda known: (known.is_logged, rank(split_name(known.name)[0]), known.part)
    )
    values = tuple([json_number(math.nan if value is None else value) for value in shown.values])
    return Trend(measure=shown.name[:_MAX_LINE_LENGTH], values=values)


async def meets_bounds(services: Services, work: Work, bounds: Sequence[Bound]) -> bool:
    """Whether the last values of the metrics of a job, tuning job or pipeline meet all bounds."""
    measured = await _read_measures(services, work)
    # Compare in a thread, because a job may have a thousand metrics in event files.
    return await asyncio.to_thread(
        lambda: all(any(known.is_within(bound) for known in measured) for bound in bounds)
    )
