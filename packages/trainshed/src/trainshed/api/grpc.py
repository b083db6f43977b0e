"""gRPC over the registry of handlers, and the server of it.

One generic gRPC handler serves all methods through the same handlers as REST (`api.rest`). It knows no method
by name; `v1beta1` of the Vertex services is an alias. Routing headers (`x-goog-request-params`) are not read,
because requests contain the same.

This module also decides how much of a refusal fits into a trailer: clients drop trailers that are too large
(by gRPC's default, any above 8 KiB may be dropped) and report that instead of the error, so a refusal that is
too long is shortened.
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
from trainshed.api.calls.errors import Refusal, not_served, refusal
from trainshed.api.calls.http import HEADER, identified, log_request, most_of
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
def _kept_quiet() -> Generator[None]:
    """Set what gRPC's core reads while it is loaded, for it alone: programs that are started do not inherit
    it. By default it writes a line to stderr for every stray connection, and where the process forks it acts
    in the child, which breaks open connections on its way to another program (grpc/grpc#28557). What the
    operator has set is kept."""
    quiet = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}
    ours = quiet.keys() - os.environ.keys()
    os.environ.update((name, quiet[name]) for name in ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


with _kept_quiet():
    grpc: Any = importlib.import_module("grpc")
    aio: Any = importlib.import_module("grpc.aio")


_CODES: Final[dict[int, Any]] = {code.value[0]: code for code in grpc.StatusCode}
DETAILS: Final = "grpc-status-details-bin"
"""The trailer that holds a google.rpc.Status: code and message again, and the details."""
_MOST_TRAILER: Final = 7_000
"""Most bytes of message and details together, as encoded on the wire."""
_SHORT_MESSAGE: Final = 300
_DESCRIPTION: Final = 60
_FIELD: Final = 200
"""Lengths are in characters. A short message alone fits even if each character takes four bytes."""
_REST: Final = " ... (shortened to fit into a gRPC trailer; over REST the answer is whole)"


class GrpcTransport(aio.ServerInterceptor):  # pyright: ignore[reportUntypedBaseClass]
    """The public APIs for a grpc.aio server, which asks for the handler of a call on its event loop."""

    def __init__(self, services: Services, authenticate: Authenticate, registry: Registry) -> None:
        self._services = services
        self._authenticate = authenticate
        self._registry = registry
        self._authentication_limiter = AuthenticationLimiter(
            partial(record_failed_authentication, services)
        )
        self._running: set[asyncio.Task[bytes | Refusal]] = set()
        self._methods: dict[str, tuple[pool.Api, Rpc]] = {}
        for api in pool.APIS:
            for path, rpc in routes.rpcs(api).items():
                self._methods.setdefault(path, (api, rpc))

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Return the handler of one call. Every path has one, if only to say what is wrong. It takes the
        request as a stream, of which nothing is read before the caller is known, so that no message of an
        unauthenticated one is held in memory."""
        path: str = details.method
        metadata: Iterable[tuple[str, str | bytes]] = details.invocation_metadata
        header = _value(metadata, "authorization")
        identity, began = identified(_value(metadata, HEADER) or ""), time.perf_counter()

        async def handle(requests: Any, context: Any) -> bytes:
            request_id.set(identity)
            SOURCE.set(_source(context))
            try:
                principal = await self._authenticate(header)
            except Exception as error:
                is_there = aliased(path) in self._methods or _known(path)
                outcome = refusal(error, "", path) if is_there else self._unserved(path)
                return await self._end(context, path, outcome, identity, began)
            # A call that its client gives up is still completed: a job that was stored without waking the
            # controller would wait until the service's next start.
            task = joined(self._answer(path, principal, await anext(aiter(requests), b"")))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            return await self._end(context, path, await wait_shielded(task), identity, began)

        async def stream(requests: Any, context: Any) -> AsyncGenerator[bytes]:
            request_id.set(identity)
            SOURCE.set(_source(context))
            outcome: bytes | Refusal = b""
            try:
                principal = await self._authenticate(header)
                async with aclosing(self._open(path, principal, requests)) as responses:
                    async for response in responses:
                        yield response
            except Exception as error:  # A caller is answered whatever goes wrong.
                outcome = refusal(error, api, path)
            await self._end(context, path, outcome, identity, began)

        api, rpc = self._methods.get(aliased(path), ("", None))
        if rpc is not None and rpc.streams:
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.stream_unary_rpc_method_handler(handle)

    async def _open(self, path: str, principal: Principal, requests: Any) -> AsyncGenerator[bytes]:
        """Yield the responses of a stream. Only its first request is read."""
        _, rpc = self._methods[aliased(path)]
        first = await anext(aiter(requests), b"")
        call = Call(principal, self._services, rpc.full_name)
        responses = await self._registry.opened(call, len(first), partial(_read, rpc, first))
        async with aclosing(responses):
            async for response in responses:
                yield response.SerializeToString()

    async def _end(
        self, context: Any, path: str, outcome: bytes | Refusal, identity: str, began: float
    ) -> bytes:
        """Send the outcome to the caller, with the request's id; count and log it. `began`: by
        `time.perf_counter`."""
        refused = outcome if isinstance(outcome, Refusal) else None
        code = _CODES[refused.code.number if refused is not None else 0]
        log_request("gRPC", path, code.name, began)
        if (known := self._methods.get(aliased(path))) is not None:
            seconds = time.perf_counter() - began
            name = known[1].full_name
            self._services.meters.requests.observe(seconds, "grpc", name, code.name)
        trailers = ((HEADER, identity),)
        if refused is not None:
            if refused.code is StatusCode.UNAUTHENTICATED:
                await self._authentication_limiter.delay_failure(SOURCE.get())
            message, status = fitting(refused)
            await context.abort(code, message, ((DETAILS, status), *trailers))
        context.set_trailing_metadata(trailers)
        return cast(bytes, outcome)

    async def finish(self, seconds: float) -> None:
        """Wait at most `seconds` for calls that still run although their clients gave them up."""
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)

    async def _answer(self, path: str, principal: Principal, request: bytes) -> bytes | Refusal:
        api, rpc = self._methods.get(aliased(path), ("", None))
        try:
            if rpc is None:
                return self._unserved(path)
            read, version = partial(_read, rpc, request), version_of(path)
            call = Call(principal, self._services, rpc.full_name)
            answer = await self._registry.answered(call, version, len(request), read)
            return answer.SerializeToString()
        except Exception as error:  # A caller is answered whatever goes wrong.
            return refusal(error, api, path)

    def _unserved(self, path: str) -> Refusal:
        """Return the refusal for a path without a handler. For a method of the public APIs, raise the same as
        over REST."""
        if (known := _known(path)) is not None:
            raise not_served(known, self._registry.methods)
        services = ", ".join(sorted({name.rpartition(".")[0] for name in self._registry.methods}))
        text = f"There is no method {path} in the APIs that are served here: {services}."
        return Refusal(StatusCode.UNIMPLEMENTED, text)


def _source(context: Any) -> str:
    """Return the address of the caller; "" for jobs' own programs, which call by a Unix socket. The name of a
    connection that was passed on contains the address (`serve.relay`)."""
    kind, _, address = unquote(context.peer()).partition(":")
    if kind == "unix-abstract":
        return address.split("/")[-2]
    return "" if kind == "unix" else address.rpartition(":")[0].strip("[]")


def _known(path: str) -> routes.KnownMethod | None:
    names = (some.removeprefix("/").replace("/", ".") for some in (aliased(path), path))
    return next(filter(None, map(routes.find_by_name, names)), None)


def _read(rpc: Rpc, request: bytes) -> Message:
    """Parse a request, with the same checks as over REST, and clear fields that only the service writes.
    Raises WireError."""
    if len(request) > (most := most_of(rpc.method)):
        raise WireError((Violation("", f"Request size exceeds the limit: {most} bytes."),))
    message = pool.message_class(rpc.request)()
    try:
        message.ParseFromString(request)
    except DecodeError:
        raise WireError(
            (Violation("", f"The request is no readable message of the type {rpc.request}."),)
        ) from None
    wire_json.check_received(message)
    return message


def _value(metadata: Iterable[tuple[str, str | bytes]], name: str) -> str | None:
    for key, value in metadata:
        if key == name:
            return value if isinstance(value, str) else value.decode("latin-1")
    return None


def version_of(path: str) -> Version:
    """Return the version that a gRPC path (`/package.Service/Method`) names."""
    if path.startswith(f"/{BETA}"):
        return Version.V1BETA1
    return Version.V1 if path.startswith(f"/{V1}") else Version.UNSAID


def aliased(path: str) -> str:
    """Return the path of the method that serves `path`."""
    is_beta = version_of(path) is Version.V1BETA1
    return f"/{V1}{path[len(BETA) + 1 :]}" if is_beta else path


def fitting(refused: Refusal) -> tuple[str, bytes]:
    """Return a refusal's message and its serialized google.rpc.Status, shortened until they fit into a
    trailer: texts are cut, and the first violations told, with the number of the others."""
    message, violations = refused.message, refused.violations
    status = _status(refused, message, violations)
    if _fits(message, status):
        return message, status
    message = message[:_SHORT_MESSAGE] + _REST
    short = [Violation(v.field[:_FIELD], v.description[:_DESCRIPTION]) for v in violations]
    kept = len(short)
    while not _fits(message, status):
        more = f"... and {len(short) - kept} more; over REST all are told"
        further = [Violation("", more)] if kept < len(short) else []
        status = _status(refused, message, (*short[:kept], *further))
        kept = kept * 9 // 10
    return message, status


def _status(refused: Refusal, message: str, violations: Sequence[Violation]) -> bytes:
    status: Message = status_message(refused.code, message, violations, reason=refused.reason)
    return status.SerializeToString(deterministic=True)


def _fits(message: str, status: bytes) -> bool:
    """Whether both fit, as they are encoded on the wire: messages by percents, binary trailers as base64."""
    plain = sum(
        1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3
        for byte in message.encode(errors="replace")
    )
    return plain + (len(status) + 2) // 3 * 4 <= _MOST_TRAILER


OPTIONS: Final = (
    # gRPC's own default. A message of many small parts takes forty times its bytes once it is parsed.
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_concurrent_streams", 128),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.absolute_max_metadata_size", 64 << 10),
    # For the TLS handshake, or for the first frame.
    ("grpc.server_handshake_timeout_ms", 20_000),
    # Clients may send keepalive pings as often as they like.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    # Notices a client whose machine is gone; gRPC's default is two hours.
    ("grpc.keepalive_time_ms", 300_000),
    # Limits how long connections without calls occupy places. Calls under way finish, and clients reconnect
    # silently. `max_connection_idle_ms` ends connections with an error that clients print.
    ("grpc.max_connection_age_ms", 300_000),
    # By default two services share a port, and each gets some of the calls.
    ("grpc.so_reuseport", 0),
)


class Identity(Struct, frozen=True):
    """What the server presents over TLS, as PEM: its key, and its certificate with the intermediate ones."""

    key: bytes
    chain: bytes


class GrpcServer:
    """A gRPC server; created and used on one event loop."""

    def __init__(
        self,
        services: Services,
        authenticate: Authenticate,
        connections: int = 1024,
        *,
        registry: Registry = BUILT_IN,
    ) -> None:
        """`connections`: how many each address takes at once."""
        self._transport = GrpcTransport(services, authenticate, registry)
        options = (*OPTIONS, ("grpc.max_allowed_incoming_connections", connections))
        self._server: Any = aio.server(interceptors=(self._transport,), options=options)

    def listen(self, address: str, identity: Identity | None = None) -> None:
        """Listen at `unix:PATH` or `HOST:PORT`, with TLS if there is an identity. Raises RuntimeError if it
        cannot."""
        if identity is None:
            self._server.add_insecure_port(address)
        else:
            pair = (identity.key, identity.chain)
            self._server.add_secure_port(address, grpc.ssl_server_credentials((pair,)))

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace: float) -> None:
        """Take no more calls, and give open ones at most `grace` seconds; calls that their clients gave up
        get as long once more."""
        await self._server.stop(grace)
        await self._transport.finish(grace)
