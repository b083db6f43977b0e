"""gRPC's listening sockets, served from the start; gRPC itself is loaded with the first connection.

Programs have a socket of their own, which is served whether or not there are ports for others.

Loaded, it would cost every idle service 13 MB and a part of its start. So the sockets are the service's own, and what
comes in is handed on to gRPC, which listens on two unix sockets in the data directory, one of them with TLS. Connections
that come while it loads wait. What that costs: docs/adr/0016-grpc.md.
"""

import asyncio
import contextlib
import importlib
import socket
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainshed.access.principals import Principal
from trainshed.api.services import Services
from trainshed.buckets.sockets import reachable
from trainshed.eventloop.background import begin
from trainshed.httpd import limits
from trainshed.serve.certificates import Certificates
from trainshed.serve.relay import Relay

if TYPE_CHECKING:
    from trainshed.api.grpc.server import GrpcServer


@dataclass(frozen=True, slots=True)
class GrpcDoors:
    """The ports: what of them exists before the event loop does, and what TLS shows as soon as it is made."""

    plain: socket.socket
    secure: socket.socket
    certified: "Future[Certificates]"


class GrpcFront:
    """Takes connections for gRPC. Made and used on one event loop."""

    def __init__(
        self,
        doors: GrpcDoors | None,
        programs: socket.socket,
        directory: Path,
        services: Services,
        authenticate: Callable[[str | None], Principal],
    ) -> None:
        """`programs`: the Unix socket that replicas' endpoints call; `directory`: where gRPC's own sockets are, open to
        this user alone."""
        self._plain, self._secure = directory / "grpc.sock", directory / "grpc-tls.sock"
        self._services = services
        self._authenticate = authenticate
        self._loading: asyncio.Task[GrpcServer] | None = None
        self._doors = doors
        self._programs = programs
        self._relays: tuple[Relay, ...] = ()

    async def start(self) -> None:
        """Take connections from now on. Raises what the certificates were not made for."""
        doors, certificates = self._doors, None
        sockets = [(self._programs, self._plain)]
        if doors is not None:
            certificates = await asyncio.wrap_future(doors.certified)
            sockets += [(doors.plain, self._plain), (doors.secure, self._secure)]
        # Each takes three files, two here and one in gRPC, and there may be three relays.
        most = limits.of_this_process().connections // 6
        self._relays = tuple(
            Relay(listener, partial(self._served, path, certificates), most)
            for listener, path in sockets
        )
        for relay in self._relays:
            await relay.start()

    async def close(self, grace: float) -> None:
        """Take no more connections; open calls get so many seconds."""
        for relay in self._relays:
            relay.refuse()
        if self._loading is not None:
            with contextlib.suppress(Exception):
                await (await self._loading).stop(grace)
        for relay in self._relays:
            relay.abort()
        for path in (self._plain, self._secure):
            path.unlink(missing_ok=True)

    async def _served(self, path: Path, certificates: Certificates | None) -> Path:
        """The path, once gRPC listens there. The first connection has it loaded; what fails is tried again."""
        if self._loading is None or (self._loading.done() and self._loading.exception()):
            self._loading = begin(self._load(certificates), "gRPC: loading")
        # A connection that goes away does not take the loading with it.
        await asyncio.shield(self._loading)
        return path

    async def _load(self, certificates: Certificates | None) -> "GrpcServer":
        module = await asyncio.to_thread(importlib.import_module, "trainshed.api.grpc.server")
        server: GrpcServer = module.GrpcServer(self._services, self._authenticate)
        listening: list[tuple[Path, Any]] = [(self._plain, None)]
        if certificates is not None:
            key, chain = certificates.key.read_bytes(), certificates.chain.read_bytes()
            listening.append((self._secure, module.Identity(key, chain)))
        for path, shown in listening:
            path.unlink(missing_ok=True)
            with reachable(path) as short:
                server.listen(short, shown)
        await server.start()
        return server
