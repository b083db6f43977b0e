"""The log of a job: a window on it that is read where the reader is, and its end as it grows.

However much a program prints, a browser is sent the last lines of each half second at most.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from trainshed.console.feeds import Line, Places
from trainshed.console.pages.job import FINAL, describe, head
from trainshed.console.rendering import clean, coloured, nanos
from trainshed.console.visits import View, Visit, of_job
from trainshed.core.names import SERVICE, SERVICE_TASK, JobUid, ReplicaId
from trainshed.httpd.messages import Response, Streamed, sized
from trainshed.store.logs.lines import LogCursor
from trainshed.wire.json import encode_text
from trainshed.wire.trainshed_v1.timeline import LogPage

_FILTERS: Final = ("replica", "severity", "search")
_PLACES: Final = ("before", "after", "from", "limit")
_DOWNLOADED: Final = 2_000
_ERRORS: Final = frozenset({"ERROR", "CRITICAL", "ALERT", "EMERGENCY"})
_WARNINGS: Final = _ERRORS | {"WARNING"}
SEVERITIES: Final = (("", "All lines"), ("WARNING", "Warnings and errors"), ("ERROR", "Errors"))


async def page(visit: Visit) -> View:
    """`/jobs/J/logs`."""
    job = await describe(visit)
    found = await visit.get(LogPage, of_job(job.uid, "/logPage"), limit="1")
    return View(
        f"Log of {job.display_name or job.job_id}",
        "job_logs.html",
        {
            "job": job,
            "tasks": found.tasks,
            "severities": SEVERITIES,
            "is_over": found.over,
            "deleted": found.deleted,
        },
        parts={"head": head(visit, job, "logs")},
        subject=JobUid(int(job.uid)),
        lives=job.state not in FINAL,
        place="jobs",
    )


async def read(visit: Visit, **changes: str) -> LogPage:
    """A page of the log as the address asks for it."""
    asked = {name: visit.query(name) for name in (*_FILTERS, *_PLACES)} | changes
    return await visit.get(LogPage, of_job(visit.variables["job"], "/logPage"), **asked)


def _plain(page_: LogPage) -> dict[str, Any]:
    """As the script takes it: texts are cleaned here."""
    return {
        "lines": [
            [
                line.at,
                line.task,
                line.severity,
                clean(line.message),
                f"0/{line.replica}/{line.attempt}/{line.n}",
                line.place,
                coloured(line.message),
            ]
            for line in page_.lines
        ],
        "earlier": page_.earlier,
        "later": page_.later,
        "more": page_.more,
        "over": page_.over,
    }


async def lines(visit: Visit) -> Response:
    """`/jobs/J/lines`: a part of it, as JSON."""
    found = await read(visit)
    return sized(
        encode_text(_plain(found)), b"application/json", more=[(b"cache-control", b"no-store")]
    )


async def following(visit: Visit) -> AsyncGenerator[bytes]:
    """`/events/jobs/J/logs?lines=true&after=PLACES`: what is written from there on, as events. `after`: what
    was seen last of each replica, as the API takes it."""
    job = await describe(visit)
    uid, replica = job.uid, visit.query("replica")

    async def opened(query: Mapping[str, Sequence[str]]) -> AsyncGenerator[bytes]:
        asked = {**query, "replica": (replica,)}
        return await visit.backend.lines(visit.principal, of_job(uid, "/logs"), asked)

    key = f"{visit.principal} {uid} {replica}"
    events = visit.feeds.follow(key, opened, _row, _seen(visit.query("after")), _filter(visit))
    async with aclosing(events):
        async for told in events:
            if not visit.is_valid():
                return
            yield told


def _seen(places: str) -> Places:
    """What a browser says that it has, as the API takes it: TRIAL/REPLICA/ATTEMPT/N, with commas in
    between. What is none of that says nothing: then lines come again."""
    found: Places = {}
    for place in places.split(","):
        parts = place.split("/")
        if len(parts) == 4 and all(each.isdecimal() for each in parts[2:]):
            found[parts[1]] = (int(parts[2]), int(parts[3]))
    return found


def _row(line: Line) -> list[Any]:
    place = f"0/{line['replica']}/{line['attempt']}/{line['n']}"
    return [
        line["at"],
        line["task"],
        line["severity"],
        clean(line["message"]),
        place,
        _cursor(line),
        coloured(line["message"]),
    ]


def _cursor(line: Line) -> str:
    """Its place in the order of all lines, as pages take it."""
    replica = SERVICE if line["task"] == SERVICE_TASK else ReplicaId.parse(line["replica"])
    return str(LogCursor(nanos(line["at"]), replica, line["attempt"], line["n"]))


def _filter(visit: Visit) -> Callable[[Line], bool] | None:
    """None: everything passes."""
    text = visit.query("search").lower()
    worst = {"WARNING": _WARNINGS, "ERROR": _ERRORS}.get(visit.query("severity"))
    if not text and worst is None:
        return None

    def passes(line: Line) -> bool:
        return (worst is None or line["severity"] in worst) and text in line["message"].lower()

    return passes


async def download(visit: Visit) -> Response:
    """`/jobs/J/log.txt`: all of it that the filters let pass."""
    job = await describe(visit)
    first = await read(visit, before="", after="", limit="1", **{"from": "1970-01-01T00:00:01Z"})
    answer = Streamed(_whole(visit, first), visit.closing, b"text/plain; charset=utf-8")
    name = f"{job.job_id}.log"
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    answer.headers.append((b"content-disposition", f'attachment; filename="{safe}"'.encode()))
    return answer


async def _whole(visit: Visit, first: LogPage) -> AsyncGenerator[bytes]:
    found = first
    while True:
        text = [f"{line.at} {line.task} {line.severity} {line.message}\n" for line in found.lines]
        if text:
            yield "".join(text).encode("utf-8", "replace")
        if not found.later or (not found.lines and not found.more):
            return
        found = await read(
            visit, after=found.later, before="", limit=str(_DOWNLOADED), **{"from": ""}
        )
