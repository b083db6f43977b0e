"""Serves gRPC's listening sockets from the start; gRPC itself is loaded with the first connection.

Programs have a socket of their own, which is served whether or not there are ports for others.

A loaded gRPC would cost every idle service 13 MB and a part of its start. So the service itself owns the
sockets, and hands connections on to gRPC, which listens on two Unix sockets in the data directory, one of
them with TLS. Connections that arrive while it loads wait. For what that costs, see docs/adr/0016-grpc.md.

The `Relay` copies the bytes of each connection to a Unix socket and back, until both ends have finished, and
does not look at them. What an end cannot take waits in the kernel. If there are too many connections, those
that were silent longest are closed.
"""

import asyncio
import contextlib
import importlib
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from trainshed.api.calls.services import Authenticate, Services
from trainshed.eventloop.background import begin
from trainshed.eventloop.joining import End
from trainshed.httpd import connections
from trainshed.replica.system.unix_sockets import reachable
from trainshed.serve.certificates import Certificates

if TYPE_CHECKING:
    from trainshed.api.grpc import GrpcServer
import logging
from collections.abc import Awaitable

from trainshed.eventloop.background import Crew


class GrpcPorts(Struct, frozen=True):
    """The listening ports with the certificates that TLS shows; the sockets exist before the event loop
    does."""

    plain: socket.socket
    secure: socket.socket
    certified: "Future[Certificates]"


class GrpcFront:
    """Takes connections for gRPC. Made and used on one event loop."""

    def __init__(
        self,
        ports: GrpcPorts,
        programs: socket.socket,
        directory: Path,
        services: Services,
        authenticate: Authenticate,
    ) -> None:
        """`programs`: the Unix socket that replicas' endpoints call; `directory`: contains gRPC's own
        sockets, open to this user alone."""
        self._plain, self._secure = directory / "grpc.sock", directory / "grpc-tls.sock"
        self._services = services
        self._authenticate = authenticate
        self._loading: asyncio.Task[GrpcServer] | None = None
        self._ports = ports
        self._programs = programs
        self._relays: tuple[Relay, ...] = ()

    async def start(self) -> None:
        """Take connections from now on. Raises what making the certificates failed with."""
        ports = self._ports
        certificates = await asyncio.wrap_future(ports.certified)
        sockets = [
            (self._programs, self._plain),
            (ports.plain, self._plain),
            (ports.secure, self._secure),
        ]
        # Each connection takes three files, two here and one in gRPC, and there may be three relays.
        most = connections.of_this_process().connections // 6
        self._relays = tuple(
            Relay(listener, partial(self._served, path, certificates), most)
            for listener, path in sockets
        )
        for relay in self._relays:
            await relay.start()

    async def close(self, grace: float) -> None:
        """Take no more connections; open calls get `grace` seconds."""
        for relay in self._relays:
            relay.refuse()
        if self._loading is not None:
            with contextlib.suppress(Exception):
                await (await self._loading).stop(grace)
        for relay in self._relays:
            relay.abort()
        for path in (self._plain, self._secure):
            path.unlink(missing_ok=True)

    async def _served(self, path: Path, certificates: Certificates) -> Path:
        """Return the path once gRPC listens there. The first connection has gRPC loaded; after a failure the
        next one tries again."""
        if self._loading is None or (self._loading.done() and self._loading.exception()):
            self._loading = begin(self._load(certificates), "gRPC: loading")
        # A connection that goes away must not cancel the loading.
        await asyncio.shield(self._loading)
        return path

    async def _load(self, certificates: Certificates) -> "GrpcServer":
        module = await asyncio.to_thread(importlib.import_module, "trainshed.api.grpc")
        server: GrpcServer = module.GrpcServer(self._services, self._authenticate)
        key, chain = certificates.key.read_bytes(), certificates.chain.read_bytes()
        for path, shown in ((self._plain, None), (self._secure, module.Identity(key, chain))):
            path.unlink(missing_ok=True)
            with reachable(str(path)) as short:
                server.listen(short, shown)
        await server.start()
        return server


log = logging.getLogger(__name__)

_BACKLOG = 1024


class Relay:
    """Relays all connections of one listening socket. Used on one event loop."""

    def __init__(
        self, listener: socket.socket, target: Callable[[], Awaitable[Path]], most: int
    ) -> None:
        """`target` returns the Unix socket once a server listens there. It is called for every connection,
        which waits for it, and is closed if it fails. `most`: connections at once."""
        self._listener = listener
        self._target = target
        self._server: asyncio.Server | None = None
        self._joining = Crew()
        self._most = most
        self._open: set[asyncio.Transport] = set()
        # The clients' ends, in the order of their last activity, oldest first.
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
                return  # It has gone, or had to make way, while gRPC was loaded.
            with reachable(str(target)) as short:
                dialled = await _dialled(short, client.transport.get_extra_info("peername"))
            await asyncio.get_running_loop().create_unix_connection(
                lambda: End(client.join, self._open), sock=dialled
            )
        except OSError as failure:
            # There may be no file descriptor left; open connections make way.
            log.warning("gRPC: a connection was not handed on: %s", failure)
            client.transport.abort()
        except Exception as failure:
            # Of any kind, including a failure to load gRPC: this connection is lost, and the next one tries
            # again.
            log.error("gRPC: connection not handed on", exc_info=failure)
            client.transport.abort()
        except asyncio.CancelledError:
            client.transport.abort()
            raise


async def _dialled(path: str, peer: object) -> socket.socket:
    """Connect to gRPC, from an address that tells it who called: `trainshed RANDOM HOST`."""
    dialled = socket.socket(socket.AF_UNIX)
    try:
        dialled.setblocking(False)
        if isinstance(peer, tuple):
            # In the abstract name space, in which nothing has to be removed.
            dialled.bind(f"\0trainshed {secrets.token_hex(8)} {peer[0]}")
        await asyncio.get_running_loop().sock_connect(dialled, path)
    except BaseException:
        dialled.close()
        raise
    return dialled
