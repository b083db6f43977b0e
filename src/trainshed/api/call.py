"""One call of one API method, as every transport hands it to a handler."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from trainshed.access.permissions import authorize
from trainshed.access.principals import Principal
from trainshed.api.delegation import refuse_more
from trainshed.api.scope import projects_of
from trainshed.api.services import Services
from trainshed.api.unserved import not_served
from trainshed.wire import known_methods
from trainshed.wire.known_methods import KnownMethod


@dataclass(frozen=True, slots=True)
class Call:
    """`method` is the full name, `google.cloud.aiplatform.v1.JobService.CreateCustomJob`.

    `value_texts` has the caller's own JSON of google.protobuf.Value fields by their path in the request
    (`training_pipeline.training_task_inputs`): a Value holds doubles only, so large integers, and 1 beside 1.0, are
    there alone (STACK section 1). Empty over gRPC, where a Value is all there is.
    """

    principal: Principal
    services: Services
    method: str
    value_texts: Mapping[str, str] = field(default_factory=dict[str, str])


# The request's fields are those of the method's request message, which only the descriptors know.
Handler = Callable[[Call, Any], Awaitable[Message]]
"""Takes the request message, answers the response message, raises the errors of `api.errors`."""

Handlers = Mapping[str, Handler]
"""Handlers by full method name."""


def permitted(handlers: Handlers, principal: Principal, method: str) -> Handler:
    """The handler of `method` (full name), which `principal` may call. Raises NotServed, PermissionDenied.

    For who may work in one project only, one that looks at what the request names before anything else.
    """
    handler = handlers.get(method)
    if handler is None:
        raise not_served(known_methods.by_name(method) or KnownMethod(method, ""), handlers)
    authorize(principal, method)
    if not principal.project:
        return handler

    async def within(call: Call, request: Any) -> Message:
        authorize(principal, method, projects_of(request))
        refuse_more(principal, method, request)
        return await handler(call, request)

    return within
