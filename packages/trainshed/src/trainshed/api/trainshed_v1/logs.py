"""A job's log as an NDJSON stream, or in pages. The Logging API can also return the logs of all trials of a
tuning job.

In a stream, the lines of each replica are in order and without gaps. Lines that already exist are merged by
time across replicas. Later lines are sent at once. A client that reconnects sends the last line that it has
received from each replica.

A page contains the lines before the log's end or before any line, or the lines after a line or a time. A
request for a page with a filter reads a limited number of lines. The response then specifies that more lines
exist.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, Final

import msgspec

from trainshed.api.calls.services import Services
from trainshed.api.calls.streams import Pace
from trainshed.api.resources.jobs import find_job
from trainshed.api.trainshed_v1 import views
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.drills import read_replica
from trainshed.api.trainshed_v1.streams import KEEP_ALIVE_LINE
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import SERVICE, SERVICE_TASK, Api, JobUid, ReplicaId, log_task_name
from trainshed.core.requests import Faults
from trainshed.core.units import Nanos, whole_second
from trainshed.store.logs.lines import LogCursor, LogPage, Severity
from trainshed.store.logs.lines import LogLine as StoredLine
from trainshed.store.logs.reader import LogReader, Source
from trainshed.store.logs.segments import display_lines
from trainshed.wire.trainshed_v1 import timeline as records

_PIECE_SIZE: Final = 64 << 10
"""Size in bytes of a part of a stream. For a slow client, the service holds two parts, and a block of each
replica's log. There may be thousands of streams."""
_EXECUTOR: Final = ThreadPoolExecutor(1, "following")
"""One thread reads for all streams. With several computing threads, the event loop would wait for each of
them after each write to a socket. Clients of logs would then delay all others."""
_MAX_TAIL: Final = 10_000
_POSITION_PATTERN: Final = re.compile(r"([a-z]+[\d-]*)/(\d{1,9})/(\d{1,12})")

Replicas = frozenset[ReplicaId] | None
"""The replicas whose lines are selected; None = all replicas."""
Position = dict[ReplicaId, tuple[int, int]]
"""Positions in the logs of replicas, which advance as lines are read: (attempt, line number) by replica."""


async def logs(call: JsonCall) -> AsyncGenerator[bytes]:
    """`GET /trainshed/v1/jobs/{job}/logs[?follow=true][&replica=R][&tail=N][&since=TIME][&after=PLACES]`:
    stream the lines of the log as `LogLine` records. With `follow`, the stream ends when the job has finished
    and all lines were sent. `after`: the last line that a reconnecting client has received from each replica,
    as REPLICA/ATTEMPT/N."""
    job, _ = await find_job(call.services.reader, call.target)
    replicas = selected_replicas(job, call.texts("replica"))
    reader, since = call.services.logs, call.moment("since", Nanos(0))
    seen = parse_positions(call.texts("after"))
    if (tail := call.number("tail", None)) is not None:
        before = await _position_before(reader, job, replicas, min(tail, _MAX_TAIL))
        for replica, place in seen.items():
            before[replica] = max(place, before.get(replica, place))
        since, seen = 0, before
    read = partial(_pieces, reader, job, seen, since, replicas)
    return _lines(call.services, job, read, follow=call.flag("follow"))


async def _position_before(reader: LogReader, job: Job, replicas: Replicas, count: int) -> Position:
    """Return the position before the last `count` lines of a log."""
    position: Position = {}
    # Read the positions of all replicas first. Lines that are written in the meantime are then sent, too.
    for replica in (*job.spec.replicas(), SERVICE) if replicas is None else replicas:
        for last in await reader.tail(job.uid, 1, replicas={replica}):
            position[replica] = (last.attempt, last.n)
    for last in await reader.tail(job.uid, count, replicas=replicas):
        place = (last.attempt, last.n - 1)
        position[last.replica] = min(position.get(last.replica, place), place)
    return position


async def _lines(
    services: Services, job: Job, read: Callable[[], Iterator[bytes]], *, follow: bool
) -> AsyncGenerator[bytes]:
    notices, loop = services.notices, asyncio.get_running_loop()
    pace = Pace(notices)
    while True:
        await pace.start_read()
        count = notices.count(job.uid)
        # Read the state before the lines. Otherwise the stream could end before the last lines of a finished
        # job.
        is_finished = await _is_finished(services, job.uid)
        pieces = read()
        while piece := await loop.run_in_executor(_EXECUTOR, next, pieces, b""):
            pace.message_sent()
            yield piece
        if is_finished or not follow:
            return
        if pace.is_keep_alive_due():
            yield KEEP_ALIVE_LINE
        await pace.wait_for_news({job.uid: count})


async def _is_finished(services: Services, uid: JobUid) -> bool:
    try:
        work, _ = await services.reader.job_by_uid(uid)
    except NotFound:
        return True
    return work.state.is_final


def _pieces(logs: LogReader, job: Job, seen: Position, since: Nanos, replicas: Replicas) -> Iterator[bytes]:
    """Yield the current lines in parts of about _PIECE_SIZE bytes.

    `seen` is updated when a block of lines is read. The caller must therefore consume all parts before it
    reads again.
    """
    piece = bytearray()

    def read(source: Source, block: bytes) -> tuple[list[bytes], list[bytes]]:
        shown = display_lines(block)
        times = [time for _, time, _, _ in shown]
        if not shown:
            return times, []
        seen[source.replica] = (source.attempt, int(shown[-1][0]))
        names = _encoded_names(job.name.api, source.replica, source.attempt)
        seconds = {times[0][:-9], times[-1][:-9]}
        if len(seconds) == 1:
            template = _line_template(names, *seconds)
            return times, [
                template % (time[-9:], level or b"INFO", text, n) for n, time, text, level in shown
            ]
        return times, [
            _line_template(names, time[:-9]) % (time[-9:], level or b"INFO", text, n)
            for n, time, text, level in shown
        ]

    for _, lines in logs.new_line_groups(job.uid, seen, since, replicas, read):
        piece += b"".join(lines)
        if len(piece) >= _PIECE_SIZE:
            full, piece = bytes(piece), bytearray()
            yield full
    yield bytes(piece)


@lru_cache(1024)
def _encoded_names(api: Api, replica: ReplicaId, attempt: int) -> bytes:
    """Return the JSON members of a `records.LogLine` that all lines of a replica in an attempt have in
    common."""
    names = {"replica": str(replica), "task": log_task_name(api, replica), "attempt": attempt}
    return msgspec.json.encode(names)[1:-1]


@lru_cache(1024)
def _line_template(names: bytes, second: bytes) -> bytes:
    """Return the JSON template of a `records.LogLine` for all lines in one second. Its variables are
    nanoseconds, severity, text and number. Templates are fast enough for millions of lines."""
    second_text = whole_second(int(second)).encode()
    return b'{"at":"%b.%%bZ",%b,"severity":"%%b","message":%%b,"n":%%b}\n' % (second_text, names)


def selected_replicas(job: Job, names: tuple[str, ...]) -> Replicas:
    """Return the replicas with these names; None = all replicas. A name may be `service`. Raises
    InvalidRequest for unknown names."""
    faults = Faults()
    chosen = [SERVICE if name == SERVICE_TASK else read_replica(name, job, faults) for name in names]
    faults.refuse()
    return frozenset(chosen) or None


def parse_positions(texts: Sequence[str]) -> Position:
    """Return the positions in texts of the form `REPLICA/ATTEMPT/N`. Raises InvalidRequest."""
    places: Position = {}
    for text in texts:
        match = _POSITION_PATTERN.fullmatch(text)
        try:
            name, attempt, number = match.groups() if match else (text, "", "")
            replica = SERVICE if name == SERVICE_TASK else ReplicaId.parse(name)
            places[replica] = (int(attempt), int(number))
        except ValueError:
            wrong = (
                f"{text!r} is not a position in a log. Use the replica, attempt and number of the last "
                "received line, as in workerpool0-0/1/17."
            )
            raise InvalidRequest((Violation("after", wrong),)) from None
    return places


_DEFAULT_LIMIT: Final = 500
_MAX_LIMIT: Final = 2_000
_MAX_READ_LENGTH: Final = 1 << 20
"""Maximum number of characters per read of lines. A page contains at most twice as many."""
_MAX_READ_LINES: Final = 20_000
"""Maximum number of lines that a request with a filter reads."""
_CHUNK_SIZE: Final = 2_000
_SETTLE_TIME: Final = 10**9
"""Maximum delay in nanoseconds of a line. After that, no earlier line of another replica can arrive."""
_MAX_SEARCH_LENGTH: Final = 200


async def page(call: JsonCall) -> records.LogPage:
    """`GET /trainshed/v1/jobs/{job}/logPage[?before=PLACE][&after=PLACE][&from=TIME][&limit=N][&replica=R]`:
    return lines of the log, oldest first. Default: the last lines.

    `before` and `after` select the lines before or after a PLACE (a position in the log, from an earlier
    response), and `from` selects the lines from a time on. If lines are long, a page has fewer than `limit`
    lines. `&severity=S` selects lines with at least this severity. `&search=TEXT` selects lines that contain
    this text, ignoring case. A request with a filter reads at most 20,000 lines. If lines remain, the
    response sets `more`.
    """
    job, _ = await find_job(call.services.reader, call.target)
    limit = min(call.number("limit", None) or _DEFAULT_LIMIT, _MAX_LIMIT)
    passes = _filter(call)
    replicas = selected_replicas(job, call.texts("replica"))
    before, after = _place(call, "before"), _place(call, "after")
    start = call.moment("from", None)
    forwards = after is not None or start is not None
    # For a running job, the most recent lines are omitted, because earlier lines of other replicas may still
    # arrive.
    end = None if job.state.is_final else call.services.now() - _SETTLE_TIME
    lines: list[StoredLine] = []
    position, seen, more = after if forwards else before, 0, False
    remaining_length = _MAX_READ_LENGTH
    while len(lines) < limit and remaining_length > 0:
        if passes is not None and seen >= _MAX_READ_LINES:
            more = True
            break
        page_limit = limit if passes is None else _CHUNK_SIZE
        read: LogPage = await call.services.logs.page(
            job.uid,
            replicas=replicas,
            start=start or 0,
            end=end if forwards else None,
            after=position,
            limit=page_limit,
            longest=_MAX_READ_LENGTH,
            descending=not forwards,
        )
        passing = read.lines
        if passes is not None:
            passing = await asyncio.to_thread(list, filter(passes, read.lines))
        added = passing[: limit - len(lines)]
        lines += added
        remaining_length -= sum(len(line.text) for line in added)
        if read.lines:
            position = (lines if len(lines) == limit else read.lines)[-1].cursor
        seen += len(read.lines)
        if read.next is None:
            break
    is_full = more or len(lines) == limit or remaining_length <= 0
    if forwards:
        earlier = str(lines[0].cursor) if lines else str(position or "")
        later = str(position or after or "")
    else:
        lines.reverse()
        earlier = str(position) if is_full and position is not None else ""
        later = str(lines[-1].cursor) if lines else ""
    return records.LogPage(
        name=str(job.name),
        lines=tuple(views.paged_line(job.name.api, line) for line in lines),
        earlier=earlier,
        later=later,
        more=more,
        over=job.state.is_final,
        tasks=(*(log_task_name(job.name.api, replica) for replica in job.spec.replicas()), SERVICE_TASK),
    )


def _filter(call: JsonCall) -> Callable[[StoredLine], bool] | None:
    """Return the filter of the request; None = no filter. Raises InvalidRequest."""
    severity, text = call.parameter("severity"), call.parameter("search")
    faults = Faults()
    if severity and severity not in tuple(Severity):
        faults.add("severity", f"{severity!r} is not one of: {', '.join(Severity)}.")
    if len(text) > _MAX_SEARCH_LENGTH:
        faults.add("search", f"The search text may have at most {_MAX_SEARCH_LENGTH} characters.")
    faults.refuse()
    if not severity and not text:
        return None
    order: dict[Any, int] = {level: rank for rank, level in enumerate(Severity)}
    min_rank = order.get(severity, 0)
    contains = re.compile(re.escape(text), re.IGNORECASE).search
    return lambda line: order[line.severity] >= min_rank and bool(not text or contains(line.text))


def _place(call: JsonCall, name: str) -> LogCursor | None:
    text = call.parameter(name)
    if not text:
        return None
    try:
        return LogCursor.parse(text)
    except ValueError as wrong:
        raise InvalidRequest((Violation(name, str(wrong)),)) from None
