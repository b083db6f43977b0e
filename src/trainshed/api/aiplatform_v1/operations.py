"""Long-running operations. Deletions are the only ones here, and they are done when they are answered."""

from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import views
from trainshed.api.call import Call, Handlers
from trainshed.api.paging import decode_token, encode_token, page_size
from trainshed.wire import pool

_SERVICE: Final = "google.longrunning.Operations"


async def get(call: Call, request: Any) -> Message:
    """GetOperation, and WaitOperation: there is never anything left to wait for."""
    return views.operation(await call.services.reader.operation(request.name))


async def list_(call: Call, request: Any) -> Message:
    size = page_size(request.page_size, default=100, maximum=1_000)
    after = decode_token(request.page_token, request.name) if request.page_token else ""
    found = await call.services.reader.operations(request.name, after, size + 1)
    page = found[:size]
    return pool.message_class("google.longrunning.ListOperationsResponse")(
        operations=[views.operation(record) for record in page],
        next_page_token=(encode_token(page[-1].name, request.name) if len(found) > size else ""),
    )


async def cancel(call: Call, request: Any) -> Message:
    """Too late for an operation that is done, which is no error; an unknown one is."""
    await call.services.reader.operation(request.name)
    return pool.message_class("google.protobuf.Empty")()


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.GetOperation": get,
    f"{_SERVICE}.WaitOperation": get,
    f"{_SERVICE}.ListOperations": list_,
    f"{_SERVICE}.CancelOperation": cancel,
}
