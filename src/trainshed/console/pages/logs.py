"""The log of a job: a window on it that is read where the reader is, and its end as it grows.

However much a program prints, a browser is sent the last lines of each half second at most.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final

import msgspec

from trainshed.console.live import SILENCE, event
from trainshed.console.pages.job import FINAL, describe, head
from trainshed.console.rendering import clean, nanos
from trainshed.console.visits import View, Visit, of_job
from trainshed.core.names import SERVICE, SERVICE_TASK, JobUid, ReplicaId
from trainshed.eventloop.background import joined
from trainshed.httpd.messages import Response, Streamed, sized
from trainshed.store.logs.lines import LogCursor
from trainshed.wire.json import encode_text
from trainshed.wire.trainshed_v1.timeline import LogPage

_FILTERS: Final = ("replica", "severity", "search")
_PLACES: Final = ("before", "after", "from", "limit")
_PAUSE: Final = 0.5
_BURST: Final = 400
"""Lines of one event."""
_PIECES: Final = 4
"""Of a stream, each up to some hundred lines, that one event is made of."""
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


async def follow(visit: Visit) -> Response:
    """`/jobs/J/follow?after=PLACES`: what is written from there on, as events. `after`: what was seen last of
    each replica, as the API takes it."""
    job = await describe(visit)
    return Streamed(_following(visit, job.uid), visit.closing, b"text/event-stream")


async def _following(visit: Visit, uid: str) -> AsyncGenerator[bytes]:
    passes = _filter(visit)
    seen: dict[str, tuple[int, int]] = {}
    places = visit.query("after")
    asked = {"follow": ("true",), "tail": (str(_BURST),), "replica": (visit.query("replica"),)}
    yield b"retry: 2000\n\n"
    while True:
        query = asked | ({"after": (places,)} if places else {})
        source = await visit.backend.lines(visit.principal, of_job(uid, "/logs"), query)
        is_behind = False
        async with aclosing(_windows(source)) as windows:
            async for texts in windows:
                if not visit.is_valid():
                    return
                fresh, skipped = _fresh([line for text in texts for line in _parsed(text)], seen)
                shown = [_row(line) for line in fresh if passes(line)]
                if shown or skipped:
                    yield event("lines", {"lines": shown[-_BURST:], "skipped": skipped})
                elif not texts:
                    yield b": quiet\n\n"
                is_behind = len(fresh) >= _BURST
                if is_behind:
                    break
        if not is_behind:
            yield event("over", {})
            return
        # More than anybody reads: go on with the last lines.
        places = ""
        await asyncio.sleep(_PAUSE)


async def _windows(source: AsyncGenerator[bytes]) -> AsyncGenerator[list[bytes]]:
    """What comes within half a second from the first piece on; nothing after a long silence."""
    loop = asyncio.get_running_loop()
    coming = joined(_next(source))
    try:
        while True:
            await asyncio.wait((coming,), timeout=SILENCE)
            found: list[bytes] = []
            until = loop.time() + _PAUSE
            while coming.done() and len(found) < _PIECES:
                piece = coming.result()
                if piece is None:
                    if found:
                        yield found
                    return
                found.append(piece)
                coming = joined(_next(source))
                await asyncio.wait((coming,), timeout=max(0.0, until - loop.time()))
                if loop.time() >= until:
                    break
            yield found
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await source.aclose()


async def _next(source: AsyncGenerator[bytes]) -> bytes | None:
    return await anext(source, None)


def _parsed(text: bytes) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in text.splitlines() if line]


def _fresh(
    lines: list[dict[str, Any]], seen: dict[str, tuple[int, int]]
) -> tuple[list[dict[str, Any]], bool]:
    """Those that were not sent yet, and whether some between were left out."""
    fresh: list[dict[str, Any]] = []
    skipped = False
    for line in lines:
        place = (int(line["attempt"]), int(line["n"]))
        last = seen.get(line["replica"])
        if last is not None and place <= last:
            continue
        skipped = skipped or (last is not None and last[0] == place[0] and place[1] > last[1] + 1)
        seen[line["replica"]] = place
        fresh.append(line)
    return fresh, skipped


def _row(line: dict[str, Any]) -> list[Any]:
    place = f"0/{line['replica']}/{line['attempt']}/{line['n']}"
    return [
        line["at"],
        line["task"],
        line["severity"],
        clean(line["message"]),
        place,
        _cursor(line),
    ]


def _cursor(line: dict[str, Any]) -> str:
    """Its place in the order of all lines, as pages take it."""
    replica = SERVICE if line["task"] == SERVICE_TASK else ReplicaId.parse(line["replica"])
    return str(LogCursor(nanos(line["at"]), replica, line["attempt"], line["n"]))


def _filter(visit: Visit) -> Callable[[dict[str, Any]], bool]:
    text = visit.query("search").lower()
    worst = {"WARNING": _WARNINGS, "ERROR": _ERRORS}.get(visit.query("severity"))

    def passes(line: dict[str, Any]) -> bool:
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
