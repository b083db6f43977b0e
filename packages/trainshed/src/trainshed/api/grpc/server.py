"""The grpc.aio server: transport, reflection, health, and connection options.

It listens on Unix sockets; `serve.grpc_front` listens on the network.
"""

import importlib
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from trainshed.access.principals import Principal
from trainshed.api.calls.services import Services
from trainshed.api.grpc.transport import (
    GrpcTransport,
    aio,
    grpc,
    health,
    health_messages,
    health_service,
    reflection,
)
from trainshed.api.registry import CHECKS, handlers
from trainshed.wire import pool

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
        served = self._transport.served()
        self._health: Any = health.aio.HealthServicer()
        self._names = ("", *served)
        health_service.add_HealthServicer_to_server(self._health, self._server)
        pool.load_all()  # Reflection lists services before anything else has loaded them.
        reflection.enable_server_reflection(
            (*served, health.SERVICE_NAME, reflection.SERVICE_NAME),
            self._server,
            pool=_Pools(pool.pool()),
        )
        # Added last, because it answers for every path.
        self._server.add_generic_rpc_handlers((self._transport,))

    def listen(self, path: str, identity: Identity | None = None) -> None:
        """Listen on a Unix socket, with TLS if there is an identity. Raises RuntimeError if it cannot."""
        address = f"unix:{path}"
        if identity is None:
            self._server.add_insecure_port(address)
        else:
            pair = (identity.key, identity.chain)
            self._server.add_secure_port(address, grpc.ssl_server_credentials((pair,)))

    async def start(self) -> None:
        """Start to serve, and report each service, and the server as a whole (""), as healthy."""
        serving = health_messages.HealthCheckResponse.SERVING
        for name in self._names:
            await self._health.set(name, serving)
        await self._server.start()

    async def stop(self, grace: float) -> None:
        """Take no more calls, and give open ones at most `grace` seconds; calls that their clients gave up
        get as long once more."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace)
        await self._transport.finish(grace)


class _Pools:
    """Finds descriptors for reflection: first in the private pool, then in the default pool, where gRPC's own
    services are."""

    def __init__(self, private: Any) -> None:
        descriptor_pool: Any = importlib.import_module("google.protobuf.descriptor_pool")
        self._private, self._default = private, descriptor_pool.Default()

    def FindFileByName(self, name: str) -> Any:  # noqa: N802  protobuf's name
        return self._first("FindFileByName", name)

    def FindFileContainingSymbol(self, symbol: str) -> Any:  # noqa: N802  protobuf's name
        return self._first("FindFileContainingSymbol", symbol)

    def FindMessageTypeByName(self, name: str) -> Any:  # noqa: N802  protobuf's name
        return self._first("FindMessageTypeByName", name)

    def FindExtensionByNumber(self, message: Any, number: int) -> Any:  # noqa: N802  protobuf's name
        return message.file.pool.FindExtensionByNumber(message, number)

    def FindAllExtensions(self, message: Any) -> Any:  # noqa: N802  protobuf's name
        return message.file.pool.FindAllExtensions(message)

    def _first(self, find: str, name: str) -> Any:
        try:
            return getattr(self._private, find)(name)
        except KeyError:
            return getattr(self._default, find)(name)
