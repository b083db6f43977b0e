"""The grpc.aio server: transport, reflection, health, and how it treats connections.

Serves on unix sockets; who listens on the network is `serve.grpc_front`.
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
    # As gRPC has it. Small messages within take forty times their bytes once they are read.
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_concurrent_streams", 128),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.absolute_max_metadata_size", 64 << 10),
    # TLS, or the first frame.
    ("grpc.server_handshake_timeout_ms", 20_000),
    # Clients that keep a connection alive, as often as they like, are not sent away.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    # A client whose machine is gone is noticed; the default is after two hours.
    ("grpc.keepalive_time_ms", 300_000),
)


class Identity(Struct, frozen=True):
    """What the server shows over TLS, as PEM: its key, and its certificate with those between it and the
    root."""

    key: bytes
    chain: bytes


class GrpcServer:
    """One server; made and used on one event loop."""

    def __init__(self, services: Services, authenticate: Callable[[str | None], Principal]) -> None:
        self._transport = GrpcTransport(handlers(), CHECKS, services, authenticate)
        self._server: Any = aio.server(options=_OPTIONS)
        served = self._transport.served()
        self._health: Any = health.aio.HealthServicer()
        self._names = ("", *served)
        health_service.add_HealthServicer_to_server(self._health, self._server)
        pool.load_all()  # Who asks what there is has not asked for anything of it yet.
        reflection.enable_server_reflection(
            (*served, health.SERVICE_NAME, reflection.SERVICE_NAME),
            self._server,
            pool=_Pools(pool.pool()),
        )
        # Last, because it answers for every path.
        self._server.add_generic_rpc_handlers((self._transport,))

    def listen(self, path: str, identity: Identity | None = None) -> None:
        """Listen on a unix socket, with TLS if there is an identity. Raises RuntimeError if that cannot
        be."""
        address = f"unix:{path}"
        if identity is None:
            self._server.add_insecure_port(address)
        else:
            pair = (identity.key, identity.chain)
            self._server.add_secure_port(address, grpc.ssl_server_credentials((pair,)))

    async def start(self) -> None:
        """Serve; each service, and the server as a whole (""), is healthy from now on."""
        serving = health_messages.HealthCheckResponse.SERVING
        for name in self._names:
            await self._health.set(name, serving)
        await self._server.start()

    async def stop(self, grace: float) -> None:
        """Take no more calls and give those that are open so many seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace)
        await self._transport.finish(grace)


class _Pools:
    """The private pool for reflection, which finds gRPC's own services where they are: in the default
    pool."""

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
