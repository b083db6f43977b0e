"""The page of a job's log, which loads older lines on scrolling and shows new lines as programs print them.
Also the page that searches the logs of many jobs."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

import msgspec
from msgspec import Struct

from trainshed.core.names import SERVICE, SERVICE_TASK, JobUid, ReplicaId
from trainshed.httpd.messages import Response, StreamedResponse, sized_response
from trainshed.store.logs.lines import LogCursor
from trainshed.wire.json import encode_text
from trainshed.wire.trainshed_v1.jobs import JobDescription, JobList, JobSummary
from trainshed.wire.trainshed_v1.timeline import LogLine, LogPage, PagedLine
from trainshed_console.live import KEEPALIVE_INTERVAL
from trainshed_console.pages.job import FINAL, describe, tab_view
from trainshed_console.pages.jobs import AGES, since
from trainshed_console.rendering import clean, color_pieces, epoch, nanos
from trainshed_console.views import View, Visit, of_job

_FILTERS: Final = ("replica", "severity", "search")
_PLACES: Final = ("before", "after", "from", "limit")
_DOWNLOAD_PAGE_SIZE: Final = 2_000
"""Number of lines that a download reads at a time."""
_ERRORS: Final = ("ERROR", "CRITICAL", "ALERT", "EMERGENCY")
_LEVELS: Final = {**dict.fromkeys(_ERRORS, "errors"), "WARNING": "warnings"}
SEVERITIES: Final = (("", "All lines"), ("WARNING", "Warnings and errors"), ("ERROR", "Errors"))
_MAX_NEW_LINES: Final = 400
"""Maximum number of new lines in one response. Nobody can read faster output."""
_MAX_BYTES: Final = 1 << 20
"""Size in bytes at which no further lines are added to a response."""


async def page(visit: Visit) -> View:
    """`/jobs/J/logs`: the page, without log lines. A script loads the lines."""
    job = await describe(visit)
    page = await visit.get(LogPage, of_job(job.uid, "/logPage"), limit="1")
    values = {"tasks": page.tasks, "severities": SEVERITIES}
    return tab_view(visit, job, "logs", values)


async def read(visit: Visit, **changes: str) -> LogPage:
    """Return the page of the log that the parameters of the address select. `changes`: parameters that
    replace those of the address. Raises CallRejected."""
    query = {name: visit.query(name) for name in (*_FILTERS, *_PLACES)} | changes
    return await visit.get(LogPage, of_job(visit.variables["job"], "/logPage"), **query)


async def lines(visit: Visit) -> Response:
    """`/jobs/J/lines`: the part of the log that the parameters of the address select, as JSON."""
    page = await read(visit)
    values = {
        "lines": [_row(line, line.place) for line in page.lines],
        "earlier": page.earlier,
        "later": page.later,
        "more": page.more,
        "over": page.over,
    }
    more = [(b"cache-control", b"no-store")]
    return sized_response(encode_text(values), b"application/json", more=more)


async def following(visit: Visit) -> Response:
    """`/jobs/J/lines/new[?after=PLACES][&replica=R]`: the newest lines as JSON. The response waits up to 15
    seconds for a line. `after`: the last known line of each replica, in the form of the API."""
    job, news = await describe(visit), visit.backend.notices
    uid = JobUid(int(job.uid))
    count = news.count(uid)
    written = await _read_new_lines(visit, job)

    async def later() -> AsyncGenerator[bytes]:
        if written != _NOTHING:
            yield encode_text(written)
            return
        await news.wait_beyond(uid, count, KEEPALIVE_INTERVAL)
        if visit.is_valid():
            yield encode_text(await _read_new_lines(visit, await describe(visit)))

    return StreamedResponse(later(), visit.closing, b"application/json")


_NOTHING: Final[Mapping[str, Any]] = {"lines": [], "over": False}


async def _read_new_lines(visit: Visit, job: JobDescription) -> Mapping[str, Any]:
    query = {name: (visit.query(name),) for name in ("after", "replica")} | {"tail": (str(_MAX_NEW_LINES),)}
    lines = await visit.backend.lines(visit.principal, of_job(job.uid, "/logs"), query)
    text, is_whole = b"", True
    async with aclosing(lines):
        async for part in lines:
            text += part
            if len(text) >= _MAX_BYTES:
                is_whole = False
                break
    rows = [_row(line) for line in _decoder.decode_lines(text)]
    return {"lines": rows, "over": is_whole and job.state in FINAL}


def _row(line: LogLine, cursor: str = "") -> list[Any]:
    """Return a line in the form that the script of the page expects, with clean text. `cursor`: the cursor of
    the line, or "" to compute it."""
    return [
        line.at,
        line.task,
        line.severity,
        clean(line.message),
        f"{line.replica}/{line.attempt}/{line.n}",
        cursor or _cursor(line),
        color_pieces(line.message),
    ]


def _cursor(line: LogLine) -> str:
    """Return the cursor of a line: its position among all lines. A cursor is a value of the parameters
    `before` and `after` of `/lines`."""
    replica = SERVICE if line.task == SERVICE_TASK else ReplicaId.parse(line.replica)
    return str(LogCursor(nanos(line.at), replica, line.attempt, line.n))


async def download(visit: Visit) -> Response:
    """`/jobs/J/log.txt`: the log lines that match the filters in the address, as a file."""
    job = await describe(visit)
    first = await read(visit, before="", after="", limit="1", **{"from": "1970-01-01T00:00:01Z"})
    answer = StreamedResponse(_stream_lines(visit, first), visit.closing, b"text/plain; charset=utf-8")
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in job.job_id)
    answer.headers.append((b"content-disposition", f'attachment; filename="{name}.log"'.encode()))
    return answer


async def _stream_lines(visit: Visit, first: LogPage) -> AsyncGenerator[bytes]:
    page = first
    while True:
        text = [f"{line.at} {line.task} {line.severity} {line.message}\n" for line in page.lines]
        if text:
            yield "".join(text).encode("utf-8", "replace")
        if not page.later or not (page.lines or page.more) or not visit.is_valid():
            return
        page = await read(visit, after=page.later, before="", limit=str(_DOWNLOAD_PAGE_SIZE), **{"from": ""})


_BATCH_SIZE: Final = 5
"""Number of jobs that are listed at a time."""
_TIME_LIMIT: Final = 0.7
"""Seconds after which no further jobs are searched for one response."""
_CONFIRM_INTERVAL: Final = 1000
"""Number of searched jobs after which the page asks the user before it continues."""
_MAX_COUNTED: Final = 200
"""Maximum number of matching lines that are counted per job."""
_MAX_LINES: Final = 3
"""Maximum number of lines that are shown per job."""
_TRIALS: Final = 100
_MAX_LINE_WIDTH: Final = 240
"""Maximum characters that are shown of a line, starting shortly before the text."""


class Hits(Struct, frozen=True):
    """A job whose log contains the text."""

    job: JobSummary
    #: The newest matching lines, oldest first.
    lines: tuple[PagedLine, ...]
    #: Number of matching lines by severity, among at most `_MAX_COUNTED` lines.
    counts: Mapping[str, int]
    #: Whether only the end of the log was searched.
    is_partial: bool


async def search(visit: Visit) -> View:
    """`/logs?search=TEXT[&since=A][&severity=S]`: the newest jobs whose logs contain a text. Each response
    searches for about a second. The page then requests the next response."""
    token, text = visit.query("page"), visit.query("walked")
    walked = before = int(text) if re.fullmatch("[0-9]{1,9}", text) else 0
    jobs: list[Hits] = []
    start = asyncio.get_running_loop().time()
    more = bool(visit.query("search").strip())
    while more:
        narrowing = {name: visit.query(name) for name in ("user", "label", "machine")}
        job_list = await visit.get(
            JobList, "jobs", project=visit.project, limit=str(_BATCH_SIZE), pageToken=token, **narrowing
        )
        for job in job_list.jobs:
            jobs += await _hits_below(visit, job)
        walked += len(job_list.jobs)
        token = job_list.next_page_token
        more = bool(token) and not await visit.request.is_gone()
        if asyncio.get_running_loop().time() - start >= _TIME_LIMIT:
            break
    totals = sum((Counter(hits.counts) for hits in jobs), Counter[str]())
    return View(
        "Logs",
        "_log_hits.html" if visit.query("page") else "logs.html",
        {
            "jobs": jobs,
            "totals": totals,
            "walked": walked,
            "asks": walked // _CONFIRM_INTERVAL > before // _CONFIRM_INTERVAL,
            "following": visit.with_query(page=token, walked=str(walked)) if more else "",
            "text": visit.query("search").strip(),
            "ages": AGES,
            "severities": SEVERITIES,
            "parts_of": parts_of,
            "epoch": epoch,
        },
        place="logs",
    )


async def _hits_below(visit: Visit, job: JobSummary) -> list[Hits]:
    """Return the hits in the log of a job or of its child jobs. Stop when the visitor has disconnected."""
    if await visit.request.is_gone():
        return []
    if job.kind == "custom":
        hits = await _hits(visit, job)
        return [hits] if hits else []
    made = await visit.get(JobList, "jobs", parent=job.name, limit=str(_TRIALS))
    return [hits for child in made.jobs for hits in await _hits_below(visit, child)]


async def _hits(visit: Visit, job: JobSummary) -> Hits | None:
    start = since(visit)
    if start and job.end_time and epoch(job.end_time) < epoch(start):
        return None
    # A visitor may have permission to list the jobs of a project, but not to read their logs.
    page = await visit.get_if_allowed(
        LogPage,
        of_job(job.uid, "/logPage"),
        search=visit.query("search").strip(),
        severity=visit.query("severity"),
        limit=str(_MAX_COUNTED),
    )
    # Filter the lines by time here, because the API does not. Both times are UTC.
    lines = [line for line in page.lines if line.at >= start[:19]] if page else []
    if page is None or not lines:
        return None
    counts = Counter(_LEVELS.get(line.severity, "other") for line in lines)
    return Hits(job, tuple(lines[-_MAX_LINES:]), counts, page.more and len(lines) == len(page.lines))


def parts_of(message: str, text: str) -> list[tuple[str, bool]]:
    """Split a line at the occurrences of a text. Return its clean pieces, each with whether it is an
    occurrence."""
    line = clean(message)
    first = re.search(re.escape(text), line, re.IGNORECASE)
    start = max(0, first.start() - _MAX_LINE_WIDTH // 4) if first else 0
    pieces = re.split(f"({re.escape(text)})", line[start : start + _MAX_LINE_WIDTH], flags=re.IGNORECASE)
    return [(piece, place % 2 == 1) for place, piece in enumerate(pieces) if piece]


_decoder: Final = msgspec.json.Decoder(LogLine)
