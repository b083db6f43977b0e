"""The pages of one job: overview, usage, drills (faults that a user injects) and specification. Also the
actions that cancel, retry and create jobs."""

import json
import shlex
from bisect import bisect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from math import isfinite
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from msgspec import UNSET, Struct

from trainshed.core.copies import INPUTS, RETRY_LABEL, api_of, collection_of, copy_of, retry_of
from trainshed.core.names import Api, JobUid
from trainshed.core.printed_measures import rank, split_name
from trainshed.core.resource_summary import ResourceSummary, summarize_resource
from trainshed.core.snippets import SnippetForm, snippet
from trainshed.httpd.messages import Response
from trainshed.wire.status import CallRejected, StatusCode, Violation
from trainshed.wire.trainshed_v1.capacity import Explanation
from trainshed.wire.trainshed_v1.jobs import JobDescription, ShellTicket, Tuning
from trainshed.wire.trainshed_v1.replicas import CurvePoint, JobCurve, JobCurves, Launch, Usage
from trainshed.wire.trainshed_v1.timeline import LogPage, ResumeReport, Timeline
from trainshed_console.pages.jobs import duration_of, error_line, excerpt_of
from trainshed_console.rendering import curve_data, epoch, id_of, objective_data
from trainshed_console.views import Part, View, Visit, job_path, of_job, redirect

_MAX_ENTRIES: Final = 60
"""Number of newest timeline entries on the page. A link shows all entries."""
_MAX_LAST_LINES: Final = 12
"""Number of last log lines on the page."""
FINAL: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"})
"""States of finished jobs."""
_UNSUCCESSFUL: Final = FINAL - {"SUCCEEDED"}
_CREATING: Final = {
    "vertex": "google.cloud.aiplatform.v1.JobService.CreateCustomJob",
    "ml": "google.cloud.ml.v1.JobService.CreateJob",
}
"""The method that creates a copy of a job, by the job's API."""
_CREATE_PIPELINE_JOB: Final = "google.cloud.aiplatform.v1.PipelineService.CreatePipelineJob"
_WAITING: Final = frozenset({"QUEUED", "PREPARING", "PAUSED"})
_TITLES: Final = {"logs": "Log", "spec": "Specification"}
"""Names of tabs in page titles."""
_MAX_POINTS: Final = 400
"""Maximum points of a line."""
_CHARTS: Final = 8
_MAX_RESTARTS: Final = 50
"""Maximum number of restart marks in a chart."""


async def describe(visit: Visit, job: str | None = None) -> JobDescription:
    """Return a job by its ID or name. If `job` is None, return the job in the page's address. Raises
    CallRejected."""
    return await visit.get(JobDescription, of_job(job or visit.variables["job"]))


def head(visit: Visit, job: JobDescription, tab: str) -> Part:
    """Return the header of each page of a job: the job's name, state, actions and tabs."""
    project = job.name.split("/")[1]
    return Part(
        "_job_head.html",
        {
            "job": job,
            "tab": tab,
            "title": job.display_name or job.job_id,
            "is_over": job.state in FINAL,
            "project": project,
            "creating": _CREATE_PIPELINE_JOB if job.pipeline_job else _CREATING[job.api],
            "is_run": bool(job.pipeline_job),
            "repeats": job.labels.get(RETRY_LABEL, "") if job.pipeline_job else "",
            "may_retry": job.state in _UNSUCCESSFUL,
            "has_replicas": job.replicas is not UNSET,
            "is_tuning": job.tuning is not UNSET,
            "began": epoch(job.create_time),
            "started": epoch(job.start_time),
            "lasted": duration_of(job),
        },
    )


def tab_view(
    visit: Visit,
    job: JobDescription,
    tab: str,
    values: Mapping[str, Any],
    parts: Mapping[str, Part] = MappingProxyType({}),
    *,
    lives: bool = True,
) -> View:
    """Return the page for a tab of a job. `lives`: whether an event stream updates the page until the job has
    finished."""
    return View(
        f"{_TITLES.get(tab, tab.capitalize())} of {job.display_name or job.job_id}",
        f"job_{tab}.html",
        {"job": job, **values},
        parts={"head": head(visit, job, tab), **parts},
        subject=JobUid(int(job.uid)),
        lives=lives and job.state not in FINAL,
        place="jobs",
    )


async def by_name(visit: Visit) -> Response:
    """`/jobs/P/named/J[?region=L]`: redirect to the page of an AI Platform job, or of a pipeline job in a
    region."""
    name = "projects/{project}/jobs/{job}".format_map(visit.variables)
    if region := visit.query("region"):
        name = name.replace("/jobs/", f"/locations/{region}/pipelineJobs/")
    return redirect(job_path((await describe(visit, name)).uid))


async def overview(visit: Visit, job: JobDescription) -> View:
    """`/jobs/J`: the cause of failure or waiting, metrics, replicas, last log lines and the timeline."""
    timeline = await visit.get(Timeline, of_job(job.uid, "/timeline"))
    # The page of a pipeline shows the replicas and log lines of its job.
    runs: JobDescription = job.child or job
    runs_timeline = timeline
    if runs is not job:
        runs_timeline = await visit.get(Timeline, of_job(runs.uid, "/timeline"))
    tail, charts, restarts = LogPage(), (), _restarts(runs_timeline)
    if runs.replicas is not UNSET:
        charts = await _curve_charts(visit, runs, restarts)
        tail = await visit.get(LogPage, of_job(runs.uid, "/logPage"), limit=str(_MAX_LAST_LINES))
    wanted = summarize_resource(job.resource or {})
    is_live = job.state not in FINAL
    tail_lives = is_live and runs.replicas is not UNSET
    of_job_itself = {"job": job, "uid": job.uid, "is_live": is_live}
    of_runs = {"job": runs, "uid": runs.uid, "is_live": is_live}
    parts = {
        "head": head(visit, job, "overview"),
        "notice": Part("_job_notice.html", of_job_itself | notice(job, runs, wanted)),
        "facts": Part("_job_facts.html", {**of_job_itself, "asked": wanted}),
        "curves": _objective(job, job.tuning)
        if job.tuning
        else Part("_job_curves.html", of_runs | {"charts": charts, "restarts": restarts}),
        "replicas": Part("_job_replicas.html", of_runs),
        "tail": Part("_job_tail.html", {**of_runs, "page": tail, "is_live": tail_lives}),
        "story": Part("_job_story.html", of_job_itself | story(timeline, visit)),
    }
    # Notifications about any job update the page of a waiting job, a tuning job or a pipeline, because such a
    # page also shows effects of other jobs.
    is_alone = job.tuning is UNSET and job.pipeline is UNSET and job.state not in _WAITING
    return View(
        job.display_name or job.job_id,
        "job.html",
        {"job": job},
        parts=parts,
        subject=JobUid(int(job.uid)) if is_alone else None,
        lives=is_live,
        place="jobs",
    )


def notice(job: JobDescription, runs: JobDescription, wanted: ResourceSummary) -> dict[str, object]:
    """Return the values of the notice at the top of the page: the cause of a failure or wait, and the
    progress. `runs`: the job of a pipeline, otherwise the job itself."""
    failure = runs.failure or job.failure
    return {
        "error": job.error or None,
        "summary": error_line(job.error),
        "failure": failure,
        "kept": runs.autopsies or (),
        "runs": runs,
        "tail": excerpt_of(failure.tail) if failure else "",
        "asked": wanted,
        "lasted": duration_of(job),
        "is_waiting": job.state in _WAITING and bool(job.waiting or job.waits),
        "progress": runs.progress or job.progress or None,
    }


def story(timeline: Timeline, visit: Visit) -> dict[str, object]:
    """Return the newest entries of the timeline, or all entries if the address has the parameter `story`."""
    is_whole = bool(visit.query("story"))
    entries = timeline.entries if is_whole else timeline.entries[-_MAX_ENTRIES:]
    return {"entries": entries, "more": len(timeline.entries) - len(entries), "is_whole": is_whole}


class Chart(Struct, frozen=True):
    """One metric over its steps."""

    name: str
    #: JSON for the script.
    data: str
    #: For each line: its name, its last value and its values.
    latest: tuple[tuple[str, float | str, list[float]], ...] = ()


async def read_curves(
    visit: Visit, uid: str, points: int, charts: int, *, replicas: bool = False
) -> Sequence[JobCurve]:
    """Return the curves of a job, in the range and form that the address specifies.

    Only the first `charts` metrics, starting with the loss, have points: at most `points` per curve.
    `replicas`: whether to include replicas other than the primary.
    """
    form = {name: visit.query(name) for name in ("begin", "end", "means")}
    counts = {"points": str(points), "charts": str(charts), "replicas": "true" if replicas else ""}
    return (await visit.get(JobCurves, of_job(uid, "/curves"), **counts, **form)).curves


def _objective(job: JobDescription, tuning: Tuning) -> Part:
    values = {
        trial.number: trial.value
        for trial in (job.trials or ())[-_MAX_POINTS:]
        if trial.value is not None and isfinite(trial.value)
    }
    data = objective_data(values, tuning.metric, tuning.goal == "MAXIMIZE")
    return Part("_trials_objective.html", {"data": data})


def _restarts(timeline: Timeline) -> list[float]:
    """Return the times of the last program restarts, in seconds since 1970."""
    starts: dict[str, list[float]] = {}
    for entry in timeline.entries:
        if entry.kind == "replica_started":
            starts.setdefault(str(entry.details["replica"]), []).append(epoch(entry.at))
    return sorted(time for times in starts.values() for time in times[1:])[-_MAX_RESTARTS:]


async def _curve_charts(visit: Visit, job: JobDescription, restarts: Sequence[float]) -> tuple[Chart, ...]:
    """Return the charts of a job. The loss comes first, metrics other than training results come last.
    Several replicas are one line with a band, or one line each if the address has the parameter `replicas`.
    """
    lines: dict[str, dict[str, dict[str, JobCurve]]] = {}
    has_several = len(job.replicas or ()) > 1
    curves = await read_curves(visit, job.uid, _MAX_POINTS, _CHARTS, replicas=has_several)
    apart = bool(visit.query("replicas"))
    since = start_of(curves) if visit.query("axis") == "time" else None
    for curve in curves:
        if curve.count > 1 and curve.points:
            measure, part = split_name(curve.tag)
            where = part or curve.run or ("" if curve.unit else curve.tag) or "train"
            key = f"{where} {curve.replica}".rstrip() if apart else where
            own = lines.setdefault(measure or curve.tag, {})
            # If another run or tag has a metric with the same name, use the full name of this curve instead.
            if curve.replica in own.get(key, {}):
                key = f"{curve.run} {curve.tag}".lstrip()
            own.setdefault(key, {})[curve.replica] = curve
    names = sorted(lines, key=rank)
    return tuple([_curve_chart(name, lines[name], restarts, since) for name in names])


def fold_lines(lines: Sequence[Mapping[float, float]]) -> list[dict[float, float]]:
    """Return the median, minimum and maximum of several lines.

    The horizontal axis is divided into cells, which are wide enough that most lines have points in each cell.
    Each line counts with the mean of its points in the cell.
    """
    from statistics import fmean, median

    first, last = min(map(min, lines)), max(map(max, lines))
    # The median number of points is used, so that a replica with few points does not make the other lines
    # coarse.
    count = sorted(map(len, lines))[len(lines) // 2]
    bounds = [first + (last - first) * number / count for number in range(1, count)]
    curves: list[dict[float, float]] = [{}, {}, {}]
    cells = [[(bisect(bounds, place), value) for place, value in line.items()] for line in lines]
    for number in range(count):
        values = [[value for cell, value in line if cell == number] for line in cells]
        means = [fmean(near) for near in values if near]
        for curve, value in zip(curves, (median, min, max), strict=True):
            if means:
                curve[first + (last - first) * (number + 0.5) / count] = value(means)
    return curves


def start_of(curves: Iterable[JobCurve]) -> float:
    """Return the time of the first point of the curves in seconds since 1970, or 0 without points."""
    return min((epoch(curve.points[0].at) for curve in curves if curve.points), default=0.0)


def position_of(point: CurvePoint, since: float | None) -> float:
    """Return the horizontal position of a point: the seconds after `since`, or its step."""
    return point.step if since is None else round(epoch(point.at) - since, 3)


def _curve_chart(
    name: str, lines: Mapping[str, Mapping[str, JobCurve]], restarts: Sequence[float], since: float | None
) -> Chart:
    curves = [curve for by_replica in lines.values() for curve in by_replica.values()]
    units = {curve.unit or "step" for curve in curves}
    # Lines in epochs and lines in steps can only be compared by time.
    if len(units) > 1:
        since = start_of(curves)
    drawn: dict[str, Mapping[float, float | str]] = {}
    edges: list[str] = []
    latest: list[tuple[str, float | str, list[float]]] = []
    for where, by_replica in lines.items():
        replicas = tuple(by_replica.values())
        own = [{position_of(at, since): at.value for at in curve.points} for curve in replicas]
        numbers = [{at: v for at, v in line.items() if isinstance(v, float)} for line in own]
        drawn[where] = own[0]
        if len(own) > 1 and all(numbers):
            bounds = [f"{where}, lowest", f"{where}, highest"]
            drawn |= zip([where, *bounds], fold_lines(numbers), strict=True)
            edges += bounds
        values = [at.value for at in replicas[0].points if isinstance(at.value, float)]
        if not replicas[0].replica:
            latest.append((where, replicas[0].value, values))
    # A restart is marked at the primary's next point.
    primary = [curve for curve in curves if not curve.replica]
    points = sorted((epoch(at.at), position_of(at, since)) for curve in primary for at in curve.points)
    first = [bisect(points, (start,)) for start in restarts]
    marks = [points[index][1] for index in first if index < len(points)]
    label = units.pop().title() if since is None else "Time"
    return Chart(name, curve_data(drawn, label, marks, edges), tuple(latest))


async def usage(visit: Visit) -> View:
    """`/jobs/J/usage`: charts of the resource usage of the replicas."""
    job = await describe(visit)
    used = await visit.get(Usage, of_job(job.uid, "/usage"), points="400")
    charts = Part("_job_usage.html", {"used": used, "data": usage_data(used)})
    return tab_view(visit, job, "usage", {}, {"charts": charts})


def usage_data(used: Usage) -> str:
    """Return the data of the charts as JSON. For each replica, the data has the times (seconds since 1970)
    and the columns of values."""
    replicas = [
        {
            "task": replica.task,
            "at": [round(epoch(point.at), 3) for point in replica.points],
            "cpus": [point.cpus for point in replica.points],
            "memory": [point.memory_bytes for point in replica.points],
            "disk": [point.disk_bytes for point in replica.points],
            "limits": {"cpus": replica.vcpus or None, "memory": replica.limit_bytes or None},
            "gpus": list(zip_longest(*(point.gpus for point in replica.points))),
        }
        for replica in used.replicas
    ]
    return json.dumps(replicas)


async def spec(visit: Visit) -> View:
    """`/jobs/J/spec[?replica=R]`: the specification as submitted, as executed, and as commands for other
    clients."""
    job = await describe(visit)
    launch = None
    if job.replicas is not UNSET and job.replicas:
        launch = await visit.get(Launch, of_job(job.uid, "/launch"), replica=visit.query("replica"))
    resource: dict[str, Any] = dict(job.resource) if job.resource else {}
    text = json.dumps(resource, indent=2, ensure_ascii=False)
    submitted = {name: resource[name] for name in INPUTS if name in resource}
    snippets: list[tuple[str, str]] = []
    if job.kind not in ("pipeline", "pipeline_job"):
        parts = job.name.split("/")
        region = parts[3] if job.api == Api.VERTEX else visit.facts.region
        forms = (("gcloud", SnippetForm.GCLOUD), ("Python", SnippetForm.PYTHON))
        snippets = [
            (name, snippet(form, Api(job.api), job.project, region, submitted)) for name, form in forms
        ]
    values = {
        "text": text,
        "others": snippets,
        "ran": launch,
        "command": shlex.join(launch.command) if launch else "",
        "cluster": json.dumps(launch.cluster_spec, indent=2) if launch and launch.cluster_spec else "",
    }
    return tab_view(visit, job, "spec", values, lives=False)


async def open_page(visit: Visit) -> Response:
    """`GET /jobs/J/ports/P`: redirect the browser to a web page of a job, by a name or a port number.
    Raises CallRejected."""
    order = {"port": visit.variables["port"]}
    try:
        ticket = await visit.do("POST", of_job(visit.variables["job"], ":shell"), order)
    except CallRejected as refused:
        is_denied = refused.code is StatusCode.PERMISSION_DENIED
        if is_denied or (job := await describe(visit)).state in {*FINAL, "RUNNING"}:
            raise
        # Redirect to the page of the job, which contains the link as soon as the job runs.
        return redirect(job_path(job.uid))
    assert isinstance(ticket, ShellTicket)
    if not ticket.uri:
        raise CallRejected(
            StatusCode.FAILED_PRECONDITION,
            "Pages of jobs need their own host names, and this service has none. Ask its operator to set "
            "allowed_hosts, for example to *.jobs.example.org. To open the page without host names, run "
            "trainshed jobs forward JOB PORT.",
        )
    return redirect(ticket.uri)


async def retry(visit: Visit) -> Response:
    """`POST /jobs/J/retry`: submit a copy of a job that failed, expired or was cancelled. The copy of a
    pipeline job uses the outputs of its successful tasks. Raises CallRejected."""
    return redirect(await _submit_copy(visit, visit.variables["job"]))


async def _submit_copy(visit: Visit, target: str) -> str:
    """Submit a copy of a job that did not succeed, and return the path of the copy's page. Raises
    CallRejected."""
    job = await describe(visit, target)
    if job.state not in _UNSUCCESSFUL:
        raise CallRejected(
            StatusCode.FAILED_PRECONDITION,
            f"{job.name} is {job.state}. You can retry only jobs that failed, expired or were cancelled. "
            "To submit a copy of this job, use Clone.",
        )
    if job.pipeline_job:
        body = retry_of(await visit.resource(job.name), job.uid)
        path = f"/v1/{quote(job.name.rpartition('/')[0])}"
        made = await visit.backend.call(visit.principal, "POST", path, json.dumps(body).encode())
        return job_path((await describe(visit, made["name"])).uid)
    api, parts = Api(job.api), job.name.split("/")
    region = parts[3] if api is Api.VERTEX else ""
    body = copy_of(api, job.resource or {}, visit.now, job.uid)
    return await create_job(visit, body, job.project, region)


async def create_job(visit: Visit, body: dict[str, Any], project: str, region: str) -> str:
    """Create a job from the JSON of its API's create method, and return the path of the job's page. Raises
    CallRejected."""
    api = api_of(body)
    path = collection_of(api, body, project, region)
    made = await visit.backend.call(visit.principal, "POST", path, json.dumps(body).encode())
    if api is Api.ML:
        described = await describe(visit, f"projects/{project}/jobs/{made['jobId']}")
        return job_path(described.uid)
    return job_path(id_of(str(made["name"])))


async def explain_job(visit: Visit, body: dict[str, Any], project: str, region: str) -> Explanation:
    """Return the plan of a job (where and when it would run) from its JSON, without creating it. Raises
    CallRejected."""
    request = {"api": api_of(body).value, "project": project, "location": region, "job": body}
    answer = await visit.do("POST", "jobs:explain", request)
    assert isinstance(answer, Explanation)
    return answer


async def cancel(visit: Visit) -> Response:
    """`POST /jobs/J/cancel`: cancel the job, and show its page. Raises CallRejected."""
    target = visit.variables["job"]
    await _cancel(visit, target)
    return redirect(job_path(target))


async def _cancel(visit: Visit, target: str) -> object:
    return await visit.do("POST", of_job(target, ":cancel"))


_MARKED: Final[Mapping[str, Callable[[Visit, str], Awaitable[object]]]] = {
    "cancel": _cancel,
    "delete": lambda visit, target: visit.do("DELETE", of_job(target)),
    "retry": _submit_copy,
}


async def change_selected(visit: Visit) -> Response:
    """`POST /marked/D`: apply the action D (cancel, delete or retry) to the selected jobs, and redirect to
    the list. Raises CallRejected with the errors of the jobs for which the action failed."""
    action = _MARKED.get(visit.variables["does"])
    if action is None:
        raise CallRejected(
            StatusCode.NOT_FOUND, "This action does not exist. You can cancel, delete or retry selected jobs."
        )
    targets = visit.form.get("job", "").split()
    faults: list[str] = []
    for target in targets:
        try:
            await action(visit, target)
        except CallRejected as refused:
            faults.append(str(refused))
    if faults:
        summary = f"The action succeeded for {len(targets) - len(faults)} of {len(targets)} jobs."
        raise CallRejected(StatusCode.FAILED_PRECONDITION, "\n".join((summary, *faults)))
    return redirect(f"/?{urlencode(parse_qsl(visit.form.get('query', '')))}")


_DRILLS: Final = (
    ("kill", "Kill", "Kill the replica’s program, as if its machine had failed."),
    ("segv", "Crash", "Send SIGSEGV to its main process."),
    ("oom", "Out of memory", "Kill its main process, as the memory limit does."),
    ("maintenance", "Maintenance", "Remove the replica from its node: SIGTERM, then SIGKILL."),
    ("preempt", "Preemption", "Revoke the attempt’s capacity."),
    ("stockout", "Stock-out", "Fail the attempt for lack of capacity."),
    ("internal", "Internal error", "Fail the attempt with an error of the service."),
)
"""(API value, name, description) for each kind of drill, a fault that a user injects (docs/drills.md)."""
_OUTCOMES: Final = {"resumed": "good", "started_over": "bad", "unknown": "wait"}
"""The colour class of each outcome in a resume report."""


async def drills(visit: Visit) -> View:
    """`/jobs/J/drills`: the form of a new drill (a fault that the user injects), and the report on previous
    drills."""
    job = await describe(visit)
    report = await visit.get(ResumeReport, of_job(job.uid, "/resumeReport"))
    is_over = job.state in FINAL
    results = {
        "findings": report.drills[::-1],
        "names": {word: name for word, name, _ in _DRILLS},
        "result": report.result,
        "outcomes": _OUTCOMES,
        "is_over": is_over,
    }
    values = {"is_over": is_over, "kinds": _DRILLS}
    return tab_view(visit, job, "drills", values, {"drills": Part("_job_drills.html", results)})


async def order_drill(visit: Visit) -> Response:
    """`POST /jobs/J/drills`: inject a fault (drill) now or at a log line. Raises CallRejected."""
    target, form = visit.variables["job"], visit.form
    body = {"kind": form.get("kind", ""), "replica": form.get("replica", "")}
    if form.get("when") == "line":
        body["atLine"] = form.get("line", "")
        if not body["atLine"]:
            text = "Enter a regular expression for the log line."
            raise CallRejected(StatusCode.INVALID_ARGUMENT, f"line: {text}", (Violation("line", text),))
    await visit.do("POST", of_job(target, ":drill"), {k: v for k, v in body.items() if v})
    return redirect(job_path(target, "drills"))
