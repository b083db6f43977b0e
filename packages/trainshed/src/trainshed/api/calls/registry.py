"""The methods of a service: read the request, check the permission, call the handler, on every transport."""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Set
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from msgspec import Struct
from msgspec.structs import replace

from trainshed.access.permissions import authorize
from trainshed.api.calls.audit import audited, record_secrets
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.checks import completed
from trainshed.api.calls.errors import not_served
from trainshed.api.calls.http import LARGE, read_aside
from trainshed.api.calls.impersonation import refuse_more, texts_of
from trainshed.api.calls.masks import apply_read_mask
from trainshed.api.calls.project_names import known_to, name_by_id, projects_of, subject_of
from trainshed.api.calls.streams import StreamHandlers, guarded
from trainshed.api.calls.versions import Version
from trainshed.core.errors import PermissionDenied
from trainshed.wire import json as wire_json
from trainshed.wire import routes
from trainshed.wire.status import WireError

T = TypeVar("T")


_CREATING: Final = frozenset(
    {
        "google.cloud.aiplatform.v1.JobService.CreateCustomJob",
        "google.cloud.aiplatform.v1.JobService.CreateHyperparameterTuningJob",
        "google.cloud.aiplatform.v1.PipelineService.CreateTrainingPipeline",
        "google.cloud.ml.v1.JobService.CreateJob",
    }
)


Check = Callable[[Call, Any], object]
"""Validates a request message without side effects. Raises InvalidRequest, or another refusal."""


Checks = Mapping[str, Check]
"""Checks by full method name."""


class Registry(Struct, frozen=True):
    """The methods that a service serves."""

    #: By their full names.
    handlers: Handlers
    #: Checks that can run before a large request is read completely.
    checks: Checks
    #: Methods that return a stream, by their full names.
    streams: StreamHandlers = {}

    @property
    def methods(self) -> Set[str]:
        """The full names of all methods."""
        return self.handlers.keys() | self.streams.keys()

    async def opened(
        self, call: Call, size: int, read: Callable[[], Message]
    ) -> AsyncGenerator[Message]:
        """Return the stream of responses to a first request of `size` bytes, which `read` parses. Raises
        NotServed, PermissionDenied, WireError, and the errors of the handler."""
        handler = self.streams.get(call.method)
        if handler is None:
            raise not_served(_known(call.method), self.methods)
        request = await read_aside(size, read)
        name_by_id(request, known_to(call.principal, call.services))
        responses = await _performed(handler, call, request)
        return guarded(responses, call.services, call.principal)

    async def answered(
        self, call: Call, version: Version, size: int, read: Callable[[], Message]
    ) -> Message:
        """Return the response to a request of `size` bytes, which `read` parses. A large one is read and
        checked in a thread, except for checks that need the store. Raises NotServed, PermissionDenied,
        WireError, and the errors of the handler."""
        handler, check = self.handlers.get(call.method), self.checks.get(call.method)
        if handler is None:
            raise not_served(_known(call.method), self.methods)

        def named(request: Message) -> Message:
            name_by_id(request, known_to(call.principal, call.services))
            return request

        def checked(request: Message) -> Message:
            if check is not None:
                # `_performed` rejects and records callers without permission. They see no other errors.
                with contextlib.suppress(PermissionDenied):
                    authorize(call.principal, call.method, tuple(projects_of(request)))
                    check(call, request)
            return request

        def read_whole() -> Message:
            try:
                request = named(read())
            except WireError as refused:
                if check is None:
                    raise
                raise completed(refused, lambda broken: checked(named(broken))) from None
            return checked(request) if size >= LARGE else request

        request = await read_aside(size, read_whole)
        answer = apply_read_mask(await _performed(handler, call, request), request)
        service = call.method.rpartition(".")[0]
        call.services.beta.dress(answer, version, made=service not in routes.MIXIN_SERVICES)
        return answer


def _known(method: str) -> routes.KnownMethod:
    return routes.find_by_name(method) or routes.KnownMethod(method, "")


async def _performed(handler: Callable[[Call, Any], Awaitable[T]], call: Call, request: Any) -> T:
    """Return the response of a handler, if the principal has the permission in all projects of the request.
    Raises PermissionDenied, and the errors of the handler."""
    principal, services, method = call.principal, call.services, call.method
    projects = tuple(projects_of(request))

    async def answer() -> T:
        authorize(principal, method, projects)
        allowed = call
        if method in _CREATING:
            allowed = replace(call, public=wire_json.to_public(request))
            texts = list(texts_of(allowed.public))
            refuse_more(principal, services, texts)
            record_secrets(texts)
        if services.sent is not None:
            services.sent(method, request)
        return await handler(allowed, request)

    project, resource = next(iter(projects), ""), subject_of(request)
    return await audited(answer, services, principal, method, project=project, resource=resource)
