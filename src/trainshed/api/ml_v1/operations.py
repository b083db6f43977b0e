"""`ml` v1 operations: those of studies, below a location. Training jobs make none, so a project's list is empty."""

from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1.operations import cancel as cancel_any
from trainshed.api.call import Call, Handlers
from trainshed.api.ml_v1.studies import read_operation
from trainshed.api.ml_v1.study_views import operation
from trainshed.api.parents import ProjectName
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.ml.v1.Operations"


async def get(call: Call, request: Any) -> Message:
    return await operation(call.services, await read_operation(call.services, request.name))


async def cancel(call: Call, request: Any) -> Message:
    await read_operation(call.services, request.name)
    return await cancel_any(call, request)


async def list_(call: Call, request: Any) -> Message:
    ProjectName.parse(request.name, field="name")
    return pool.message_class("google.longrunning.ListOperationsResponse")()


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.ListOperations": list_,
    f"{_SERVICE}.GetOperation": get,
    f"{_SERVICE}.CancelOperation": cancel,
}
