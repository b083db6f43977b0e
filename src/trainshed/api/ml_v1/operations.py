"""`ml` v1 projects.operations: training jobs make none, so the list is empty."""

from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.call import Call, Handlers
from trainshed.api.parents import ProjectName
from trainshed.core.errors import NotFound
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.ml.v1.Operations"


async def get(call: Call, request: Any) -> Message:
    """Answers every GetOperation and CancelOperation: there is none."""
    raise NotFound(f"Operation {request.name!r} was not found: ml v1 jobs make no operations.")


async def list_(call: Call, request: Any) -> Message:
    ProjectName.parse(request.name, field="name")
    return pool.message_class("google.longrunning.ListOperationsResponse")()


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.ListOperations": list_,
    f"{_SERVICE}.GetOperation": get,
    f"{_SERVICE}.CancelOperation": get,
}
