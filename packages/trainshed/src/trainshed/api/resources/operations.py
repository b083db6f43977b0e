"""Long-running operations: records of those that are done when they are answered; waiting for others, and
cancelling them."""

import asyncio
import contextlib
import json

from google.protobuf.message import Message
from msgspec.structs import replace

from trainshed.api.calls.services import Services
from trainshed.core.failure.messages import CANCELLED
from trainshed.core.job import JobError
from trainshed.core.lifecycle.states import OperationState
from trainshed.eventloop.background import first_of
from trainshed.store.port import StaleCommit
from trainshed.store.records import Operation, OperationKind
from trainshed.wire import json as wire_json


def done_at_once(
    services: Services, kind: OperationKind, target: str, response: Message | None = None
) -> Operation:
    """Return the record of a finished operation, in the location of its `target`, the full name of what it is
    about. `response`: None for a DELETE."""
    now = services.now()
    answer = (
        "" if response is None else json.dumps(wire_json.to_public(response), ensure_ascii=False)
    )
    return Operation(
        name=f"{'/'.join(target.split('/')[:4])}/operations/{services.new_uid()}",
        kind=kind,
        target=target,
        created=now,
        updated=now,
        response=answer,
        response_type="" if response is None else response.DESCRIPTOR.full_name,
    )


async def wait_for(services: Services, name: str, patience: float) -> Operation:
    """Return the operation when it is done, when `patience` seconds have passed, or when the service stops.
    Raises NotFound."""
    clock = asyncio.get_running_loop()
    end = clock.time() + patience
    record = await services.reader.operation(name)
    while not record.state.is_final:
        # Count before looking, so that an end after this look is news beyond the count.
        subject = record.subject
        seen = services.notices.count(subject)
        record = await services.reader.operation(name)
        left = end - clock.time()
        if record.state.is_final or left <= 0 or services.closing.is_set():
            break
        news = services.notices.wait_beyond(subject, seen, left)
        await first_of(news, services.closing.wait())
    return record


async def cancel_operation(services: Services, name: str) -> None:
    """Cancel an operation. One that is done stays as it is, without an error. Raises NotFound."""
    record = await services.reader.operation(name)
    if record.state.is_final:
        return
    # No trial was handed out yet; what an export has written stays.
    ended, text = OperationState.CANCELLED, "The operation was cancelled."
    if record.export is not None:
        text += f" Delete the files that it has written to {record.export.output}."
    error = JobError(CANCELLED, text)
    # It may have ended at this moment, which is fine as well.
    with contextlib.suppress(StaleCommit):
        await services.studies.finish_operation(
            replace(record, state=ended, error=error, updated=services.now())
        )
    services.exports.stop(name)
    services.notices.publish(record.subject)
