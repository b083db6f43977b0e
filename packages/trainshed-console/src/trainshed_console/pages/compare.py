"""Compares jobs by metrics, parameters, code, machines, times and usage."""

import asyncio
import csv
import io
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import UNSET, Struct

from trainshed.core.printed_measures import rank, split_name
from trainshed.core.resource_summary import Pool, summarize_resource
from trainshed.httpd.messages import Response, sized_response
from trainshed.wire.status import CallRejected, StatusCode
from trainshed.wire.trainshed_v1.jobs import JobDescription, Trial
from trainshed.wire.trainshed_v1.replicas import JobCurve, Launch, Usage
from trainshed_console.pages.job import Chart, describe, position_of, read_curves, start_of
from trainshed_console.pages.jobs import duration_of, error_line
from trainshed_console.pages.pipeline_job import artifacts_of, parameters_of, text_of
from trainshed_console.pages.searches import Axis, Line, Metric, Search, parallel
from trainshed_console.rendering import bytes_text, curve_data, epoch, id_of, number_text, seconds_text
from trainshed_console.task_tree import TaskTree
from trainshed_console.views import Part, View, Visit, of_job

MAX_JOBS: Final = 20
_MAX_POINTS: Final = 300
"""Maximum points of a line."""
_CHARTS: Final = 12
_MAX_TASKS: Final = 200
"""Maximum number of tasks of a pipeline job that are compared."""
_DIGEST_DIGITS: Final = 12
"""Number of visible digits of a digest."""


class Compared(Struct, frozen=True):
    """A job with its comparable facts."""

    job: JobDescription
    #: The job's name, followed by the ID if another job has the same name.
    title: str
    #: Texts by group and name. Unknown facts are omitted.
    facts: Mapping[str, Mapping[str, str]]
    #: The curve of each metric of each part of the data, such as training and validation. Only the curves of
    #: the first `_CHARTS` metrics have points.
    curves: Mapping[str, JobCurve]

    def text(self, group: str, name: str) -> str:
        """Return the text of a fact, or "" if it is unknown."""
        return self.facts[group].get(name, "")


async def page(visit: Visit) -> View:
    """`/compare?job=A&job=B`: the jobs next to each other, differences first. Raises CallRejected."""
    jobs = await _comparisons(visit)
    axes, lines = _parallel(jobs)
    charts = _charts(jobs, visit.query("axis") == "time")
    return View(
        "Compare",
        "compare.html",
        {
            "jobs": jobs,
            "groups": [(group, rows(jobs, group)) for group in jobs[0].facts],
            "query": visit.request.raw_query,
        },
        parts={
            "curves": Part("_job_curves.html", {"charts": charts, "restarts": ()}),
            "parallel": Part("_trials_parallel.html", {"axes": axes, "lines": lines}),
        },
        place="jobs",
    )


async def table(visit: Visit) -> Response:
    """`/compare/table.csv?job=A&job=B`: the comparison with one row per job. Raises CallRejected."""
    jobs = await _comparisons(visit)
    columns = [(group, name) for group in jobs[0].facts for name, _, _ in rows(jobs, group)]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(_escape_formulas(("job", "name", *(name for _, name in columns))))
    for job in jobs:
        facts = (job.text(group, name) for group, name in columns)
        writer.writerow(_escape_formulas((job.job.name, job.job.display_name, *facts)))
    more = [(b"content-disposition", b'attachment; filename="jobs.csv"')]
    content = text.getvalue().encode("utf-8", "replace")
    return sized_response(content, b"text/csv; charset=utf-8", more=more)


def _escape_formulas(cells: Sequence[str]) -> list[str]:
    """Return texts that spreadsheet programs do not interpret as formulas (CSV injection)."""
    risky = tuple("=+-@\t\r")
    return [
        f"'{cell}" if cell.startswith(risky) and isinstance(_number(cell), str) else cell for cell in cells
    ]


async def _comparisons(visit: Visit) -> list[Compared]:
    targets = tuple(dict.fromkeys(filter(None, visit.request.values.get("job", ()))))
    if not 2 <= len(targets) <= MAX_JOBS:
        text = f"You can compare 2 to {MAX_JOBS} jobs, not {len(targets)}. Select them in a list."
        raise CallRejected(StatusCode.INVALID_ARGUMENT, text)
    descriptions = await asyncio.gather(*(describe(visit, target) for target in targets))
    names = [job.display_name or job.job_id for job in descriptions]
    titles = [
        name if names.count(name) == 1 else f"{name} {job.job_id}"
        for name, job in zip(names, descriptions, strict=True)
    ]
    pairs = zip(descriptions, titles, strict=True)
    return list(await asyncio.gather(*(_load_job(visit, job, title) for job, title in pairs)))


async def _load_job(visit: Visit, job: JobDescription, title: str) -> Compared:
    # Read no curves of a tuning job, because only its trials have curves.
    curves: dict[str, JobCurve] = {}
    if job.tuning is UNSET:
        for curve in await read_curves(visit, job.uid, _MAX_POINTS, _CHARTS):
            measure, part = split_name(curve.tag)
            name = " ".join(filter(None, (measure or curve.tag, part or curve.run)))
            curves[f"{curve.run} {curve.tag}".lstrip() if name in curves else name] = curve
    launch = usage = None
    if job.replicas is not UNSET:
        launch = await visit.get(Launch, of_job(job.uid, "/launch"))
        usage = await visit.get(Usage, of_job(job.uid, "/usage"), points="0")
    last = {name: curve.value for name, curve in curves.items()}
    if job.tuning and job.tuning.best_value is not None:
        last = {job.tuning.metric: job.tuning.best_value}
    pool = next(iter(summarize_resource(job.resource or {}).pools), Pool(name="", count=0, machine=""))
    facts = {
        "Parameters": pool.parameters,
        "Last values": {name: number_text(value) for name, value in last.items()},
        "Code": _code(pool, launch) | {"labels": ", ".join(map("=".join, job.labels.items()))},
        "Machine": {
            "machines": _kinds_text(job.machines),
            "accelerators": _kinds_text(job.accelerators),
            "node": ", ".join(dict.fromkeys(replica.node for replica in job.replicas or ())),
        },
        "Result and time": _times(job),
        "Tasks": {},
        "Used": _usage_texts(usage) if usage else {},
    }
    if job.pipeline_job:
        facts |= await _run_facts(visit, job)
    return Compared(job, title, facts, curves)


async def _run_facts(visit: Visit, job: JobDescription) -> dict[str, dict[str, str]]:
    """Return the parameters of a pipeline job, the numbers in metadata of its artifacts, and its tasks."""
    tree = TaskTree(await visit.resource(job.name))
    tasks = tree.walk(tree.root)[:_MAX_TASKS]
    return {
        "Parameters": {
            name: text_of(value) for name, value in parameters_of(tree, tree.root, "input").items()
        },
        "Last values": {
            f"{task.path} {name}": text_of(value)
            for task in tasks
            for _, artifact in artifacts_of(task, "output")
            for name, value in artifact.get("metadata", {}).items()
            if isinstance(value, int | float)
        },
        "Tasks": {
            task.path: task.state_text + (f", {seconds_text(task.seconds)}" if task.seconds else "")
            for task in tasks
        },
    }


def _charts(jobs: Sequence[Compared], by_time: bool) -> list[Chart]:
    curves: dict[str, dict[str, JobCurve]] = {}
    for job in jobs:
        for name, curve in job.curves.items():
            if curve.count > 1 and curve.points:
                curves.setdefault(name, {})[job.title] = curve
    since = {job.title: start_of(job.curves.values()) for job in jobs}
    charts: list[Chart] = []
    for name in [name for name in _measures(jobs) if name in curves][:_CHARTS]:
        units = {curve.unit or "step" for curve in curves[name].values()}
        # Epochs of one job and steps of another job can only be compared by time.
        is_timed = by_time or len(units) > 1
        # A job without this metric has an empty line. Each job therefore has the same colour in all charts.
        lines: dict[str, dict[float, float | str]] = {job.title: {} for job in jobs}
        for title, curve in curves[name].items():
            start = since[title] if is_timed else None
            lines[title] = {position_of(point, start): point.value for point in curve.points}
        charts.append(Chart(name, curve_data(lines, "Time" if is_timed else units.pop().title())))
    return charts


def _code(pool: Pool, launch: Launch | None) -> dict[str, str]:
    if launch is None:
        return {"image": pool.image}
    runtime = launch.runtime
    return {
        "code": launch.code[:_DIGEST_DIGITS],
        "packages": ", ".join(map(id_of, launch.packages)),
        "program": pool.program.removesuffix(" ".join(pool.args)),
        "image": pool.image,
        "runtime": " ".join((runtime.image or runtime.family, runtime.version)),
        "Python": runtime.python_version,
    }


def _times(job: JobDescription) -> dict[str, str]:
    waiting = epoch(job.start_time) - epoch(job.create_time) if job.start_time else None
    duration = duration_of(job)
    return {
        "state": job.state.capitalize(),
        "error": error_line(job.error),
        "by": job.user,
        "submitted": job.create_time[:19].replace("T", " "),
        "waited": "" if waiting is None else seconds_text(waiting),
        "took": "" if duration is None else seconds_text(duration),
        "attempts": str(job.attempt or ""),
    }


def _usage_texts(usage: Usage) -> dict[str, str]:
    busy = [gpu.mean_busy for replica in usage.replicas for gpu in replica.gpus]
    known_shares = [share for share in busy if share is not None]
    return {
        "cost": f"{usage.cost:.2f}" if usage.cost else "",
        "GPU-hours": f"{usage.gpu_hours:.2f}" if usage.gpu_hours else "",
        "CPU-hours": f"{usage.cpu_hours:.2f}",
        "CPUs at work": f"{sum(replica.mean_cpus for replica in usage.replicas):.2f}",
        "GPUs busy": f"{sum(known_shares) / len(known_shares):.0%}" if known_shares else "",
        "peak memory": bytes_text(max(r.peak_memory_bytes for r in usage.replicas) or None),
    }


def _kinds_text(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.items())


def rows(jobs: Sequence[Compared], group: str) -> list[tuple[str, list[str], bool]]:
    """Return (name, one text per job, whether the texts differ) for each fact of a group. Facts that differ
    come first. Facts that are unknown for all jobs are omitted."""
    names = dict.fromkeys(name for job in jobs for name in job.facts[group])
    texts = [(name, [job.text(group, name) for job in jobs]) for name in names]
    result = [(name, values, len(set(values)) > 1) for name, values in texts if any(values)]
    return sorted(result, key=lambda result: not result[2])


def _measures(jobs: Sequence[Compared]) -> list[str]:
    names = dict.fromkeys(name for job in jobs for name in job.curves)
    return sorted(names, key=lambda name: rank(split_name(name)[0] or name))


def _parallel(jobs: Sequence[Compared]) -> tuple[list[Axis], list[Line]]:
    """Return parallel coordinates of the first metric and of the parameters that differ."""
    measures = _measures(jobs)
    differing = [name for name, _, differs in rows(jobs, "Parameters") if differs]
    if not measures or len(differing) < 2:
        return [], []
    trials: list[Trial] = []
    for number, job in enumerate(jobs):
        value = _number(job.text("Last values", measures[0]))
        if isinstance(value, float):
            parameters = {name: _number(job.text("Parameters", name)) for name in differing}
            trials.append(Trial(number=number, parameters=parameters, value=value))
    titles = {number: job.title for number, job in enumerate(jobs)}
    return parallel(trials, Search(trials, (Metric(measures[0]),), frozenset(), names=titles))


def _number(text: str) -> float | str | None:
    try:
        return float(text)
    except ValueError:
        return text or None
