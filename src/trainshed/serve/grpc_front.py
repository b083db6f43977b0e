"""gRPC's listening sockets, served from the start; gRPC itself is loaded with the first connection.

Programs have a socket of their own, which is served whether or not there are ports for others.

Loaded, it would cost every idle service 13 MB and a part of its start. So the sockets are the service's own,
and what comes in is handed on to gRPC, which listens on two unix sockets in the data directory, one of them
with TLS. Connections that come while it loads wait. What that costs: docs/adr/0016-grpc.md.

The `Relay` hands connections byte for byte to a unix socket, both ways, until both ends have said all. It
knows nothing of what is said. What an end cannot take waits in the kernel. Of too many connections those that
were silent longest go.
"""

import asyncio
import contextlib
import importlib
import socket
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from trainshed.access.principals import Principal
from trainshed.api.calls.services import Services
from trainshed.eventloop.background import begin
from trainshed.eventloop.joining import End
from trainshed.httpd import limits
from trainshed.replica.system.unix_sockets import reachable
from trainshed.serve.certificates import Certificates

if TYPE_CHECKING:
    from trainshed.api.grpc.server import GrpcServer
import logging
from collections.abc import Awaitable

from trainshed.eventloop.background import Crew


class GrpcPorts(Struct, frozen=True):
    """The ports: what of them exists before the event loop does, and what TLS shows as soon as it is made."""

    plain: socket.socket
    secure: socket.socket
    certified: "Future[Certificates]"


class GrpcFront:
    """Takes connections for gRPC. Made and used on one event loop."""

    def __init__(
        self,
        ports: GrpcPorts | None,
        programs: socket.socket,
        directory: Path,
        services: Services,
        authenticate: Callable[[str | None], Principal],
    ) -> None:
        """`programs`: the Unix socket that replicas' endpoints call; `directory`: where gRPC's own sockets
        are, open to this user alone."""
        self._plain, self._secure = directory / "grpc.sock", directory / "grpc-tls.sock"
        self._services = services
        self._authenticate = authenticate
        self._loading: asyncio.Task[GrpcServer] | None = None
        self._ports = ports
        self._programs = programs
        self._relays: tuple[Relay, ...] = ()

    async def start(self) -> None:
        """Take connections from now on. Raises what the certificates were not made for."""
        ports, certificates = self._ports, None
        sockets = [(self._programs, self._plain)]
        if ports is not None:
            certificates = await asyncio.wrap_future(ports.certified)
            sockets += [(ports.plain, self._plain), (ports.secure, self._secure)]
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
        """The path, once gRPC listens there. The first connection has it loaded; what fails is tried
        again."""
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
            with reachable(str(path)) as short:
                server.listen(short, shown)
        await server.start()
        return server


log = logging.getLogger(__name__)

_BACKLOG = 1024


class Relay:
    """All connections of one listening socket. Used on one event loop."""

    def __init__(
        self, listener: socket.socket, target: Callable[[], Awaitable[Path]], most: int
    ) -> None:
        """`target` answers the unix socket as soon as somebody listens there; it is asked for every
        connection, which waits for it, and is closed where it fails. `most`: connections at once."""
        self._listener = listener
        self._target = target
        self._server: asyncio.Server | None = None
        self._joining = Crew()
        self._most = most
        self._open: set[asyncio.Transport] = set()
        # The ends of clients, those that were silent for longest first.
        self._clients: dict[End, None] = {}

    async def start(self) -> None:
        """Take connections from now on."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: End(self._join, self._open, self._heard, self._left),
            sock=self._listener,
            backlog=_BACKLOG,
        )

    def refuse(self) -> None:
        """Take no more connections; those that wait for the target are closed."""
        if self._server is not None:
            self._server.close()
        self._joining.cancel()

    def abort(self) -> None:
        """End every connection now."""
        for transport in tuple(self._open):
            transport.abort()

    def _join(self, client: "End") -> None:
        self._heard(client)
        if len(self._clients) > self._most:
            oldest = next(iter(self._clients))
            del self._clients[oldest]
            oldest.transport.abort()
        self._joining.begin(self._connect(client), "handing a connection on")

    def _heard(self, client: "End") -> None:
        self._clients.pop(client, None)
        self._clients[client] = None

    def _left(self, client: "End") -> None:
        self._clients.pop(client, None)

    async def _connect(self, client: "End") -> None:
        """Open the other end of a connection."""
        try:
            target = await self._target()
            if client.transport.is_closing():
                return  # It has gone, or had to make room, while gRPC was loaded.
            with reachable(str(target)) as short:
                await asyncio.get_running_loop().create_unix_connection(
                    lambda: End(client.join, self._open), path=short
                )
        except OSError as failure:
            # No file for it, say: those that are open make room.
            log.warning("gRPC: a connection was not handed on: %s", failure)
            client.transport.abort()
        except Exception as failure:
            # Of whatever kind, loading gRPC included: this connection is lost, the next one tries it anew.
            log.error("gRPC: connection not handed on", exc_info=failure)
            client.transport.abort()
        except asyncio.CancelledError:
            client.transport.abort()
            raise
