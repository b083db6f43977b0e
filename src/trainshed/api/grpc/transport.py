"""gRPC over the registry of handlers: find the method, authenticate, authorise, read, call, answer.

The same handlers as REST (`api.rest`), one generic gRPC handler for all of them. Knows no method by name but for the
alias `v1beta1` (`versions`). Routing headers (`x-goog-request-params`) are not read: the request says it all.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from trainshed.access.principals import Principal
from trainshed.api import aside
from trainshed.api.call import Call, Handlers, permitted
from trainshed.api.checks import Checks, completed
from trainshed.api.errors import Refusal, internal_refusal, refusal
from trainshed.api.grpc.library import grpc
from trainshed.api.grpc.statuses import DETAILS, told
from trainshed.api.grpc.versions import aliased, version_of
from trainshed.api.http import most_of
from trainshed.api.services import Services
from trainshed.api.unserved import not_served
from trainshed.api.versions import Version
from trainshed.eventloop.background import joined
from trainshed.wire import counts, known_methods, pool, routes
from trainshed.wire import json as wire_json
from trainshed.wire.routes import Rpc
from trainshed.wire.status import StatusCode, Violation, WireError

_CODES: Final[dict[int, Any]] = {code.value[0]: code for code in grpc.StatusCode}
_log = logging.getLogger("trainshed.api")


class GrpcTransport:
    """The public APIs as one generic handler (`grpc.GenericRpcHandler`) for a grpc.aio server."""

    def __init__(
        self,
        handlers: Handlers,
        checks: Checks,
        services: Services,
        authenticate: Callable[[str | None], Principal],
    ) -> None:
        self._handlers = handlers
        self._checks = checks
        self._services = services
        self._authenticate = authenticate
        self._running: set[asyncio.Task[bytes | Refusal]] = set()
        self._methods: dict[str, tuple[pool.Api, Rpc]] = {}
        for api in pool.APIS:
            for path, rpc in routes.rpcs(api).items():
                self._methods.setdefault(path, (api, rpc))

    def service(self, details: Any) -> Any:
        """gRPC asks for the handler of one call here; there is one for every path, if only to say what is wrong."""
        path: str = details.method
        metadata: Iterable[tuple[str, str | bytes]] = details.invocation_metadata
        found = self._methods.get(aliased(path))

        async def refuse(_: Any, context: Any) -> bytes:
            # As a stream, of which nothing is read: no message of a stranger is kept.
            outcome = await self._answer(path, found, metadata, b"")
            return await _abort(context, outcome) if isinstance(outcome, Refusal) else outcome

        async def answer(request: bytes, context: Any) -> bytes:
            # A call that its caller gives up goes on to its end: a job that is stored and never woken would wait for
            # the next start.
            task = joined(self._answer(path, found, metadata, request))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            outcome = await asyncio.shield(task)
            return await _abort(context, outcome) if isinstance(outcome, Refusal) else outcome

        try:
            self._authenticate(_authorization(metadata))
        except Exception:
            return grpc.stream_unary_rpc_method_handler(refuse)
        return grpc.unary_unary_rpc_method_handler(answer)

    async def finish(self, seconds: float) -> None:
        """Wait for the calls that their callers gave up, for so many seconds at most."""
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)

    def served(self) -> tuple[str, ...]:
        """Full names of the services with at least one handler."""
        return tuple(sorted({method.rpartition(".")[0] for method in self._handlers}))

    def _unserved(self, path: str, metadata: Iterable[tuple[str, str | bytes]]) -> Refusal:
        """What is said of a path without a handler; the same as over REST where the public APIs have it."""
        known = known_methods.by_name(_name(aliased(path))) or known_methods.by_name(_name(path))
        if known is None:
            services = ", ".join(self.served())
            text = f"There is no method {path} in the APIs that are served here: {services}."
            return Refusal(StatusCode.UNIMPLEMENTED, text)
        try:
            self._authenticate(_authorization(metadata))
            raise not_served(known, self._handlers)
        except Exception as error:
            return refusal(error, "") or internal_refusal()

    async def _answer(
        self,
        path: str,
        found: tuple[pool.Api, Rpc] | None,
        metadata: Iterable[tuple[str, str | bytes]],
        request: bytes,
    ) -> bytes | Refusal:
        if found is None:
            return self._unserved(path, metadata)
        api, rpc = found
        try:
            principal = self._authenticate(_authorization(metadata))
            method = f"{rpc.service}.{rpc.method}"
            handler = permitted(self._handlers, principal, method)
            call = Call(principal, self._services, method)
            message = await aside.read(len(request), lambda: self._read(call, rpc, request))
            answer = await handler(call, message)
            version = version_of(path)
            if version is Version.V1BETA1:
                self._services.beta.remember(answer)
            self._services.beta.dress(answer, version)
            return answer.SerializeToString()
        except Exception as error:
            refused = refusal(error, api)
            if refused is None:
                _log.error("%s failed", path, exc_info=error)
                refused = internal_refusal()
            return refused

    def _read(self, call: Call, rpc: Rpc, request: bytes) -> Message:
        """As `rest` reads a request. Raises WireError, InvalidRequest."""
        check = self._checks.get(call.method)
        if len(request) > (most := most_of(rpc.method)):
            raise WireError((Violation("", f"Request size exceeds the limit: {most} bytes."),))
        try:
            message = _read(rpc, request)
        except WireError as refused:
            raise completed(refused, check, call) from None
        if check is not None and len(request) >= aside.LARGE:
            check(call, message)
        return message


def _name(path: str) -> str:
    """The full name of the method at a gRPC path."""
    return path.removeprefix("/").replace("/", ".")


def _read(rpc: Rpc, request: bytes) -> Message:
    """The request without what only the service writes. Raises WireError."""
    message = pool.message_class(rpc.request)()
    try:
        message.ParseFromString(request)
    except DecodeError:
        raise WireError(
            (Violation("", f"The request is no readable message of the type {rpc.request}."),)
        ) from None
    counts.check_message(message)
    wire_json.clear_output_only(message)
    wire_json.check_enums(message)
    return message


def _authorization(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    for key, value in metadata:
        if key == "authorization":
            return value if isinstance(value, str) else value.decode("latin-1")
    return None


async def _abort(context: Any, refused: Refusal) -> Any:
    answer = told(refused)
    await context.abort(_CODES[answer.code], answer.message, ((DETAILS, answer.details),))
