"""A job's log: as a stream of NDJSON, and by pages, for readers who look at a part of millions of lines. That
of all trials of a tuning job is answered by the Logging API.

In a stream the lines of each replica come in their order and without gaps. Lines that exist already are
merged by time across replicas; later lines are sent as they come. A follower that reconnects names the last
line that it has seen of every writer.

Pages go backwards from the log's end or from any line, forwards from a line, or from a time on. A page with a
filter examines a bounded number of lines, and then says that there is more to examine.
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
from trainshed.api.trainshed_v1.streams import SIGN_OF_LIFE
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import SERVICE, SERVICE_TASK, Api, JobUid, ReplicaId, log_task_name
from trainshed.core.requests import Faults
from trainshed.core.units import Nanos, whole_second
from trainshed.store.logs.lines import LogCursor, LogPage, Severity
from trainshed.store.logs.lines import LogLine as StoredLine
from trainshed.store.logs.reader import LogReader, Source
from trainshed.store.logs.segments import shown_lines
from trainshed.wire.trainshed_v1 import timeline as records

_AT_ONCE: Final = 64 << 10
"""Bytes that are sent at once. Whoever follows and does not read holds them twice, beside a block of each
replica's log, and may have thousands of streams."""
_THREAD: Final = ThreadPoolExecutor(1, "following")
"""One for all streams: while several threads compute, the event loop waits for each of them after every write
to a socket, so that those who follow a log would keep up all others."""
_LONGEST_TAIL: Final = 10_000
_PLACE: Final = re.compile(r"([a-z]+[\d-]*)/(\d{1,9})/(\d{1,12})")

Replicas = frozenset[ReplicaId] | None
"""The replicas whose lines are wanted; None for all."""
Position = dict[ReplicaId, tuple[int, int]]
"""A `LogPosition` that moves on."""


async def logs(call: JsonCall) -> AsyncGenerator[bytes]:
    """`GET
    /trainshed/v1/jobs/{job}/logs[?follow=true][&replica=R][&tail=N][&since=TIME][&after=PLACES]`:
    stream the lines of the log, a `LogLine` each.

    With `follow` the stream goes on until the job is over and everything was sent. `after`: for a client
    that reconnects, the last line that it has seen of each writer, REPLICA/ATTEMPT/N.
    """
    job, _ = await find_job(call.services.reader, call.target)
    replicas = chosen_replicas(job, call.texts("replica"))
    reader, since = call.services.logs, call.moment("since", Nanos(0))
    seen = seen_places(call.texts("after"))
    if (tail := call.number("tail", None)) is not None:
        before = await _before_last(reader, job, replicas, min(tail, _LONGEST_TAIL))
        for replica, place in seen.items():
            before[replica] = max(place, before.get(replica, place))
        since, seen = 0, before
    read = partial(_pieces, reader, job, seen, since, replicas)
    return _lines(call.services, job, read, follow=call.flag("follow"))


async def _before_last(reader: LogReader, job: Job, replicas: Replicas, count: int) -> Position:
    """Return the position after which the last lines of a log come, and what is written meanwhile."""
    position: Position = {}
    # First where each replica is, so that what it writes while the last lines are read is sent, too.
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
        # Before its lines, so that a job's end is not reported before its last lines can be read.
        is_over = await _is_over(services, job.uid)
        pieces = read()
        while piece := await loop.run_in_executor(_THREAD, next, pieces, b""):
            pace.message_sent()
            yield piece
        if is_over or not follow:
            return
        if pace.is_keep_alive_due():
            yield SIGN_OF_LIFE
        await pace.wait_for_news({job.uid: count})


async def _is_over(services: Services, uid: JobUid) -> bool:
    try:
        work, _ = await services.reader.job_by_uid(uid)
    except NotFound:
        return True
    return work.state.is_final


def _pieces(
    logs: LogReader, job: Job, seen: Position, since: Nanos, replicas: Replicas
) -> Iterator[bytes]:
    """Yield the lines that there are now, about _AT_ONCE bytes at a time. Those of a block are noted as
    `seen` when it is read: whoever reads on afterwards has read all pieces."""
    piece = bytearray()

    def read(source: Source, block: bytes) -> tuple[list[bytes], list[bytes]]:
        shown = shown_lines(block)
        times = [at for _, at, _, _ in shown]
        if not shown:
            return times, []
        seen[source.replica] = (source.attempt, int(shown[-1][0]))
        names = _encoded_names(job.name.api, source.replica, source.attempt)
        seconds = {times[0][:-9], times[-1][:-9]}
        if len(seconds) == 1:
            form = _form(names, *seconds)
            return times, [
                form % (at[-9:], level or b"INFO", text, n) for n, at, text, level in shown
            ]
        return times, [
            _form(names, at[:-9]) % (at[-9:], level or b"INFO", text, n)
            for n, at, text, level in shown
        ]

    for _, lines in logs.runs(job.uid, seen, since, replicas, read):
        piece += b"".join(lines)
        if len(piece) >= _AT_ONCE:
            full, piece = bytes(piece), bytearray()
            yield full
    yield bytes(piece)


@lru_cache(1024)
def _encoded_names(api: Api, replica: ReplicaId, attempt: int) -> bytes:
    """Return the members of a `records.LogLine` that are the same for all lines of a replica's attempt."""
    names = {"replica": str(replica), "task": log_task_name(api, replica), "attempt": attempt}
    return msgspec.json.encode(names)[1:-1]


@lru_cache(1024)
def _form(names: bytes, second: bytes) -> bytes:
    """Return the form of the JSON of a `records.LogLine` of that second, whose parts are put together because
    there are millions: for nanoseconds, severity, text and number."""
    whole = whole_second(int(second)).encode()
    return b'{"at":"%b.%%bZ",%b,"severity":"%%b","message":%%b,"n":%%b}\n' % (whole, names)


def chosen_replicas(job: Job, names: tuple[str, ...]) -> Replicas:
    """Return the writers with these names, as of a drill, or `service`; None for all. Raises InvalidRequest
    for unknown ones."""
    faults = Faults()
    chosen = [
        SERVICE if name == SERVICE_TASK else read_replica(name, job, faults) for name in names
    ]
    faults.refuse()
    return frozenset(chosen) or None


def seen_places(texts: Sequence[str]) -> Position:
    """Parse texts `REPLICA/ATTEMPT/N` into a position. Raises InvalidRequest."""
    places: Position = {}
    for text in texts:
        match = _PLACE.fullmatch(text)
        try:
            name, attempt, number = match.groups() if match else (text, "", "")
            replica = SERVICE if name == SERVICE_TASK else ReplicaId.parse(name)
            places[replica] = (int(attempt), int(number))
        except ValueError:
            wrong = (
                f"{text!r} is no place in a log: give the replica, attempt and number of the last line that "
                "was seen, as in workerpool0-0/1/17."
            )
            raise InvalidRequest((Violation("after", wrong),)) from None
    return places


_DEFAULT: Final = 500
_LARGEST: Final = 2_000
_LONGEST: Final = 1 << 20
"""Characters of lines that are read at a time; a page has at most twice as many."""
_LOOKED_AT: Final = 20_000
"""Lines that one request with a filter examines."""
_CHUNK: Final = 2_000
_SETTLED: Final = 10**9
"""Nanoseconds after which no earlier line of another replica can arrive."""
_LONGEST_SEARCH: Final = 200


async def page(call: JsonCall) -> records.LogPage:
    """`GET /trainshed/v1/jobs/{job}/logPage[?before=PLACE][&after=PLACE][&from=TIME][&limit=N][&replica=R]`:
    return lines of the log, oldest first: the last ones, those before or after a place, or those from a time
    on.

    A page of long lines has fewer than `limit`.

    `&severity=S`: only lines of at least this severity. `&search=TEXT`: only lines that hold this text, in
    either case. If a filter finds too few lines among 20,000, the answer says `more`.
    """
    job, _ = await find_job(call.services.reader, call.target)
    limit = min(call.number("limit", None) or _DEFAULT, _LARGEST)
    passes = _filter(call)
    replicas = chosen_replicas(job, call.texts("replica"))
    before, after = _place(call, "before"), _place(call, "after")
    start = call.moment("from", None)
    forwards = after is not None or start is not None
    # The log of a running job is read up to a moment ago, because later lines may still be on their way.
    end = None if job.state.is_final else call.services.now() - _SETTLED
    lines: list[StoredLine] = []
    at, seen, more = after if forwards else before, 0, False
    room = _LONGEST
    while len(lines) < limit and room > 0:
        if passes is not None and seen >= _LOOKED_AT:
            more = True
            break
        wanted = limit if passes is None else _CHUNK
        read: LogPage = await call.services.logs.page(
            job.uid,
            replicas=replicas,
            start=start or 0,
            end=end if forwards else None,
            after=at,
            limit=wanted,
            longest=_LONGEST,
            descending=not forwards,
        )
        passing = read.lines
        if passes is not None:
            passing = await asyncio.to_thread(list, filter(passes, read.lines))
        taken = passing[: limit - len(lines)]
        lines += taken
        room -= sum(len(line.text) for line in taken)
        if read.lines:
            at = (lines if len(lines) == limit else read.lines)[-1].cursor
        seen += len(read.lines)
        if read.next is None:
            break
    is_full = more or len(lines) == limit or room <= 0
    if forwards:
        earlier = str(lines[0].cursor) if lines else str(at or "")
        later = str(at or after or "")
    else:
        lines.reverse()
        earlier = str(at) if is_full and at is not None else ""
        later = str(lines[-1].cursor) if lines else ""
    return records.LogPage(
        name=str(job.name),
        lines=tuple(views.paged_line(job.name.api, line) for line in lines),
        earlier=earlier,
        later=later,
        more=more,
        over=job.state.is_final,
        tasks=(
            *(log_task_name(job.name.api, replica) for replica in job.spec.replicas()),
            SERVICE_TASK,
        ),
    )


def _filter(call: JsonCall) -> Callable[[StoredLine], bool] | None:
    """Return the filter that the request names; None: everything passes. Raises InvalidRequest."""
    severity, text = call.parameter("severity"), call.parameter("search")
    faults = Faults()
    if severity and severity not in tuple(Severity):
        faults.add("severity", f"{severity!r} is not one of: {', '.join(Severity)}.")
    if len(text) > _LONGEST_SEARCH:
        faults.add("search", f"It may have at most {_LONGEST_SEARCH} characters.")
    faults.refuse()
    if not severity and not text:
        return None
    order: dict[Any, int] = {level: rank for rank, level in enumerate(Severity)}
    least = order.get(severity, 0)
    holds = re.compile(re.escape(text), re.IGNORECASE).search
    return lambda line: order[line.severity] >= least and bool(not text or holds(line.text))


def _place(call: JsonCall, name: str) -> LogCursor | None:
    text = call.parameter(name)
    if not text:
        return None
    try:
        return LogCursor.parse(text)
    except ValueError as wrong:
        raise InvalidRequest((Violation(name, str(wrong)),)) from None
