"""Deletes logs of ended jobs on request (docs/operate.md)."""

from collections.abc import Callable
from typing import Final

from trainshed.api.calls.timestamps import text_micros
from trainshed.api.trainshed_v1.call import Fields, JsonCall
from trainshed.core.errors import FailedPrecondition, NotFound
from trainshed.core.names import JobUid
from trainshed.core.retention import LogDue, Retention, parse_age, parse_size
from trainshed.wire.trainshed_v1 import jobs as records

_MOST: Final = 200
"""Most logs that one request deletes: some ten seconds."""


async def collect(call: JsonCall) -> records.DeletedLogs:
    """`POST /trainshed/v1/logs:collect`: delete the logs, in all projects, of jobs that ended longer ago than
    an age, and of the oldest ones until the rest fits into a size. The jobs stay, and their timelines tell of
    it. Deletes at most 200 logs."""
    fields = call.fields()
    older_than = _read(fields, "olderThan", parse_age)
    size = _read(fields, "size", parse_size)
    dry_run = fields.flag("dryRun")
    if not older_than and not size:
        fields.fault("olderThan", "Give an age such as 30d, a size such as 50GB, or both.")
    fields.refuse()
    collector = call.services.collector()
    if collector is None:
        raise FailedPrecondition("This service deletes no logs at an order.")
    collected = await collector.collect(
        Retention(logs=older_than, size=size), _MOST, dry_run=dry_run
    )
    return records.DeletedLogs(
        logs=tuple([await _view(call, due) for due in collected.due]), more=collected.more
    )


def _read(fields: Fields, name: str, parse: Callable[[str], int]) -> str:
    text = fields.text(name)
    try:
        parse(text)
    except ValueError as fault:
        fields.fault(name, f"{fault}.")
    return text


async def _view(call: JsonCall, due: LogDue) -> records.DeletedLog:
    try:
        job = str((await call.services.reader.job_by_uid(JobUid(due.log.uid)))[0].name)
    except NotFound:
        job = ""
    return records.DeletedLog(
        job=job,
        uid=str(due.log.uid),
        end_time=text_micros(due.log.ended),
        bytes=due.log.bytes,
        kept=due.kept,
    )
