"""A replica's own endpoint forwards TCP connections, byte for byte, to the bucket process. It first sends a
line that identifies the replica. `interception` serves TLS connections.

The line gives a program's requests the identity of its job: programs cannot reach the bucket process's Unix
socket themselves. The socket keeps its path when the service restarts, and the relay retries connections
while no process listens there. The listening sockets exist before the program starts. The relay process
starts at the first connection, so that the shim's log loop transfers no bulk data.
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

    # The relay process imports these modules only when it needs them: Python's threads and TLS would slow
    # down each fork of a shim.
    from trainshed.replica.endpoint import google_hosts, interception

_RETRY_INTERVAL = 0.2
"""Seconds before the relay accepts connections again after a lack of file descriptors or memory."""
_BIND_TIMEOUT = 1.0
"""How long to retry a bind to a port that is in use, in seconds. The kernel may free the port of a killed
program late."""
_CHUNK = 256 << 10
"""Maximum bytes in memory for one side of a connection."""
_MAX_THREADS = 2048
"""Maximum number of threads of a relay, two for each connection: limits of the replica do not cover their
memory."""


def listen(address: str, port: int) -> socket.socket:
    """Return the endpoint's listening socket. Raises OSError if the port is in use."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    deadline = time.monotonic() + _BIND_TIMEOUT
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
    """The shim's side of a replica's endpoint. It listens, starts the relay process at the first connection,
    and restarts a killed relay process."""

    def __init__(
        self, network: protocol.Network, events: loop.Loop, peers: peers.Peers, proxy: str | None
    ) -> None:
        """With a certificate, the endpoint also serves TLS on the next port. `proxy`: HTTP proxy for
        connections to the real hosts. Raises OSError if a port is in use."""
        ports = [network.storage_port, network.storage_port + 1]
        self._listeners = [
            listen(network.address, port) for port in (ports if network.certificate else ports[:1])
        ]
        #: The part that runs in the relay process.
        self._relay = Relay(network, self._listeners, peers, proxy)
        self._network = network
        #: A connection to the bucket process, through which a notice is reported. None if there is no notice.
        self._notice: "socket.socket | None" = None
        self._loop = events
        #: The relay's process ID; None while no relay runs.
        self.process: "int | None" = None
        # The relay inherits this protection. The relay runs among the program's processes, perhaps as the
        # same user, and has more access than the program. A process that could trace the relay could
        # impersonate other replicas and read their files.
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
            self.process = kernel.fork_helper(self._relay.run, [at.fileno() for at in self._listeners])
        except OSError:
            self._loop.after(_RETRY_INTERVAL, self._listen)

    def on_exit(self, child: int) -> None:
        """Listen again if the exited child was the relay."""
        if child == self.process:
            self.process = None
            self._listen()

    def report(self, notice: str) -> None:
        """Report a notice, such as a preemption, to the bucket process until `stop`. The bucket process
        serves the replica's metadata, which then contain the notice."""
        if not self._listeners or self._notice is not None:
            return
        line = protocol.preamble(self._network.identity, is_secure=False, notice=notice)
        path = self._network.storage_socket
        made = unix_sockets.try_connect(path, line, is_blocking=False) if path else None
        if made is None:
            self._loop.after(_RETRY_INTERVAL, lambda: self.report(notice))
            return
        self._notice = made
        # The bucket process sends no data: the connection becomes readable when that process exits.
        self._loop.add(made.fileno(), lambda: self._report_again(notice))

    def _report_again(self, notice: str) -> None:
        self._end_report()
        self._loop.after(_RETRY_INTERVAL, lambda: self.report(notice))

    def _end_report(self) -> None:
        if self._notice is not None:
            self._loop.drop(self._notice.fileno())
            self._notice.close()
            self._notice = None

    def stop(self) -> None:
        """Stop the relay and the report of a notice, and free the port for the replica's next run."""
        self._end_report()
        self._ignore()
        for listener in self._listeners:
            listener.close()
        self._listeners = []
        if self.process is not None:
            processes.end_child(self.process)


class Relay:
    """The part that runs in the relay process: accepts the endpoint's clients, and serves each in its own
    threads."""

    def __init__(
        self,
        network: protocol.Network,
        listeners: Sequence[socket.socket],
        peers: peers.Peers | None = None,
        proxy: str | None = None,
    ) -> None:
        """`listeners`: with a certificate, the last one is for TLS. `peers`: restricts the clients; None
        admits all of them."""
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
            return  # The client has already disconnected: wait for the next one.
        except OSError:
            # No file descriptor or memory is free. Clients wait in the queue until the next attempt.
            time.sleep(_RETRY_INTERVAL)
            return
        if self._peers is not None and not self._peers.belongs(connection):
            # Reject the client, because it belongs to another replica or user. It would act with this
            # replica's identity.
            connection.close()
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        serve = self._open_front().serve if handle == self._secure else self._serve
        if not _start_thread(serve, connection):
            connection.close()

    def _serve(self, client: socket.socket) -> None:
        with client:
            line = protocol.preamble(self._network.identity, is_secure=False)
            server = unix_sockets.connect_with_retries(self._network.storage_socket, line)
            if server is None:
                return
            with server:
                if back := _start_thread(_forward, server, client):
                    _forward(client, server)
                    back.join()

    def _open_front(self) -> "interception.TlsFront":
        """Return the TLS front, created for the first TLS client because it imports large libraries."""
        if self._tls_front is None:
            from trainshed.replica.endpoint import interception

            self._tls_front = interception.TlsFront(self._network, self.google())
        return self._tls_front

    def google(self) -> "google_hosts.GoogleHosts":
        """Return a new object that connects to Google's real hosts."""
        from trainshed.replica.endpoint import google_hosts

        return google_hosts.GoogleHosts(self._proxy)


def _start_thread(work: "Callable[..., None]", *arguments: socket.socket) -> "threading.Thread | None":
    """Start a thread that calls `work`, and return the thread. Returns None if no thread can be started."""
    # Imported late: every module that is imported before a fork slows down the fork.
    import threading

    if threading.active_count() > _MAX_THREADS:
        return None
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _forward(source: socket.socket, sink: socket.socket) -> None:
    """Forward all bytes of the source, with at most one chunk in memory."""
    try:
        while data := source.recv(_CHUNK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        # If one side has disconnected, end the other direction as well.
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
