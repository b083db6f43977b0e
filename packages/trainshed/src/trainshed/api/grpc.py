"""gRPC over the registry of handlers: find the method, authenticate, authorise, read, call, answer; and the
server of it.

One generic gRPC handler serves all methods through the same handlers as REST (`api.rest`). It knows no method
by name; `v1beta1` of the Vertex services is an alias. Routing headers (`x-goog-request-params`) are not read,
because requests contain the same.

This module also decides how much of a refusal fits into a trailer: clients drop trailers that are too large
(by gRPC's default, any above 8 KiB may be dropped) and report that instead of the error, so a refusal that is
too long is shortened.
"""

import asyncio
import importlib
import logging
import os
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast
from urllib.parse import unquote

from google.protobuf.message import DecodeError, Message
from msgspec import Struct

from trainshed.access.account_tokens import is_access_token
from trainshed.access.strangers import SOURCE, Strangers
from trainshed.api.calls.call import Call, permitted, tell_of_stranger
from trainshed.api.calls.checks import completed
from trainshed.api.calls.errors import Refusal, internal_refusal, not_served, refusal
from trainshed.api.calls.http import LARGE, most_of, read_aside
from trainshed.api.calls.services import Authenticate, Services
from trainshed.api.calls.versions import BETA, V1, Version
from trainshed.api.registry import CHECKS, HANDLERS
from trainshed.eventloop.background import joined, outliving
from trainshed.telemetry.lines import HEADER, identified, log_request, request_id
from trainshed.wire import json as wire_json
from trainshed.wire import pool, routes
from trainshed.wire.routes import Rpc
from trainshed.wire.status import StatusCode, Violation, WireError, status_message

_VERBOSITY: Final = "GRPC_VERBOSITY"


@contextmanager
def _quietly() -> Generator[None]:
    """Silence gRPC's core while it is loaded. It reads the variable then; by default it writes a line to
    stderr for every stray connection. A value that the operator has set is kept; programs that are started
    later do not inherit ours."""
    before = os.environ.get(_VERBOSITY)
    os.environ[_VERBOSITY] = before or "NONE"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VERBOSITY]


with _quietly():
    grpc: Any = importlib.import_module("grpc")
    aio: Any = importlib.import_module("grpc.aio")


_CODES: Final[dict[int, Any]] = {code.value[0]: code for code in grpc.StatusCode}
_log = logging.getLogger("trainshed.api")
DETAILS: Final = "grpc-status-details-bin"
"""The trailer that holds a google.rpc.Status: code and message again, and the details."""
MOST_TRAILER: Final = 7_000
"""Most bytes of message and details together, as encoded on the wire."""
_SHORT_MESSAGE: Final = 300
_SHORT_DESCRIPTIONS: Final = (160, 80, 40)
_FIELD: Final = 200
"""Lengths are in characters. A short message alone fits even if each character takes four bytes."""
_REST: Final = " ... (shortened to fit into a gRPC trailer; over REST the answer is whole)"


class GrpcTransport(aio.ServerInterceptor):  # pyright: ignore[reportUntypedBaseClass]
    """The public APIs for a grpc.aio server, which asks for the handler of a call on its event loop."""

    def __init__(self, services: Services, authenticate: Authenticate) -> None:
        self._handlers = HANDLERS
        self._services = services
        self._authenticate = authenticate
        self._strangers = Strangers(partial(tell_of_stranger, services))
        self._running: set[asyncio.Task[bytes | Refusal]] = set()
        self._methods: dict[str, tuple[pool.Api, Rpc]] = {}
        for api in pool.APIS:
            for path, rpc in routes.rpcs(api).items():
                self._methods.setdefault(path, (api, rpc))

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Return the handler of one call. Every path has one, if only to say what is wrong."""
        path: str = details.method
        metadata: Iterable[tuple[str, str | bytes]] = details.invocation_metadata
        method = self._methods.get(aliased(path))
        identity, began = identified(_value(metadata, HEADER) or ""), time.perf_counter()

        async def look(requests: Any, context: Any) -> bytes:
            # As a stream of which nothing is read before the caller is known, so that no message of an
            # unauthenticated one is held in memory.
            SOURCE.set(_source(context))
            try:
                await self._authenticate(header)
            except Exception:  # `answer` meets it again and tells the caller.
                return await answer(b"", context)
            return await answer(await anext(aiter(requests), b""), context)

        async def answer(request: bytes, context: Any) -> bytes:
            # A call that its client gives up is still completed: a job that was stored without waking the
            # controller would wait until the service's next start.
            request_id.set(identity)
            SOURCE.set(_source(context))
            task = joined(self._answer(path, method, metadata, request))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            outcome = await outliving(task)
            return await self._end(context, path, outcome, identity, began)

        header = _authorization(metadata)
        # Where an issuer may have to be asked it matters who calls, which is not known here.
        is_known = not is_access_token((header or "").rpartition(" ")[2])
        try:
            if is_known:
                await self._authenticate(header)
        except Exception:  # Whatever it is, `look` meets it again.
            is_known = False
        if is_known:
            return grpc.unary_unary_rpc_method_handler(answer)
        return grpc.stream_unary_rpc_method_handler(look)

    async def _end(
        self, context: Any, path: str, outcome: bytes | Refusal, identity: str, began: float
    ) -> bytes:
        """Send the outcome to the caller, with the request's id; count and log it. `began`: by
        `time.perf_counter`."""
        status = grpc_status(outcome) if isinstance(outcome, Refusal) else None
        code = _CODES[status.code if status else 0]
        log_request("gRPC", path, code.name, began)
        if (known := self._methods.get(aliased(path))) is not None:
            method = f"{known[1].service}.{known[1].method}"
            seconds = time.perf_counter() - began
            self._services.meters.requests.observe(seconds, "grpc", method, code.name)
        trailers = ((HEADER, identity),)
        if status is not None:
            if status.code == StatusCode.UNAUTHENTICATED.number:
                await self._strangers.refused(SOURCE.get())
            await context.abort(code, status.message, ((DETAILS, status.details), *trailers))
        context.set_trailing_metadata(trailers)
        return cast(bytes, outcome)

    async def finish(self, seconds: float) -> None:
        """Wait at most `seconds` for calls that still run although their clients gave them up."""
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)

    async def _unserved(self, path: str, metadata: Iterable[tuple[str, str | bytes]]) -> Refusal:
        """Return the refusal for a path without a handler. For a method of the public APIs it is the same as
        over REST."""
        known = routes.by_name(_name(aliased(path))) or routes.by_name(_name(path))
        if known is None:
            services = ", ".join(sorted({name.rpartition(".")[0] for name in self._handlers}))
            text = f"There is no method {path} in the APIs that are served here: {services}."
            return Refusal(StatusCode.UNIMPLEMENTED, text)
        try:
            await self._authenticate(_authorization(metadata))
            raise not_served(known, self._handlers)
        except Exception as error:  # A caller is answered whatever goes wrong.
            return refusal(error, "") or internal_refusal()

    async def _answer(
        self,
        path: str,
        known: tuple[pool.Api, Rpc] | None,
        metadata: Iterable[tuple[str, str | bytes]],
        request: bytes,
    ) -> bytes | Refusal:
        if known is None:
            return await self._unserved(path, metadata)
        api, rpc = known
        try:
            principal = await self._authenticate(_authorization(metadata))
            method = f"{rpc.service}.{rpc.method}"
            handler = permitted(self._handlers, principal, method)
            call = Call(principal, self._services, method)
            message = await read_aside(len(request), lambda: self._read(call, rpc, request))
            answer = await handler(call, message)
            self._services.beta.dress(answer, version_of(path))
            return answer.SerializeToString()
        except (
            Exception
        ) as error:  # A caller is answered whatever goes wrong; the log has the fault.
            refused = refusal(error, api)
            if refused is None:
                _log.error("%s failed", path, exc_info=error)
                refused = internal_refusal()
            return refused

    def _read(self, call: Call, rpc: Rpc, request: bytes) -> Message:
        """Read a request, with the same checks as over REST. Raises WireError, InvalidRequest."""
        check = CHECKS.get(call.method)
        if len(request) > (most := most_of(rpc.method)):
            raise WireError((Violation("", f"Request size exceeds the limit: {most} bytes."),))
        try:
            message = _read(rpc, request)
        except WireError as refused:
            raise completed(refused, check, call) from None
        if check is not None and len(request) >= LARGE:
            check(call, message)
        return message


def _source(context: Any) -> str:
    """Return the address of the caller; "" for jobs' own programs, which call by a Unix socket."""
    kind, _, address = unquote(context.peer()).partition(":")
    return "" if kind == "unix" else address.rpartition(":")[0].strip("[]")


def _name(path: str) -> str:
    return path.removeprefix("/").replace("/", ".")


def _read(rpc: Rpc, request: bytes) -> Message:
    """Parse a request, and clear fields that only the service writes. Raises WireError."""
    message = pool.message_class(rpc.request)()
    try:
        message.ParseFromString(request)
    except DecodeError:
        raise WireError(
            (Violation("", f"The request is no readable message of the type {rpc.request}."),)
        ) from None
    wire_json.check_received(message)
    return message


def _authorization(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    return _value(metadata, "authorization")


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


class GrpcStatus(Struct, frozen=True):
    """A refusal as it is sent to the caller."""

    #: Number of the google.rpc code.
    code: int
    message: str
    #: Value of the DETAILS trailer: a serialized google.rpc.Status.
    details: bytes


def grpc_status(refused: Refusal) -> GrpcStatus:
    """Return the refusal's status, shortened until it fits into a trailer: first with ever shorter
    descriptions of every field, then with the first fields only and the number of the others."""
    return next(status for status in _ever_shorter(refused) if _size(status) <= MOST_TRAILER)


def _ever_shorter(refused: Refusal) -> Iterator[GrpcStatus]:
    """Yield the refusal's status, whole, and then ever shorter; the last one always fits."""
    yield _status(refused, refused.message, refused.violations)
    message, violations = _cut(refused.message, _SHORT_MESSAGE, _REST), refused.violations
    yield _status(refused, message, violations)
    for size in _SHORT_DESCRIPTIONS:
        violations = tuple(
            Violation(_cut(v.field, _FIELD), _cut(v.description, size)) for v in violations
        )
        yield _status(refused, message, violations)
    while kept := len(violations) * 9 // 10:
        more = len(refused.violations) - kept
        violations = violations[:kept]
        further = Violation("", f"... and {more} more; over REST all are told")
        yield _status(refused, message, (*violations, further))
    yield _status(refused, message, ())


def _status(refused: Refusal, message: str, violations: tuple[Violation, ...]) -> GrpcStatus:
    status: Message = status_message(refused.code, message, violations, reason=refused.reason)
    return GrpcStatus(refused.code.number, message, status.SerializeToString(deterministic=True))


def _size(answer: GrpcStatus) -> int:
    """Return the bytes on the wire: messages are percent-encoded, binary trailers are base64."""
    message = answer.message.encode(errors="replace")
    plain = sum(1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in message)
    return plain + (len(answer.details) + 2) // 3 * 4


def _cut(text: str, size: int, tail: str = "...") -> str:
    return text if len(text) <= size else text[:size] + tail


_OPTIONS: Final = (
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
    # A crowd that asks for nothing keeps nobody out for longer; clients connect again by themselves.
    ("grpc.max_connection_idle_ms", 60_000),
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
        self, services: Services, authenticate: Authenticate, connections: int = 1024
    ) -> None:
        """`connections`: how many each address takes at once."""
        self._transport = GrpcTransport(services, authenticate)
        options = (*_OPTIONS, ("grpc.max_allowed_incoming_connections", connections))
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
