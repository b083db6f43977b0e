"""One call of one API method, as every transport hands it to a handler."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from trainshed.access.principals import Principal
from trainshed.api.services import Services


@dataclass(frozen=True, slots=True)
class Call:
    """`method` is the full name, `google.cloud.aiplatform.v1.JobService.CreateCustomJob`."""

    principal: Principal
    services: Services
    method: str


# The request's fields are those of the method's request message, which only the descriptors know.
Handler = Callable[[Call, Any], Awaitable[Message]]
"""Takes the request message, answers the response message, raises the errors of `api.errors`."""

Handlers = Mapping[str, Handler]
"""Handlers by full method name."""
