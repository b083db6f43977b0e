"""Live streams of a job as NDJSON: its log lines, and its description at each change.

Woken by notices, never by polling. A blank line now and then keeps a silent stream alive; readers pass over it.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from typing import Any, Final

from trainshed.api.filters.matching import moment
from trainshed.api.filters.syntax import FilterError
from trainshed.api.trainshed_v1 import views
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.jobs import described, find_job
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid, ReplicaId, log_task_name
from trainshed.store.logs.lines import LogCursor, LogPosition, advanced
from trainshed.wire.json import encode_text

_BATCH: Final = 200
_KEEP_ALIVE: Final = 15.0
"""Seconds of silence after which a blank line is sent."""
_LONGEST_TAIL: Final = 10_000
_EAGER: Final = 3
"""Looks that follow each other at once; then a stream pauses after each, so that a job that writes or
changes all the time does not make its readers cost as much as itself."""
_PAUSE: Final = 0.02
"""Seconds."""


async def logs(call: JsonCall) -> AsyncGenerator[bytes]:
    """`GET /trainshed/v1/jobs/{job}/logs[?follow=true][&replica=R][&tail=N][&since=TIME]`.

    Lines `{at, replica, task, attempt, severity, message, n}`, of each replica in order and without gaps.
    With `follow` the stream goes on until the job is over and everything was sent.
    """
    job, _ = await find_job(call.services.reader, call.target)
    replicas = _replicas(job, call.texts("replica"))
    position = await _start(call, job, replicas)
    return _lines(call, job, replicas, position, follow=call.flag("follow"))


async def watch(call: JsonCall) -> AsyncGenerator[bytes]:
    """`GET /trainshed/v1/jobs/{job}/watch`: the job's description now and after each change, until it is over."""
    job, _ = await find_job(call.services.reader, call.target)
    return _descriptions(call, job.uid)


async def _lines(
    call: JsonCall,
    job: Job,
    replicas: frozenset[ReplicaId] | None,
    position: LogPosition,
    *,
    follow: bool,
) -> AsyncGenerator[bytes]:
    services = call.services
    silence = _Silence()
    for look in itertools.count():
        await _pause(look)
        seen = services.notices.count(job.uid)
        # The state is read before the lines: the end of a job is not told before its last lines can be read.
        over = await _is_over(call, job.uid)
        while lines := await services.logs.lines_since(
            job.uid, position, replicas=replicas, limit=_BATCH
        ):
            position = advanced(position, lines)
            silence.end()
            yield b"".join(_line(views.log_line(job.name.api, line)) for line in lines)
        if over or not follow:
            return
        if silence.is_long():
            yield b"\n"
        await services.notices.wait_beyond(job.uid, seen, silence.left())


async def _descriptions(call: JsonCall, uid: JobUid) -> AsyncGenerator[bytes]:
    services = call.services
    sent: tuple[str, object] = ("", None)
    silence = _Silence()
    for look in itertools.count():
        await _pause(look)
        seen = services.notices.count(uid)
        try:
            job, etag = await services.reader.job_by_uid(uid)
        except NotFound:
            return
        # Why a job waits changes with other jobs, too: that is looked at whenever there is a reason to look.
        state = (etag, None if job.state.is_final else services.room.why(uid))
        if state != sent:
            sent = state
            silence.end()
            yield _line(await described(services, job, etag))
        if job.state.is_final:
            return
        if silence.is_long():
            yield b"\n"
        await services.notices.wait_beyond(uid, seen, silence.left())


class _Silence:
    """How long a stream has sent nothing: also one that is woken all the time by what it does not show."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()

    def end(self) -> None:
        """Something is sent."""
        self._since = self._loop.time()

    def is_long(self) -> bool:
        """Whether a sign of life is due; the silence begins anew if so."""
        if self.left() > 0:
            return False
        self.end()
        return True

    def left(self) -> float:
        """Seconds until a sign of life is due."""
        return self._since + _KEEP_ALIVE - self._loop.time()


async def _pause(look: int) -> None:
    if look > _EAGER:
        await asyncio.sleep(_PAUSE)


async def _is_over(call: JsonCall, uid: JobUid) -> bool:
    """Whether no line can come any more; a job that was deleted meanwhile is over as well."""
    try:
        job, _ = await call.services.reader.job_by_uid(uid)
    except NotFound:
        return True
    return job.state.is_final


async def _start(call: JsonCall, job: Job, replicas: frozenset[ReplicaId] | None) -> LogPosition:
    """Where the stream begins: at the beginning, at a moment, or before the last N lines."""
    tail, since = call.number("tail"), call.parameter("since")
    if tail:
        last = await call.services.logs.tail(job.uid, min(tail, _LONGEST_TAIL), replicas=replicas)
        return await _before(call, job, replicas, first=last[0].cursor) if last else {}
    if since:
        try:
            at = moment(since)
        except FilterError as error:
            raise InvalidRequest((Violation("since", str(error)),)) from None
        return await _before(call, job, replicas, at=at)
    return {}


async def _before(
    call: JsonCall,
    job: Job,
    replicas: frozenset[ReplicaId] | None,
    *,
    first: LogCursor | None = None,
    at: int | None = None,
) -> LogPosition:
    """Each replica's last line before the line `first`, or before the moment `at`."""
    position: LogPosition = {}
    for replica in job.spec.replicas() if replicas is None else replicas:
        page = await call.services.logs.page(
            job.uid, replicas={replica}, end=at, after=first, limit=1, descending=True
        )
        position = advanced(position, page.lines)
    return position


def _replicas(job: Job, names: tuple[str, ...]) -> frozenset[ReplicaId] | None:
    """The replicas asked for, by id (`workerpool0-0`) or by task (`master-replica-0`); None for all."""
    if not names:
        return None
    known = {str(replica): replica for replica in job.spec.replicas()}
    known |= {log_task_name(job.name.api, replica): replica for replica in known.values()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidRequest(
            (
                Violation(
                    "replica",
                    f"{job.name} has no replica {unknown[0]!r}; it has: {', '.join(known)}.",
                ),
            )
        )
    return frozenset(known[name] for name in names)


def _line(value: dict[str, Any]) -> bytes:
    return encode_text(value) + b"\n"
