"""Long-running operations: creates records of operations that finish at once, and waits for or cancels
operations."""

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


def finished_operation(
    services: Services, kind: OperationKind, target: str, response: Message | None = None
) -> Operation:
    """Return the record of a finished operation. It is in the location of `target`, which is the full name of
    a resource. `response`: None = an empty message, as for a DELETE."""
    now = services.now()
    answer = "" if response is None else json.dumps(wire_json.to_public(response), ensure_ascii=False)
    return Operation(
        name=f"{'/'.join(target.split('/')[:4])}/operations/{services.new_uid()}",
        kind=kind,
        target=target,
        created=now,
        updated=now,
        response=answer,
        response_type="" if response is None else response.DESCRIPTOR.full_name,
    )


async def wait_for_operation(services: Services, name: str, seconds: float) -> Operation:
    """Return the operation when it finishes, after `seconds`, or when the service stops, whichever is first.
    Raises NotFound."""
    clock = asyncio.get_running_loop()
    end = clock.time() + seconds
    record = await services.reader.operation(name)
    while not record.state.is_final:
        # Read the notice count before the record, so that a change after the read of the record increases the
        # count.
        subject = record.subject
        seen = services.notices.count(subject)
        record = await services.reader.operation(name)
        left = end - clock.time()
        if record.state.is_final or left <= 0 or services.closing.is_set():
            break
        notice = services.notices.wait_beyond(subject, seen, left)
        await first_of(notice, services.closing.wait())
    return record


async def cancel_operation(services: Services, name: str) -> None:
    """Cancel an operation. A finished operation stays unchanged; this is not an error. Raises NotFound."""
    record = await services.reader.operation(name)
    if record.state.is_final:
        return
    # A cancelled suggestion has assigned no trials yet. A cancelled export leaves the files that it has
    # already written.
    ended, text = OperationState.CANCELLED, "The operation was cancelled."
    if record.export is not None:
        text += f" Delete the files that it has written to {record.export.output}."
    error = JobError(CANCELLED, text)
    # Ignore the error if the operation has finished in the meantime. It then stays unchanged.
    with contextlib.suppress(StaleCommit):
        await services.studies.finish_operation(
            replace(record, state=ended, error=error, updated=services.now())
        )
    services.exports.stop(name)
    services.notices.publish(record.subject)
