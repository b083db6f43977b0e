"""The page of a job's log: its lines are loaded where the reader scrolls, and new ones as they come.
The page that searches the logs of many jobs, a few at a time.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

import msgspec
from msgspec import Struct

from trainshed.core.names import SERVICE, SERVICE_TASK, JobUid, ReplicaId
from trainshed.httpd.messages import Response, Streamed, sized
from trainshed.store.logs.lines import LogCursor
from trainshed.wire.json import encode_text
from trainshed.wire.trainshed_v1.jobs import JobDescription, JobList, JobSummary
from trainshed.wire.trainshed_v1.timeline import LogLine, LogPage, PagedLine
from trainshed_console.live import SILENCE
from trainshed_console.pages.job import FINAL, describe, tab_view
from trainshed_console.pages.jobs import AGES, since
from trainshed_console.rendering import clean, coloured, epoch, nanos
from trainshed_console.visits import View, Visit, of_job

_FILTERS: Final = ("replica", "severity", "search")
_PLACES: Final = ("before", "after", "from", "limit")
_DOWNLOADED: Final = 2_000
"""Lines that a download reads at a time."""
_ERRORS: Final = ("ERROR", "CRITICAL", "ALERT", "EMERGENCY")
_LEVELS: Final = {**dict.fromkeys(_ERRORS, "errors"), "WARNING": "warnings"}
SEVERITIES: Final = (("", "All lines"), ("WARNING", "Warnings and errors"), ("ERROR", "Errors"))
_NEWEST: Final = 400
"""Most new lines that are sent at once: nobody can read what a faster program prints."""
_BYTES: Final = 1 << 20
"""Bytes after which no further lines are sent at once."""


async def page(visit: Visit) -> View:
    """`/jobs/J/logs`: the page without lines, which a script loads."""
    job = await describe(visit)
    page = await visit.get(LogPage, of_job(job.uid, "/logPage"), limit="1")
    values = {"tasks": page.tasks, "severities": SEVERITIES}
    return tab_view(visit, job, "logs", values)


async def read(visit: Visit, **changes: str) -> LogPage:
    """Return the page of the log that the address asks for; `changes` replace its parameters. Raises
    Refused."""
    query = {name: visit.query(name) for name in (*_FILTERS, *_PLACES)} | changes
    return await visit.get(LogPage, of_job(visit.variables["job"], "/logPage"), **query)


async def lines(visit: Visit) -> Response:
    """`/jobs/J/lines`: the part of the log that the address asks for, as JSON."""
    page = await read(visit)
    values = {
        "lines": [_row(line, line.place) for line in page.lines],
        "earlier": page.earlier,
        "later": page.later,
        "more": page.more,
        "over": page.over,
    }
    more = [(b"cache-control", b"no-store")]
    return sized(encode_text(values), b"application/json", more=more)


async def following(visit: Visit) -> Response:
    """`/jobs/J/lines/new[?after=PLACES][&replica=R]`: the lines after those places as JSON, once there are
    any, else after 15 seconds; of many the last ones. `after`: the last line that the browser has of each
    replica, as the API takes it."""
    job, news = await describe(visit), visit.backend.notices
    uid = JobUid(int(job.uid))
    count = news.count(uid)
    written = await _written(visit, job)

    async def later() -> AsyncGenerator[bytes]:
        if written != _NOTHING:
            yield encode_text(written)
            return
        await news.wait_beyond(uid, count, SILENCE)
        if visit.is_valid():
            yield encode_text(await _written(visit, await describe(visit)))

    return Streamed(later(), visit.closing, b"application/json")


_NOTHING: Final[Mapping[str, Any]] = {"lines": [], "over": False}


async def _written(visit: Visit, job: JobDescription) -> Mapping[str, Any]:
    query = {name: (visit.query(name),) for name in ("after", "replica")} | {
        "tail": (str(_NEWEST),)
    }
    lines = await visit.backend.lines(visit.principal, of_job(job.uid, "/logs"), query)
    text, is_whole = b"", True
    async with aclosing(lines):
        async for part in lines:
            text += part
            if len(text) >= _BYTES:
                is_whole = False
                break
    rows = [_row(line) for line in _decoder.decode_lines(text)]
    return {"lines": rows, "over": is_whole and job.state in FINAL}


def _row(line: LogLine, place: str = "") -> list[Any]:
    """Return a line as the script takes it. Its text is cleaned here. `place`: its place, if it is known."""
    return [
        line.at,
        line.task,
        line.severity,
        clean(line.message),
        f"{line.replica}/{line.attempt}/{line.n}",
        place or _cursor(line),
        coloured(line.message),
    ]


def _cursor(line: LogLine) -> str:
    """Return the line's place in the order of all lines, as `/lines` takes it for `before` and `after`."""
    replica = SERVICE if line.task == SERVICE_TASK else ReplicaId.parse(line.replica)
    return str(LogCursor(nanos(line.at), replica, line.attempt, line.n))


async def download(visit: Visit) -> Response:
    """`/jobs/J/log.txt`: the lines of the log that meet the address's filters, as a file."""
    job = await describe(visit)
    first = await read(visit, before="", after="", limit="1", **{"from": "1970-01-01T00:00:01Z"})
    answer = Streamed(_whole(visit, first), visit.closing, b"text/plain; charset=utf-8")
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in job.job_id)
    answer.headers.append((b"content-disposition", f'attachment; filename="{name}.log"'.encode()))
    return answer


async def _whole(visit: Visit, first: LogPage) -> AsyncGenerator[bytes]:
    page = first
    while True:
        text = [f"{line.at} {line.task} {line.severity} {line.message}\n" for line in page.lines]
        if text:
            yield "".join(text).encode("utf-8", "replace")
        if not page.later or not (page.lines or page.more) or not visit.is_valid():
            return
        page = await read(
            visit, after=page.later, before="", limit=str(_DOWNLOADED), **{"from": ""}
        )


_AT_ONCE: Final = 5
"""Jobs that are listed at a time to be searched."""
_SECONDS: Final = 0.7
"""After this time no further jobs are listed for one answer."""
_MOST_SEARCHED: Final = 1000
"""Jobs that are searched before the reader is asked whether to go on."""
_COUNTED: Final = 200
"""Most lines of a job that are counted."""
_SHOWN: Final = 3
"""Lines of a job that are shown."""
_TRIALS: Final = 100
_WIDTH: Final = 240
"""Characters of a line that are shown, from a little before the text on."""


class Hits(Struct, frozen=True):
    """A job whose log has lines with the text."""

    job: JobSummary
    #: The newest of them, oldest first.
    lines: tuple[PagedLine, ...]
    #: How many there are by severity; with more than `_COUNTED`, of so many.
    counts: Mapping[str, int]
    #: Only the end of the log was searched.
    is_partial: bool


async def search(visit: Visit) -> View:
    """`/logs?search=TEXT[&since=A][&severity=S]`: the newest jobs of the list that the address narrows whose
    logs have lines with a text. Each answer searches for about a second; the page then asks for the next."""
    token, text = visit.query("page"), visit.query("walked")
    walked = before = int(text) if re.fullmatch("[0-9]{1,9}", text) else 0
    jobs: list[Hits] = []
    began = asyncio.get_running_loop().time()
    more = bool(visit.query("search").strip())
    while more:
        narrowing = {name: visit.query(name) for name in ("user", "label", "machine")}
        listed = await visit.get(
            JobList,
            "jobs",
            project=visit.project,
            limit=str(_AT_ONCE),
            pageToken=token,
            **narrowing,
        )
        for job in listed.jobs:
            jobs += await _hits_below(visit, job)
        walked += len(listed.jobs)
        token = listed.next_page_token
        more = bool(token) and not await visit.request.is_gone()
        if asyncio.get_running_loop().time() - began >= _SECONDS:
            break
    totals = sum((Counter(hits.counts) for hits in jobs), Counter[str]())
    return View(
        "Logs",
        "_log_hits.html" if visit.query("page") else "logs.html",
        {
            "jobs": jobs,
            "totals": totals,
            "walked": walked,
            "asks": walked // _MOST_SEARCHED > before // _MOST_SEARCHED,
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
    """Return what is found in the log of a job, or in those of the jobs that it made; nothing more once the
    reader has gone away."""
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
    # One may list jobs of several projects and not read the logs of all of them.
    page = await visit.get_if_allowed(
        LogPage,
        of_job(job.uid, "/logPage"),
        search=visit.query("search").strip(),
        severity=visit.query("severity"),
        limit=str(_COUNTED),
    )
    # From the newest line backwards, whatever the span. Both times are UTC.
    lines = [line for line in page.lines if line.at >= start[:19]] if page else []
    if page is None or not lines:
        return None
    counts = Counter(_LEVELS.get(line.severity, "other") for line in lines)
    return Hits(job, tuple(lines[-_SHOWN:]), counts, page.more and len(lines) == len(page.lines))


def parts_of(message: str, text: str) -> list[tuple[str, bool]]:
    """Return the pieces of a line around a text, each with whether it is that text. Cleaned."""
    line = clean(message)
    first = re.search(re.escape(text), line, re.IGNORECASE)
    start = max(0, first.start() - _WIDTH // 4) if first else 0
    pieces = re.split(f"({re.escape(text)})", line[start : start + _WIDTH], flags=re.IGNORECASE)
    return [(piece, place % 2 == 1) for place, piece in enumerate(pieces) if piece]


_decoder: Final = msgspec.json.Decoder(LogLine)
