"""gRPC over the registry of handlers, and the gRPC server.

One generic gRPC handler serves all methods with the same handlers as REST (`api.rest`). It contains no method
names. `v1beta1` of the Vertex services is an alias of `v1`. Routing headers (`x-goog-request-params`) are
ignored, because requests contain the same values.

This module also shortens long errors. Clients may reject trailers above 8 KiB (gRPC's default). They then
report the rejected trailer instead of the error.
"""

import asyncio
import importlib
import os
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, Final, cast
from urllib.parse import unquote

from google.protobuf.message import DecodeError, Message
from msgspec import Struct

from trainshed.access.authentication_limits import SOURCE, AuthenticationLimiter
from trainshed.access.principals import Principal
from trainshed.api.calls.audit import record_failed_authentication
from trainshed.api.calls.call import Call
from trainshed.api.calls.errors import PublicError, not_served, public_error
from trainshed.api.calls.http import HEADER, log_request, max_body_size, request_id_of
from trainshed.api.calls.registry import Registry
from trainshed.api.calls.services import Authenticate, Services
from trainshed.api.calls.versions import BETA, V1, Version
from trainshed.api.registry import BUILT_IN
from trainshed.eventloop.background import joined, wait_shielded
from trainshed.telemetry.lines import request_id
from trainshed.wire import json as wire_json
from trainshed.wire import pool, routes
from trainshed.wire.routes import Rpc
from trainshed.wire.status import StatusCode, Violation, WireError, status_message


@contextmanager
def _quiet_grpc_environment() -> Generator[None]:
    """Set environment variables that gRPC's core reads during its import. Remove them afterwards, so child
    processes do not inherit them.

    By default, gRPC writes a line to stderr for every stray connection. After a fork, it also runs code in
    the child process. This breaks open connections if the child starts another program (grpc/grpc#28557).
    Variables that the operator has set stay unchanged.
    """
    quiet = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}
    added = quiet.keys() - os.environ.keys()
    os.environ.update((name, quiet[name]) for name in added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


with _quiet_grpc_environment():
    grpc: Any = importlib.import_module("grpc")
    aio: Any = importlib.import_module("grpc.aio")


_CODES: Final[dict[int, Any]] = {code.value[0]: code for code in grpc.StatusCode}
DETAILS: Final = "grpc-status-details-bin"
"""Name of the trailer that contains a google.rpc.Status with the code, the message and the details."""
_MAX_TRAILER_SIZE: Final = 7_000
"""Maximum size in bytes of message and details together, encoded as on the wire."""
_MAX_SHORT_MESSAGE: Final = 300
_MAX_DESCRIPTION: Final = 60
_MAX_FIELD: Final = 200
"""Maximum length of a field name in a shortened error, in characters. The error fits into the trailer even if
each character has four bytes."""
_SHORTENED_SUFFIX: Final = " ... (shortened to fit into a gRPC trailer; REST responses are complete)"


class GrpcTransport(aio.ServerInterceptor):  # pyright: ignore[reportUntypedBaseClass]
    """The public APIs as an interceptor of a grpc.aio server. The server requests the handler of each call
    from the interceptor."""

    def __init__(self, services: Services, authenticate: Authenticate, registry: Registry) -> None:
        self._services = services
        self._authenticate = authenticate
        self._registry = registry
        self._authentication_limiter = AuthenticationLimiter(partial(record_failed_authentication, services))
        self._running: set[asyncio.Task[bytes | PublicError]] = set()
        self._methods: dict[str, tuple[pool.Api, Rpc]] = {}
        for api in pool.APIS:
            for path, rpc in routes.rpcs(api).items():
                self._methods.setdefault(path, (api, rpc))

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Return the handler of one call. Every path has a handler, because the handler also reports errors.
        The handler receives the request as a stream, and reads the stream only after authentication.
        Therefore requests of unauthenticated callers are not held in memory."""
        path: str = details.method
        metadata: Iterable[tuple[str, str | bytes]] = details.invocation_metadata
        header = _value(metadata, "authorization")
        identity, began = request_id_of(_value(metadata, HEADER) or ""), time.perf_counter()

        async def handle(requests: Any, context: Any) -> bytes:
            request_id.set(identity)
            SOURCE.set(_source(context))
            try:
                principal = await self._authenticate(header)
            except Exception as error:
                is_served = canonical_path(path) in self._methods or _find_known_method(path)
                outcome = public_error(error, "", path) if is_served else self._unserved_error(path)
                return await self._end(context, path, outcome, identity, began)
            # A call continues if its client disconnects. Otherwise a job could be stored without a
            # notification of the controller. It would then wait until the service restarts.
            task = joined(self._answer(path, principal, await anext(aiter(requests), b"")))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            return await self._end(context, path, await wait_shielded(task), identity, began)

        async def stream(requests: Any, context: Any) -> AsyncGenerator[bytes]:
            request_id.set(identity)
            SOURCE.set(_source(context))
            outcome: bytes | PublicError = b""
            try:
                principal = await self._authenticate(header)
                async with aclosing(self._open(path, principal, requests)) as responses:
                    async for response in responses:
                        yield response
            except Exception as error:  # Catch all, so that the caller always gets a response.
                outcome = public_error(error, api, path)
            await self._end(context, path, outcome, identity, began)

        api, rpc = self._methods.get(canonical_path(path), ("", None))
        if rpc is not None and rpc.streams:
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.stream_unary_rpc_method_handler(handle)

    async def _open(self, path: str, principal: Principal, requests: Any) -> AsyncGenerator[bytes]:
        """Yield the responses of a stream. Only the first request of the stream is read."""
        _, rpc = self._methods[canonical_path(path)]
        first = await anext(aiter(requests), b"")
        call = Call(principal, self._services, rpc.full_name)
        responses = await self._registry.open_stream(call, len(first), partial(_read, rpc, first))
        async with aclosing(responses):
            async for response in responses:
                yield response.SerializeToString()

    async def _end(
        self, context: Any, path: str, outcome: bytes | PublicError, identity: str, began: float
    ) -> bytes:
        """Send the outcome and the request ID to the caller. Count and log the call. `began`: the value of
        `time.perf_counter` at its start."""
        refused = outcome if isinstance(outcome, PublicError) else None
        code = _CODES[refused.code.number if refused is not None else 0]
        log_request("gRPC", path, code.name, began)
        if (known := self._methods.get(canonical_path(path))) is not None:
            seconds = time.perf_counter() - began
            name = known[1].full_name
            self._services.meters.requests.observe(seconds, "grpc", name, code.name)
        trailers = ((HEADER, identity),)
        if refused is not None:
            if refused.code is StatusCode.UNAUTHENTICATED:
                await self._authentication_limiter.delay_failure(SOURCE.get())
            message, status = fit_to_trailer(refused)
            await context.abort(code, message, ((DETAILS, status), *trailers))
        context.set_trailing_metadata(trailers)
        return cast(bytes, outcome)

    async def finish(self, seconds: float) -> None:
        """Wait at most `seconds` until all calls whose clients have disconnected are finished."""
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)

    async def _answer(self, path: str, principal: Principal, request: bytes) -> bytes | PublicError:
        api, rpc = self._methods.get(canonical_path(path), ("", None))
        try:
            if rpc is None:
                return self._unserved_error(path)
            read, version = partial(_read, rpc, request), version_of(path)
            call = Call(principal, self._services, rpc.full_name)
            answer = await self._registry.answer(call, version, len(request), read)
            return answer.SerializeToString()
        except Exception as error:  # Catch all, so that the caller always gets a response.
            return public_error(error, api, path)

    def _unserved_error(self, path: str) -> PublicError:
        """Return the error for a path without a handler. Raises NotServed if the path belongs to a method of
        the public APIs, as the REST surface does."""
        if (known := _find_known_method(path)) is not None:
            raise not_served(known, self._registry.methods)
        services = ", ".join(sorted({name.rpartition(".")[0] for name in self._registry.methods}))
        text = f"The method {path} does not exist. This service serves {services}."
        return PublicError(StatusCode.UNIMPLEMENTED, text)


def _source(context: Any) -> str:
    """Return the network address of the caller, or "" for a program of a job, which connects by a Unix
    socket. For a forwarded connection, the name of the connection contains the address (`serve.relay`)."""
    kind, _, address = unquote(context.peer()).partition(":")
    if kind == "unix-abstract":
        return address.split("/")[-2]
    return "" if kind == "unix" else address.rpartition(":")[0].strip("[]")


def _find_known_method(path: str) -> routes.KnownMethod | None:
    names = (some.removeprefix("/").replace("/", ".") for some in (canonical_path(path), path))
    return next(filter(None, map(routes.find_by_name, names)), None)


def _read(rpc: Rpc, request: bytes) -> Message:
    """Parse a request with the same checks as REST. Clear the fields that only the service sets. Raises
    WireError."""
    if len(request) > (max_size := max_body_size(rpc.method)):
        raise WireError((Violation("", f"Request size exceeds the limit: {max_size} bytes."),))
    message = pool.message_class(rpc.request)()
    try:
        message.ParseFromString(request)
    except DecodeError:
        raise WireError(
            (Violation("", f"The request cannot be decoded. Send a {rpc.request} message."),)
        ) from None
    wire_json.check_received(message)
    return message


def _value(metadata: Iterable[tuple[str, str | bytes]], name: str) -> str | None:
    for key, value in metadata:
        if key == name:
            return value if isinstance(value, str) else value.decode("latin-1")
    return None


def version_of(path: str) -> Version:
    """Return the version of a gRPC path (`/package.Service/Method`)."""
    if path.startswith(f"/{BETA}"):
        return Version.V1BETA1
    return Version.V1 if path.startswith(f"/{V1}") else Version.UNSPECIFIED


def canonical_path(path: str) -> str:
    """Return the path of the method that serves calls to `path`."""
    is_beta = version_of(path) is Version.V1BETA1
    return f"/{V1}{path[len(BETA) + 1 :]}" if is_beta else path


def fit_to_trailer(refused: PublicError) -> tuple[str, bytes]:
    """Return an error's message and its serialized google.rpc.Status, shortened to fit into a trailer.

    Long texts are cut. Only the first violations are included, together with the number of omitted
    violations.
    """
    message, violations = refused.message, refused.violations
    status = _status(refused, message, violations)
    if _fits(message, status):
        return message, status
    message = message[:_MAX_SHORT_MESSAGE] + _SHORTENED_SUFFIX
    short = [Violation(v.field[:_MAX_FIELD], v.description[:_MAX_DESCRIPTION]) for v in violations]
    shown = len(short)
    while not _fits(message, status):
        more = f"... and {len(short) - shown} more. REST responses contain all errors."
        further = [Violation("", more)] if shown < len(short) else []
        status = _status(refused, message, (*short[:shown], *further))
        shown = shown * 9 // 10
    return message, status


def _status(refused: PublicError, message: str, violations: Sequence[Violation]) -> bytes:
    status: Message = status_message(refused.code, message, violations, reason=refused.reason)
    return status.SerializeToString(deterministic=True)


def _fits(message: str, status: bytes) -> bool:
    """Whether message and status fit into a trailer on the wire. Messages are percent-encoded, and binary
    trailers are in base64."""
    plain = sum(
        1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in message.encode(errors="replace")
    )
    return plain + (len(status) + 2) // 3 * 4 <= _MAX_TRAILER_SIZE


OPTIONS: Final = (
    # This limit is gRPC's own default. After parsing, a message of many small parts needs forty times its
    # size.
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_concurrent_streams", 128),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.absolute_max_metadata_size", 64 << 10),
    # Timeout of the TLS handshake and of the first frame.
    ("grpc.server_handshake_timeout_ms", 20_000),
    # Clients may send keepalive pings at any rate.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    # Detects clients whose machine has disappeared. gRPC's default is two hours.
    ("grpc.keepalive_time_ms", 300_000),
    # Limits how long connections without calls stay open. Calls in progress finish, and clients reconnect
    # without an error. `max_connection_idle_ms` would close connections with an error that clients print.
    ("grpc.max_connection_age_ms", 300_000),
    # Disable port sharing. With gRPC's default, two services could listen on the same port, and each would
    # receive some of the calls.
    ("grpc.so_reuseport", 0),
)


class Identity(Struct, frozen=True):
    """The server's private key and certificate chain for TLS, in PEM."""

    key: bytes
    chain: bytes


class GrpcServer:
    """A gRPC server. It must be created and used on the same event loop."""

    def __init__(
        self,
        services: Services,
        authenticate: Authenticate,
        connections: int = 1024,
        *,
        registry: Registry = BUILT_IN,
    ) -> None:
        """`connections`: maximum number of open connections per address."""
        self._transport = GrpcTransport(services, authenticate, registry)
        options = (*OPTIONS, ("grpc.max_allowed_incoming_connections", connections))
        self._server: Any = aio.server(interceptors=(self._transport,), options=options)

    def listen(self, address: str, identity: Identity | None = None) -> None:
        """Listen at `unix:PATH` or `HOST:PORT`. TLS is used if `identity` is set. Raises RuntimeError if the
        address is not available."""
        if identity is None:
            self._server.add_insecure_port(address)
        else:
            pair = (identity.key, identity.chain)
            self._server.add_secure_port(address, grpc.ssl_server_credentials((pair,)))

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace: float) -> None:
        """Reject new calls. Wait at most `grace` seconds for open calls, then at most as long again for calls
        whose clients have disconnected."""
        await self._server.stop(grace)
        await self._transport.finish(grace)
