"""A call of an API method, and the types of handlers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from google.protobuf.message import Message
from msgspec import Struct

from trainshed.access.principals import Principal
from trainshed.api.calls.services import Services
from trainshed.wire import json as wire_json


class Call(Struct, frozen=True):
    """A call of an API method by an authenticated caller."""

    principal: Principal
    services: Services
    #: Full name of the method, such as `google.cloud.aiplatform.v1.JobService.CreateCustomJob`.
    method: str
    #: The request in public JSON. Used for requests that create jobs. None = not converted yet.
    public: dict[str, Any] | None = None


def public_field(call: Call, request: Any, name: str) -> dict[str, Any]:
    """Return the request's field `name` in public JSON."""
    if call.public is None:
        return wire_json.to_public(getattr(request, name))
    return call.public.setdefault(camel_case(name), {})


# The request is Any, because its fields are known only from a protobuf descriptor.
Handler = Callable[[Call, Any], Awaitable[Message]]
"""A function that returns the response message for a request message. Raises the errors of
`api.calls.errors`."""


Handlers = Mapping[str, Handler]
"""Handlers by full method name."""


class JsonCall(Struct, frozen=True):
    """A call of a method without protobuf messages. Request and response are JSON."""

    principal: Principal
    services: Services
    #: Full name of the method.
    method: str
    #: The variables of the path.
    names: Mapping[str, str]
    body: Mapping[str, Any]
    #: Scheme and authority of the address that the caller used.
    root: str


JsonHandler = Callable[[JsonCall], Awaitable[dict[str, Any]]]
"""A function that checks the permission and executes the call. Raises the errors of `api.calls.errors`."""


JsonMethods = Mapping[tuple[str, str], tuple[str, JsonHandler]]
"""The full name and the handler of each method, by HTTP verb and path."""


def camel_case(field: str) -> str:
    """Return a snake_case name in camelCase, such as `displayName` for `display_name`."""
    first, *words = field.split("_")
    return first + "".join(map(str.title, words))
