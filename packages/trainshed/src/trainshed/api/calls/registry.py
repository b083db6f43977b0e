"""The methods that a service serves. Each call is parsed, authorized and executed in the same way on all
transports."""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Set
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from msgspec import Struct
from msgspec.structs import replace

from trainshed.access.permissions import authorize
from trainshed.api.calls.audit import audit_call, record_secrets
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.checks import with_check_violations
from trainshed.api.calls.errors import not_served
from trainshed.api.calls.http import LARGE_BODY, parse_by_size
from trainshed.api.calls.impersonation import reject_escalation, texts_of
from trainshed.api.calls.masks import apply_read_mask
from trainshed.api.calls.project_names import (
    projects_known_to,
    projects_of,
    replace_project_numbers,
    subject_of,
)
from trainshed.api.calls.streams import StreamHandlers, guard_stream
from trainshed.api.calls.versions import Version
from trainshed.core.errors import PermissionDenied
from trainshed.wire import json as wire_json
from trainshed.wire import routes
from trainshed.wire.status import WireError

T = TypeVar("T")


_JOB_CREATION_METHODS: Final = frozenset(
    {
        "google.cloud.aiplatform.v1.JobService.CreateCustomJob",
        "google.cloud.aiplatform.v1.JobService.CreateHyperparameterTuningJob",
        "google.cloud.aiplatform.v1.PipelineService.CreateTrainingPipeline",
        "google.cloud.aiplatform.v1.PipelineService.CreatePipelineJob",
        "google.cloud.aiplatform.v1.ScheduleService.CreateSchedule",
        "google.cloud.aiplatform.v1.ScheduleService.UpdateSchedule",
        "google.cloud.ml.v1.JobService.CreateJob",
    }
)


Check = Callable[[Call, Any], object]
"""A function that checks a request message without side effects. Raises InvalidRequest or other request
errors."""


Checks = Mapping[str, Check]
"""Checks by full method name."""


class Registry(Struct, frozen=True):
    """The methods that a service serves."""

    #: Handlers, by full method name.
    handlers: Handlers
    #: Checks that can run on a large request before it is parsed completely.
    checks: Checks
    #: Stream handlers, by full method name.
    streams: StreamHandlers = {}

    @property
    def methods(self) -> Set[str]:
        """Full names of all methods."""
        return self.handlers.keys() | self.streams.keys()

    async def open_stream(
        self, call: Call, size: int, read: Callable[[], Message]
    ) -> AsyncGenerator[Message]:
        """Return the responses of a stream. `read` parses its first request, which has `size` bytes. Raises
        NotServed, PermissionDenied, WireError, and the errors of the handler."""
        handler = self.streams.get(call.method)
        if handler is None:
            raise not_served(_find_known_method(call.method), self.methods)
        request = await parse_by_size(size, read)
        replace_project_numbers(request, projects_known_to(call.principal, call.services))
        responses = await _perform(handler, call, request)
        return guard_stream(responses, call.services, call.principal)

    async def answer(self, call: Call, version: Version, size: int, read: Callable[[], Message]) -> Message:
        """Return the response to a request. `read` parses the request, which has `size` bytes.

        A large request is parsed in a thread. Checks that do not need the store run there, too. Raises
        NotServed, PermissionDenied, WireError, and the errors of the handler.
        """
        handler, check = self.handlers.get(call.method), self.checks.get(call.method)
        if handler is None:
            raise not_served(_find_known_method(call.method), self.methods)

        def with_project_ids(request: Message) -> Message:
            replace_project_numbers(request, projects_known_to(call.principal, call.services))
            return request

        def check_request(request: Message) -> Message:
            if check is not None:
                # If the caller lacks the permission, skip the check and ignore the error here. `_perform`
                # then rejects the caller and records this in the audit log. Such callers receive no other
                # errors.
                with contextlib.suppress(PermissionDenied):
                    authorize(call.principal, call.method, tuple(projects_of(request)))
                    check(call, request)
            return request

        def parse_and_check() -> Message:
            try:
                request = with_project_ids(read())
            except WireError as refused:
                if check is None:
                    raise
                raise with_check_violations(
                    refused, lambda broken: check_request(with_project_ids(broken))
                ) from None
            return check_request(request) if size >= LARGE_BODY else request

        request = await parse_by_size(size, parse_and_check)
        answer = apply_read_mask(await _perform(handler, call, request), request)
        service = call.method.rpartition(".")[0]
        call.services.beta.set_types(answer, version, created=service not in routes.MIXIN_SERVICES)
        return answer


def _find_known_method(method: str) -> routes.KnownMethod:
    return routes.find_by_name(method) or routes.KnownMethod(method, "")


async def _perform(handler: Callable[[Call, Any], Awaitable[T]], call: Call, request: Any) -> T:
    """Call a handler and return its response. The principal must have the permission in all projects of the
    request. Raises PermissionDenied and the errors of the handler."""
    principal, services, method = call.principal, call.services, call.method
    projects = tuple(projects_of(request))

    async def answer() -> T:
        authorize(principal, method, projects)
        allowed = call
        if method in _JOB_CREATION_METHODS:
            allowed = replace(call, public=wire_json.to_public(request))
            texts = list(texts_of(allowed.public))
            reject_escalation(principal, services, texts)
            record_secrets(texts)
        if services.on_request is not None:
            services.on_request(method, request)
        return await handler(allowed, request)

    project, resource = next(iter(projects), ""), subject_of(request)
    return await audit_call(answer, services, principal, method, project=project, resource=resource)
