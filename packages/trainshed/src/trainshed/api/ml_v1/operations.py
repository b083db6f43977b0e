"""`ml` v1 operations: get and cancel those of studies, below a location. Training jobs make none, so a
project's list is empty."""

from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.parents import ProjectName
from trainshed.api.ml_v1.studies import read_operation
from trainshed.api.ml_v1.study_views import operation
from trainshed.api.resources.studies import cancel_operation
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.ml.v1.Operations"


async def get(call: Call, request: Any) -> Message:
    return await operation(call.services, await read_operation(call.services, request.name))


async def cancel(call: Call, request: Any) -> Message:
    await read_operation(call.services, request.name)
    await cancel_operation(call.services, request.name)
    return pool.message_class("google.protobuf.Empty")()


async def list_(call: Call, request: Any) -> Message:
    ProjectName.parse(request.name, field="name")
    return pool.message_class("google.longrunning.ListOperationsResponse")()


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.ListOperations": list_,
    f"{_SERVICE}.GetOperation": get,
    f"{_SERVICE}.CancelOperation": cancel,
}
