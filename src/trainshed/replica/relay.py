"""A replica's own storage endpoint: TCP connections passed on, byte for byte, to the bucket process.

The listening socket is made before the program starts; a relay process exists only from the first connection
on, so that the shim's log loop carries no bulk data. It reaches the bucket process by its Unix socket, which stays
where it is when the service restarts; a connection that comes while nobody listens there is retried.
Runs on Python 3.6.
"""

import errno
import os
import select
import signal
import socket
import time

from trainshed.replica import loop, system

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

    def __init__(self, address: str, port: int, target: str, events: loop.Loop) -> None:
        """`target`: the bucket process's Unix socket. Raises OSError if somebody else has the port."""
        self._listener = listen(address, port)
        self._target = target
        self._loop = events
        self.process = 0
        """The relay's process id; 0 = there is none now."""
        self._listen()

    def _listen(self) -> None:
        self._loop.add(self._listener.fileno(), self._start)

    def _start(self) -> None:
        self._loop.drop(self._listener.fileno())
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
                keep = {0, 1, 2, self._listener.fileno(), alive_write}
                system.close_all(handle for handle in system.open_handles() if handle not in keep)
                Relay(self._listener, self._target).run()
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
        self._loop.drop(self._listener.fileno())
        self._listener.close()
        if self.process:
            os.kill(self.process, signal.SIGKILL)
            self._reap()


def _connected(target: str) -> "socket.socket | None":
    """A connection to the bucket process; None: not now (it restarts, or there is no handle left)."""
    try:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        server.connect(target)
    except OSError:
        server.close()
        return None
    return server


class _End:
    """One side of a connection and what still has to be written to it."""

    __slots__ = ("connection", "done_reading", "peer", "pending")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.pending = memoryview(b"")
        self.done_reading = False
        self.peer = self


class Relay:
    """The loop of the relay process. At most one chunk per direction and connection is in memory."""

    def __init__(self, listener: socket.socket, target: str) -> None:
        self._listener = listener
        self._target = target
        self._ends: "dict[int, _End]" = {}
        self._waiting: "list[tuple[socket.socket, float]]" = []
        self._poll = select.poll()
        self._deaf_until = 0.0

    def run(self) -> None:
        """Serve until killed."""
        self._poll.register(self._listener, select.POLLIN)
        while True:
            pause = int(_RETRY_PAUSE * 1000) if self._waiting or self._deaf_until else None
            for handle, events in self._poll.poll(pause):
                if handle == self._listener.fileno():
                    self._accept()
                elif handle in self._ends:
                    self._move(self._ends[handle], events)
            self._connect_waiting()
            if self._deaf_until and time.monotonic() >= self._deaf_until:
                self._deaf_until = 0.0
                self._poll.register(self._listener, select.POLLIN)

    def _accept(self) -> None:
        try:
            connection = self._listener.accept()[0]
        except (BlockingIOError, ConnectionAbortedError):
            return  # The client went away between its call and our answer.
        except OSError:
            # No handle or no memory for it: whoever calls waits, and we do not turn round and round meanwhile.
            self._poll.unregister(self._listener)
            self._deaf_until = time.monotonic() + _NO_ROOM_PAUSE
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._waiting.append((connection, time.monotonic() + _RETRY_SECONDS))

    def _connect_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection, deadline in waiting:
            server = _connected(self._target)
            if server is None:
                if time.monotonic() < deadline:
                    self._waiting.append((connection, deadline))
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
