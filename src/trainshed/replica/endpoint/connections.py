"""Pairs of connections that are passed on to each other, byte for byte, none waiting for another. Runs on
Python 3.6."""

import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

_CHUNK = 256 << 10


class _End:
    """One side of a connection and what still has to be written to it."""

    __slots__ = ("answers", "connection", "done_reading", "peer", "pending")

    def __init__(self, connection: socket.socket, answers: bool) -> None:
        self.connection = connection
        self.answers = answers
        self.pending = memoryview(b"")
        self.done_reading = False
        self.peer = self


class ConnectionPairs:
    """Connections whose bytes go across in pairs. At most one chunk per direction and pair is in memory."""

    __slots__ = ("_answered", "_ends", "_poll")

    def __init__(
        self, poll: "select.poll", answered: "Callable[[bytes], None]" = lambda data: None
    ) -> None:
        #: The owner's, which is told what to wait for.
        self._poll = poll
        #: Told each chunk that an answering side has said.
        self._answered = answered
        self._ends: "dict[int, _End]" = {}

    def add(self, asking: socket.socket, answering: socket.socket) -> None:
        """Both are ours from here on."""
        near, far = _End(asking, answers=False), _End(answering, answers=True)
        near.peer, far.peer = far, near
        for end in (near, far):
            end.connection.setblocking(False)
            self._ends[end.connection.fileno()] = end
            self._poll.register(end.connection, select.POLLIN)

    def move(self, handle: int, events: int) -> None:
        """Do what `events` of a handle allow; nothing if it is of no pair."""
        end = self._ends.get(handle)
        if end is None:
            return
        try:
            if events & select.POLLOUT and end.pending:
                end.pending = end.pending[end.connection.send(end.pending) :]
            if events & ~select.POLLOUT and not end.done_reading and not end.peer.pending:
                data = end.connection.recv(_CHUNK)
                if data:
                    if end.answers:
                        self._answered(data)
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
