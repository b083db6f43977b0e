"""A replica's own endpoint passes TCP connections on, byte for byte, to the bucket process, behind a line
that says whose they are. `interception` serves what comes over TLS.

That line gives a program's calls the identity of its job: programs cannot reach the bucket process's Unix
socket themselves. The socket keeps its path when the service restarts; a connection that comes while nothing
listens there is retried. The listening sockets are made before the program starts; a relay process exists
only from the first connection on, so that the shim's log loop carries no bulk data.
"""

import contextlib
import errno
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trainshed.replica import protocol
from trainshed.replica.endpoint import peers
from trainshed.replica.system import kernel, loop, processes, unix_sockets

if TYPE_CHECKING:
    import threading

    # Imported by the relay process when it has a use for them: Python's threads and TLS would make each fork
    # of a shim slower.
    from trainshed.replica.endpoint import google_hosts, interception

_NO_ROOM_PAUSE = 0.2
"""Seconds until a call is taken again where there were no file handles or no memory for it."""
_PREDECESSOR_GONE = 1.0
"""Seconds within which the kernel takes a port away from an incarnation that was killed."""
_CHUNK = 256 << 10
"""Bytes that one side of a connection has in memory at most."""
_MOST_THREADS = 2048
"""Of a relay, two for each connection: they and their memory count for no limit of the replica."""


def listen(address: str, port: int) -> socket.socket:
    """Return the endpoint's listening socket. Raises OSError if the port is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    deadline = time.monotonic() + _PREDECESSOR_GONE
    while True:
        try:
            listener.bind((address, port))
            listener.listen(128)
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
        time.sleep(0.005)
    listener.setblocking(False)
    return listener


class Endpoint:
    """The shim's side of the endpoint: it listens, starts the relay process at the first connection, and
    again if that is killed."""

    def __init__(
        self, network: protocol.Network, events: loop.Loop, peers: peers.Peers, proxy: str | None
    ) -> None:
        """With a certificate the next port after the network's is served as well, over TLS. `proxy`: the way
        to the real hosts. Raises OSError if a port is taken."""
        ports = [network.storage_port, network.storage_port + 1]
        self._listeners = [
            listen(network.address, port) for port in (ports if network.certificate else ports[:1])
        ]
        #: What the relay process runs.
        self._relay = Relay(network, self._listeners, peers, proxy)
        self._network = network
        #: The connection that reports a notice; None = there is none now.
        self._notice: "socket.socket | None" = None
        self._loop = events
        #: The relay's process id; None = there is none now.
        self.process: "int | None" = None
        # The relay inherits this. It runs among the program's processes, perhaps as the same user, and sees
        # what the program must not: a process that could trace it could impersonate others and read their
        # files.
        kernel.forbid_inspection()
        self._listen()

    def _listen(self) -> None:
        for listener in self._listeners:
            self._loop.add(listener.fileno(), self._start)

    def _ignore(self) -> None:
        for listener in self._listeners:
            self._loop.drop(listener.fileno())

    def _start(self) -> None:
        self._ignore()
        try:
            self.process = kernel.helper(self._relay.run, [at.fileno() for at in self._listeners])
        except OSError:
            self._loop.after(_NO_ROOM_PAUSE, self._listen)

    def reaped(self, child: int) -> None:
        """Listen again if that was the relay, which has died."""
        if child == self.process:
            self.process = None
            self._listen()

    def report(self, notice: str) -> None:
        """Report a notice to the bucket process, which serves the replica's metadata, until `stop`."""
        if not self._listeners or self._notice is not None:
            return
        line = protocol.preamble(self._network.identity, is_secure=False, notice=notice)
        path = self._network.storage_socket
        made = unix_sockets.connected(path, line, is_blocking=False) if path else None
        if made is None:
            self._loop.after(_NO_ROOM_PAUSE, lambda: self.report(notice))
            return
        self._notice = made
        # The bucket process sends nothing: the connection becomes readable when that process ends.
        self._loop.add(made.fileno(), lambda: self._report_again(notice))

    def _report_again(self, notice: str) -> None:
        self._end_report()
        self._loop.after(_NO_ROOM_PAUSE, lambda: self.report(notice))

    def _end_report(self) -> None:
        if self._notice is not None:
            self._loop.drop(self._notice.fileno())
            self._notice.close()
            self._notice = None

    def stop(self) -> None:
        """End the relay and the report, if there are any, and free the port for the next incarnation."""
        self._end_report()
        self._ignore()
        for listener in self._listeners:
            listener.close()
        self._listeners = []
        if self.process is not None:
            processes.end_child(self.process)


class Relay:
    """The loop of the relay process."""

    def __init__(
        self,
        network: protocol.Network,
        listeners: Sequence[socket.socket],
        peers: peers.Peers | None = None,
        proxy: str | None = None,
    ) -> None:
        """`listeners`: with a certificate the last of them is that of TLS connections. `peers`: decides who
        may connect, None = everybody."""
        self._network = network
        self._peers = peers
        self._proxy = proxy
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._secure = listeners[-1].fileno() if network.certificate else -1
        self._tls_front: interception.TlsFront | None = None

    def run(self) -> None:
        poll = select.poll()
        for listener in self._listeners:
            poll.register(listener, select.POLLIN)
        while True:
            for handle, _ in poll.poll():
                self._accept(handle)

    def _accept(self, handle: int) -> None:
        try:
            connection = self._listeners[handle].accept()[0]
        except (BlockingIOError, ConnectionAbortedError):
            return  # The client went away before it was accepted.
        except OSError:
            time.sleep(_NO_ROOM_PAUSE)  # There is no handle or no memory for it: clients wait.
            return
        if self._peers is not None and not self._peers.belongs(connection):
            connection.close()  # It would speak in this replica's name.
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        serve = self._opened().serve if handle == self._secure else self._serve
        if not _begun(serve, connection):
            connection.close()

    def _serve(self, client: socket.socket) -> None:
        with client:
            line = protocol.preamble(self._network.identity, is_secure=False)
            server = unix_sockets.reached(self._network.storage_socket, line)
            if server is None:
                return
            with server:
                if back := _begun(_pass_on, server, client):
                    _pass_on(client, server)
                    back.join()

    def _opened(self) -> "interception.TlsFront":
        """Return the TLS front, made for the first TLS client because it imports large libraries."""
        if self._tls_front is None:
            from trainshed.replica.endpoint import interception

            self._tls_front = interception.TlsFront(self._network, self.google())
        return self._tls_front

    def google(self) -> "google_hosts.GoogleHosts":
        """Return the way to the real hosts, for requests over TLS that are not for us."""
        from trainshed.replica.endpoint import google_hosts

        return google_hosts.GoogleHosts(self._proxy)


def _begun(work: "Callable[..., None]", *arguments: socket.socket) -> "threading.Thread | None":
    """Return the thread that does that work; None = no further one can or may be started."""
    import threading  # Only here: every module imported earlier makes each fork slower.

    if threading.active_count() > _MOST_THREADS:
        return None
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    """Pass on what comes, to its end, with at most a chunk in memory."""
    try:
        while data := source.recv(_CHUNK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        # One side is gone, which ends the other direction as well.
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
