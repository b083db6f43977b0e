"""The registry of handlers, by the full names of their API methods, and how every transport calls them: read
the request, find out whether the caller may, answer. Additions bring further ones (`api/additions.py`)."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

from google.protobuf.message import Message
from msgspec import Struct

from trainshed.api import ml_v1, projects
from trainshed.api.aiplatform_v1 import (
    datasets,
    job_service,
    locations,
    models,
    operations,
    studies,
    training_pipelines,
)
from trainshed.api.calls.call import Call, Handlers, performed
from trainshed.api.calls.checks import Checks, completed
from trainshed.api.calls.errors import not_served
from trainshed.api.calls.http import LARGE, read_aside
from trainshed.api.calls.versions import Version
from trainshed.api.logging_v2 import entries
from trainshed.wire import routes
from trainshed.wire.routes import KnownMethod
from trainshed.wire.status import WireError


class Registry(Struct, frozen=True):
    """The methods that a service serves."""

    #: By their full names.
    handlers: Handlers
    #: Of those of them whose requests can be read in part.
    checks: Checks

    async def answered(
        self, call: Call, version: Version, size: int, read: Callable[[], Message]
    ) -> Message:
        """Return the answer to a request of `size` bytes, which `read` makes a message of. A large one is
        read and checked aside, as far as that needs no store. Raises NotServed, PermissionDenied, WireError,
        and what the handler raises."""
        handler, check = self.handlers.get(call.method), self.checks.get(call.method)
        if handler is None:
            known = routes.by_name(call.method) or KnownMethod(call.method, "")
            raise not_served(known, self.handlers)

        def read_whole() -> Message:
            try:
                request = read()
            except WireError as refused:
                raise completed(refused, check, call) from None
            if check is not None and size >= LARGE:
                check(call, request)
            return request

        answer = await performed(handler, call, await read_aside(size, read_whole))
        service = call.method.rpartition(".")[0]
        call.services.beta.dress(answer, version, made=service not in routes.MIXED_IN)
        return answer


BUILT_IN: Final = Registry(
    handlers=MappingProxyType(
        {
            method: handler
            for module in (
                job_service,
                training_pipelines,
                models,
                datasets,
                locations,
                operations,
                studies,
                ml_v1,
                entries,
                projects,
            )
            for method, handler in module.HANDLERS.items()
        }
    ),
    checks=MappingProxyType(
        {**job_service.CHECKS, **training_pipelines.CHECKS, **ml_v1.CHECKS, **studies.CHECKS}
    ),
)
"""What every service serves."""
