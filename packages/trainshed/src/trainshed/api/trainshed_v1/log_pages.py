"""Pages of a job's log, for readers who look at a part of millions of lines: backwards from its end or from
any line, forwards from a line, or from a time on.

A page with a filter examines a bounded number of lines, and then says that there is more to examine.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final

from trainshed.api.resources.jobs import find_job
from trainshed.api.trainshed_v1 import views
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.logs import chosen_replicas
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.names import SERVICE_TASK, log_task_name
from trainshed.store.logs.lines import LogCursor, LogLine, LogPage, Severity
from trainshed.wire.trainshed_v1 import timeline as records

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
    limit = min(call.number("limit") or _DEFAULT, _LARGEST)
    passes = _filter(call)
    replicas = chosen_replicas(job, job.spec, call.texts("replica"))
    before, after = _place(call, "before"), _place(call, "after")
    start = call.moment("from")
    forwards = after is not None or bool(start)
    # The log of a running job is read up to a moment ago, because later lines may still be on their way.
    end = None if job.state.is_final else call.services.now() - _SETTLED
    lines: list[LogLine] = []
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
            start=start,
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
    if not forwards:
        lines.reverse()
    return records.LogPage(
        name=str(job.name),
        lines=tuple(views.paged_line(job.name.api, line) for line in lines),
        earlier=_earlier(lines, at, is_full=is_full, forwards=forwards),
        later=_later(lines, at, after, forwards=forwards),
        more=more,
        over=job.state.is_final,
        tasks=(
            *(log_task_name(job.name.api, replica) for replica in job.spec.replicas()),
            SERVICE_TASK,
        ),
    )


def _earlier(lines: list[LogLine], at: LogCursor | None, *, is_full: bool, forwards: bool) -> str:
    if forwards:
        return str(lines[0].cursor) if lines else str(at or "")
    return str(at) if is_full and at is not None else ""


def _later(
    lines: list[LogLine], at: LogCursor | None, after: LogCursor | None, *, forwards: bool
) -> str:
    if forwards:
        return str(at or after or "")
    return str(lines[-1].cursor) if lines else ""


def _filter(call: JsonCall) -> Callable[[LogLine], bool] | None:
    """Return the filter that the request names; None: everything passes. Raises InvalidRequest."""
    severity, text = call.parameter("severity"), call.parameter("search")
    faults: list[Violation] = []
    if severity and severity not in tuple(Severity):
        names = ", ".join(Severity)
        faults.append(Violation("severity", f"{severity!r} is not one of: {names}."))
    if len(text) > _LONGEST_SEARCH:
        faults.append(Violation("search", f"It may have at most {_LONGEST_SEARCH} characters."))
    if faults:
        raise InvalidRequest(tuple(faults))
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
