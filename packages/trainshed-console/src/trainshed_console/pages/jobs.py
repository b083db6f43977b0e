"""The list of jobs of both APIs, newest first, and the texts of its rows."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

from msgspec import UNSET, UnsetType

from trainshed.wire.status import CallRejected
from trainshed.wire.trainshed_v1.jobs import JobError, JobList, JobSummary
from trainshed_console.rendering import clean, epoch
from trainshed_console.views import Part, View, Visit

_PAGE_SIZE: Final = 30
"""Rows per page."""
_MAX_ROWS: Final = 300
"""Maximum number of rows that the event stream updates."""
_CONTEXT_LINES: Final = 3
"""Number of lines that are shown before a traceback."""
_EXITED: Final = re.compile(r"The replica (\S+) exited with a non-zero status of (\d+)\..*")
_STATUS: Final = "Exit status "
_CAUSE_PREFIXES: Final = ("cause: ", "╰─▶ ")
"""Prefixes of the line of an installer's output that contains the cause."""
_MAX_LAST_LINES: Final = 20
"""Number of last lines that are shown if a program printed no traceback."""
_MAX_SORTED: Final = 200
"""Number of newest jobs that are sorted by a column other than age."""
_LABEL: Final = "labels."
_GROUP_FIELDS: Final = {"user": "user", "project": "project", "kind": "kind"}
"""Fields by which jobs are grouped, by name. Labels have the name `labels.KEY`."""
_MAX_COUNT: Final = 1000
"""Highest number of jobs in a state that the API counts."""
AGES: Final = {"1h": "The last hour", "1d": "The last day", "7d": "The last week", "30d": "30 days"}
"""Names of the time spans of the filter."""
NARROWING: Final = ("user", "project", "label", "machine", "metric", "since", "search")
"""Filter parameters of the address, except for the state."""
FILTERS: Final = (
    ("", "All"),
    ("RUNNING", "Running"),
    ("QUEUED,PREPARING", "Waiting"),
    ("SUCCEEDED", "Succeeded"),
    ("FAILED", "Failed"),
    ("CANCELLED", "Cancelled"),
)


async def page(visit: Visit) -> View:
    """`/` and `/jobs`: the jobs, filtered and sorted as the address specifies. More rows are loaded on
    scrolling."""
    token, order, group = visit.query("page"), visit.query("sort"), visit.query("group")[:200]
    if group not in _GROUP_FIELDS and not group.startswith(_LABEL):
        group = ""
    column = order.removeprefix("-") if order.removeprefix("-") in _COLUMNS else ""
    narrowing = {name: visit.query(name) for name in NARROWING if visit.query(name)}
    is_whole = bool(column or group)
    rows_shown = str(_MAX_SORTED if is_whole else _PAGE_SIZE if token else _visible_rows(visit.query("rows")))
    listed, fault = JobList(), ""
    try:
        listed = await visit.get(
            JobList,
            "jobs",
            **narrowing
            | {"project": visit.project, "search": visit.query("search")[:200]}
            | {"since": since(visit)},
            state=visit.query("state"),
            glance="true",
            trend="true",
            counts="" if token or narrowing.keys() - {"project"} else "true",
            limit=rows_shown,
            pageToken=token,
        )
    except CallRejected as refused:
        fault = next((wrong.description for wrong in refused.violations if wrong.field == "metric"), "")
        if not fault:
            raise
    jobs: Sequence[JobSummary] = listed.jobs
    if column:
        jobs = sort_jobs(jobs, _COLUMNS[column], descends=order.startswith("-"))
    own = visit.principal.email
    rows: dict[str, Part] = {}
    for name, members in group_jobs(jobs, group):
        if group:
            heading = {"name": name, "count": len(members)}
            rows[f"group-{quote(name, safe='')}"] = Part("_job_group.html", heading)
        for job in members:
            rows[f"job-{job.uid}"] = Part("_job_row.html", {"job": job, "own": own, **row(job)})
    further = "" if is_whole else visit.next_page(listed.next_page_token)
    is_filtered = bool(narrowing.keys() - {"project"} or visit.query("state"))
    return View(
        "Jobs",
        "_job_rows.html" if token else "jobs.html",
        {
            "jobs": listed.jobs,
            "filters": [(value, label, _count_text(listed, value)) for value, label in FILTERS],
            "narrowing": narrowing,
            "fault": fault,
            "ages": AGES,
            "order": order if column else "",
            "group": group,
            "groups": _groups(listed.jobs, group),
            "is_cut": bool(is_whole and listed.next_page_token),
            "is_filtered": is_filtered,
            # `/` is not used here: the script's request accepts any media type, and for such requests `/`
            # returns the health of the service (`api.rest`).
            "following": further and f"/jobs?{further.partition('?')[2]}",
            "is_empty": not listed.jobs and not is_filtered and not token,
        },
        parts=rows,
        lists={"jobs": tuple(rows)},
        whole=frozenset({"jobs"}) if is_whole or not listed.next_page_token else frozenset[str](),
        lives=not token,
        place="jobs",
        status=400 if fault else 200,
    )


def _visible_rows(rows: str) -> int:
    """Return the number of rows in the browser, within limits. The event stream updates these rows."""
    is_number = rows.isascii() and rows.isdecimal() and len(rows) < 5
    return min(max(int(rows), _PAGE_SIZE), _MAX_ROWS) if is_number else _PAGE_SIZE


def since(visit: Visit) -> str:
    """Return the start of the time span in the address; "" if the address has no time span."""
    text = visit.query("since")
    if text not in AGES:
        return ""
    unit = {"h": "hours", "d": "days"}[text[-1]]
    start = datetime.fromtimestamp(visit.now // 10**9, UTC) - timedelta(**{unit: int(text[:-1])})
    return start.isoformat()


def _count_text(listed: JobList, states: str) -> str:
    """Return the number of jobs in these states as text, or "" if the API did not count them."""
    if listed.counts is UNSET or not states:
        return ""
    counts = [listed.counts.get(state, 0) for state in states.split(",")]
    return f"{sum(counts):,}" + ("+" if max(counts) >= _MAX_COUNT else "")


def sort_jobs(
    jobs: Sequence[JobSummary], key: Callable[[JobSummary], Any], *, descends: bool
) -> list[JobSummary]:
    """Return the jobs sorted by a column. Jobs without a value in this column come last."""
    with_value = [job for job in jobs if key(job) not in (None, "")]
    without_value = [job for job in jobs if key(job) in (None, "")]
    return sorted(with_value, key=key, reverse=descends) + without_value


def _groups(jobs: Sequence[JobSummary], group: str) -> dict[str, str]:
    """Return the fields by which these jobs can be grouped, including the label in the address."""
    keys = {f"{_LABEL}{key}" for job in jobs for key in job.labels}
    keys |= {group} if group.startswith(_LABEL) else set()
    return {**_GROUP_FIELDS, **{key: key.replace(_LABEL, "label ", 1) for key in sorted(keys)}}


def group_jobs(jobs: Sequence[JobSummary], group: str) -> list[tuple[str, list[JobSummary]]]:
    """Return (name, jobs) for each group, sorted by name.

    The jobs of a group remain in order. Jobs without the label are the last group, with the name "". If
    `group` is "", all jobs are one group.
    """
    if not group:
        return [("", list(jobs))]
    groups: dict[str, list[JobSummary]] = {}
    is_label = group.startswith(_LABEL)
    for job in jobs:
        name = job.labels.get(group.removeprefix(_LABEL), "") if is_label else getattr(job, group)
        groups.setdefault(name, []).append(job)
    return sorted(groups.items(), key=lambda item: (not item[0], item[0]))


def _value(job: JobSummary) -> float | None:
    """Return the newest value of the metric in a job's row. Return None if the job has no value, or if the
    value is not a number."""
    last = job.trend.values[-1] if job.trend else None
    return last if isinstance(last, float) else None


def row(job: JobSummary) -> dict[str, object]:
    """Return the values of a row in addition to the job's fields."""
    return {
        "title": clean(job.display_name or job.job_id),
        "said": error_line(job.error),
        "began": epoch(job.create_time),
        "lasted": duration_of(job),
    }


def duration_of(job: JobSummary) -> float | None:
    """Return the seconds from a job's start to its end, or None if it has no start or end."""
    if not (job.end_time and job.start_time):
        return None
    return epoch(job.end_time) - epoch(job.start_time)


_COLUMNS: Final[dict[str, Callable[[JobSummary], Any]]] = {
    "state": lambda job: job.state,
    "name": lambda job: (job.display_name or job.job_id).lower(),
    "who": lambda job: job.user,
    "machine": lambda job: (sum(job.accelerators.values()), sum(job.machines.values())),
    "value": _value,
    "age": lambda job: -epoch(job.create_time),
    "took": duration_of,
}


def excerpt_of(tail: str) -> str:
    """Return the lines that explain why a program ended: the first traceback and a few lines before it, or
    the last lines if there is no traceback."""
    lines = tail.splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith("Traceback (most recent call")]
    return "\n".join(lines[max(0, starts[0] - _CONTEXT_LINES) :] if starts else lines[-_MAX_LAST_LINES:])


def error_line(error: JobError | UnsetType | None) -> str:
    """Return the most useful line of a job's error, with the cause of an exit status. Return "" if the job
    has no error."""
    if not error:
        return ""
    line = first_line(error.message)
    lines = [text.strip() for text in error.reason.splitlines() if text.strip()]
    if not lines or not line.startswith(_STATUS):
        return line
    cause = next((text for text in lines if text.startswith(_CAUSE_PREFIXES)), lines[0])
    return f"{cause.removeprefix('cause: ')} ({line})"[:300]


def first_line(text: str) -> str:
    """Return an error's most useful line, at most 300 characters: the exception of its first traceback,
    otherwise its first line. Return "" for an empty text."""
    after = text.partition("Traceback (most recent call last):")[2].splitlines()
    raised = [line for line in after if line and not line[0].isspace()]
    lines = raised or [line for line in text.splitlines() if line.strip()] or [""]
    return _EXITED.sub(r"Exit status \2 of \1", lines[0].strip())[:300]
