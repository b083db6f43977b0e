"""A replica's own endpoint: TCP connections passed on, byte for byte, to the bucket process, behind a line that says
whose they are.

That line is what makes a program's calls its job's: the bucket process's Unix socket is out of its reach. The socket
stays where it is when the service restarts; a connection that comes while nobody listens there is retried. The
listening sockets are made before the program starts; a relay process exists only from the first connection on, so that
the shim's log loop carries no bulk data. Runs on Python 3.6.
"""

import errno
import os
import select
import signal
import socket
import time

from trainshed.replica import loop, reaching, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    from trainshed.replica import interception

    Connection = Union[socket.socket, interception.Secured]

_CHUNK = 256 << 10
_RETRY_SECONDS = 10.0
_RETRY_PAUSE = 0.05
_NO_ROOM_PAUSE = 0.2
"""Seconds until a call is taken again where there were no file handles or no memory for it."""
_PREDECESSOR_GONE = 1.0
"""Seconds within which the kernel takes a port away from an incarnation that was killed."""


def listen(address: str, port: int) -> socket.socket:
    """The endpoint's listening socket. Raises OSError if somebody else has the port."""
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
                listener.close()
                raise
        time.sleep(0.005)
    listener.setblocking(False)
    return listener


class Endpoint:
    """The shim's side of it: listens, starts the relay when somebody calls, and again if it is killed."""

    def __init__(
        self,
        address: str,
        port: int,
        target: str,
        events: loop.Loop,
        *,
        identity: bytes = b"",
        certificate: str = "",
    ) -> None:
        """`target`: the bucket process's Unix socket. `identity`: what every connection to it begins with, as a line;
        b"" = nothing does. With a `certificate` (a PEM file with key and chain) the port behind `port` is served as
        well, over TLS. Raises OSError if somebody else has a port."""
        self._listeners = [listen(address, port)]
        if certificate:
            try:
                self._listeners.append(listen(address, port + 1))
            except OSError:
                self._listeners[0].close()
                raise
        self._target = target
        self._preamble = identity and identity + b"\n"
        self._certificate = certificate
        self._loop = events
        self.process = 0
        """The relay's process id; 0 = there is none now."""
        if system.LINUX:
            # The relay is born like this. It runs among the program's processes, perhaps as the same user, and sees
            # all that the program must not: who could trace it would speak for others, and read their files.
            system.forbid_inspection()
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
            alive_read, alive_write = os.pipe()
        except OSError:
            self._loop.after(_NO_ROOM_PAUSE, self._listen)
            return
        try:
            child = os.fork()
        except OSError:
            system.close_all([alive_read, alive_write])
            self._loop.after(_NO_ROOM_PAUSE, self._listen)
            return
        if child == 0:
            try:
                system.die_with_parent(signal.SIGKILL)
                keep = {0, 1, 2, alive_write, *(each.fileno() for each in self._listeners)}
                system.close_all(handle for handle in system.open_handles() if handle not in keep)
                Relay(
                    self._listeners[0],
                    self._target,
                    self._preamble,
                    self._listeners[1] if self._certificate else None,
                    self._certificate,
                ).run()
            finally:
                os._exit(0)
        os.close(alive_write)
        self.process = child

        def died() -> None:
            self._loop.drop(alive_read)
            os.close(alive_read)
            self._reap()
            self._listen()

        self._loop.add(alive_read, died)

    def _reap(self) -> None:
        os.waitpid(self.process, 0)
        self.process = 0

    def stop(self) -> None:
        """End the relay, if there is one, and give the port free for the next incarnation."""
        self._ignore()
        for listener in self._listeners:
            listener.close()
        if self.process:
            os.kill(self.process, signal.SIGKILL)
            self._reap()


class _End:
    """One side of a connection and what still has to be written to it."""

    __slots__ = ("connection", "done_reading", "peer", "pending")

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self.pending = memoryview(b"")
        self.done_reading = False
        self.peer = self


class Relay:
    """The loop of the relay process. At most one chunk per direction and connection is in memory."""

    def __init__(
        self,
        listener: socket.socket,
        target: str,
        preamble: bytes = b"",
        secure: "socket.socket | None" = None,
        certificate: str = "",
    ) -> None:
        """`preamble`: the line that connections to `target` begin with. `secure`: the listener of connections over TLS,
        which `certificate` is for; their line, a JSON object, says so."""
        self._target = target
        self._listeners = {listener.fileno(): listener}
        self._preambles = {listener.fileno(): preamble}
        self._doors: "dict[int, interception.Door]" = {}
        if secure is not None:
            from trainshed.replica import interception  # Takes a large library, which few need.

            self._listeners[secure.fileno()] = secure
            self._preambles[secure.fileno()] = interception.preamble(preamble)
            self._doors[secure.fileno()] = interception.Door(certificate)
        self._ends: "dict[int, _End]" = {}
        self._waiting: "list[tuple[Connection, bytes, float]]" = []
        self._poll = select.poll()
        self._deaf_until = 0.0

    def run(self) -> None:
        """Serve until killed."""
        self._hear()
        while True:
            pause = int(_RETRY_PAUSE * 1000) if self._waiting or self._deaf_until else None
            for handle, events in self._poll.poll(pause):
                if handle in self._listeners:
                    self._accept(handle)
                elif handle in self._ends:
                    self._move(self._ends[handle], events)
            self._connect_waiting()
            if self._deaf_until and time.monotonic() >= self._deaf_until:
                self._deaf_until = 0.0
                self._hear()

    def _hear(self) -> None:
        for handle in self._listeners:
            self._poll.register(handle, select.POLLIN)

    def _accept(self, handle: int) -> None:
        if self._deaf_until:
            return
        try:
            connection = self._listeners[handle].accept()[0]
        except (BlockingIOError, ConnectionAbortedError):
            return  # The client went away between its call and our answer.
        except OSError:
            # No handle or no memory for it: whoever calls waits, and we do not turn round and round meanwhile.
            for each in self._listeners:
                self._poll.unregister(each)
            self._deaf_until = time.monotonic() + _NO_ROOM_PAUSE
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        door = self._doors.get(handle)
        client = door.enter(connection) if door is not None else connection
        if client is not None:
            deadline = time.monotonic() + _RETRY_SECONDS
            self._waiting.append((client, self._preambles[handle], deadline))

    def _connect_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection, preamble, deadline in waiting:
            server = reaching.connected(self._target, preamble)
            if server is None:
                if time.monotonic() < deadline:
                    self._waiting.append((connection, preamble, deadline))
                else:
                    connection.close()
                continue
            server.setblocking(False)
            near, far = _End(connection), _End(server)
            near.peer, far.peer = far, near
            for end in (near, far):
                self._ends[end.connection.fileno()] = end
                self._poll.register(end.connection, select.POLLIN)

    def _move(self, end: _End, events: int) -> None:
        try:
            if events & select.POLLOUT and end.pending:
                end.pending = end.pending[end.connection.send(end.pending) :]
            if events & ~select.POLLOUT and not end.done_reading and not end.peer.pending:
                data = end.connection.recv(_CHUNK)
                if data:
                    end.peer.pending = memoryview(data)
                    end.peer.pending = end.peer.pending[end.peer.connection.send(data) :]
                else:
                    end.done_reading = True
                    end.peer.connection.shutdown(socket.SHUT_WR)
            elif events & (select.POLLERR | select.POLLHUP) and not end.peer.pending:
                raise ConnectionResetError
        except BlockingIOError:
            pass  # The other side is slower; its POLLOUT goes on from here.
        except OSError:
            self._close(end)
            return
        if end.done_reading and end.peer.done_reading and not end.pending and not end.peer.pending:
            self._close(end)
            return
        self._arm(end)
        self._arm(end.peer)

    def _arm(self, end: _End) -> None:
        """Wait for what can go on: read only while the peer has taken the last chunk."""
        events = select.POLLOUT if end.pending else 0
        if not end.done_reading and not end.peer.pending:
            events |= select.POLLIN
        self._poll.modify(end.connection, events)

    def _close(self, end: _End) -> None:
        for side in (end, end.peer):
            self._poll.unregister(side.connection)
            del self._ends[side.connection.fileno()]
            side.connection.close()
