"""The grpc.aio server: transport, health, and connection options.

It listens on Unix sockets; `serve.grpc_front` listens on the network.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from msgspec import Struct

from trainshed.access.principals import Principal
from trainshed.api.calls.services import Services
from trainshed.api.grpc.transport import GrpcTransport, aio, grpc
from trainshed.api.registry import CHECKS, handlers

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
)


class Identity(Struct, frozen=True):
    """What the server presents over TLS, as PEM: its key, and its certificate with the intermediate ones."""

    key: bytes
    chain: bytes


class GrpcServer:
    """A gRPC server; created and used on one event loop."""

    def __init__(self, services: Services, authenticate: Callable[[str | None], Principal]) -> None:
        self._transport = GrpcTransport(handlers(), CHECKS, services, authenticate)
        self._server: Any = aio.server(options=_OPTIONS)
        # The transport comes last, because it answers for every path.
        health = _health(("", *self._transport.served()))
        self._server.add_generic_rpc_handlers((health, self._transport))

    def listen(self, path: str, identity: Identity | None = None) -> None:
        """Listen on a Unix socket, with TLS if there is an identity. Raises RuntimeError if it cannot."""
        address = f"unix:{path}"
        if identity is None:
            self._server.add_insecure_port(address)
        else:
            pair = (identity.key, identity.chain)
            self._server.add_secure_port(address, grpc.ssl_server_credentials((pair,)))

    async def start(self) -> None:
        """Start to serve."""
        await self._server.start()

    async def stop(self, grace: float) -> None:
        """Take no more calls, and give open ones at most `grace` seconds; calls that their clients gave up
        get as long once more."""
        await self._server.stop(grace)
        await self._transport.finish(grace)


def _health(served: Collection[str]) -> Any:
    """Return the handler of `grpc.health.v1.Health.Check`: the named services, and the server as a whole
    (""), are healthy as long as they answer."""

    async def check(request: bytes, context: Any) -> bytes:
        # The messages of that service have the form of wrappers: field 1 is the name, and 1 in the answer is
        # SERVING.
        name = StringValue.FromString(request).value
        if name not in served:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"There is no service {name} here.")
        return Int32Value(value=1).SerializeToString()

    methods = {"Check": grpc.unary_unary_rpc_method_handler(check)}
    return grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)
