"""One thread of a reducer, with its connections.

A peer must prove within seconds that it knows the job's token, before it may send chunks. Until then, the
peer can use only little memory.

The C library reports events of connections. The thread passes them to the sessions (`groups`), and executes
the effects that the sessions return. If a connection breaks or violates the protocol, only that connection is
closed. The thread sleeps while no events occur and no peer waits.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import time
from collections import deque
from typing import Callable, Deque, Dict, List, Optional, Sequence, Tuple

from trainshed_reduction import proof, sockets, wire
from trainshed_reduction.native.library import Library, Lost, Message, MismatchedChunk, ProtocolViolation
from trainshed_reduction.native.reducing import Event, NativeGroup, NativeReducer
from trainshed_reduction.reducer import groups
from trainshed_reduction.reducer.groups import Effect, Member, Refusal, Sessions
from trainshed_reduction.wire import Accept, Hello, Kind, Malformed

Outlet = Callable[[str, object], None]
"""Function that receives a report of a thread: its kind and its value. It must not block for long, and must
not raise exceptions.

- `log`: the value is a line.
- `serving`: the number of workers of a complete group.
- `connected`: the rank of a worker.
"""

MAX_UNAUTHENTICATED = 64
"""Maximum number of connections whose peers have not proved yet that they know the token."""
_BUSY_HANDSHAKE_TIMEOUT = 1.0
"""Maximum seconds of a handshake while the number of unauthenticated connections is `MAX_UNAUTHENTICATED`."""
_ACCEPT_RETRY_INTERVAL = 0.5
"""Seconds before the next `accept` after the system reported an error."""
_SECOND = 1.0
_CLOSE_TIMEOUT = 2.0
"""Seconds that a peer has to read the last message on its connection."""
_STALL_TIMEOUT = 60.0
"""Seconds after which a worker that accepts no data counts as lost."""


class Peer:
    """The peer of a connection: a worker if it has a member, otherwise unauthenticated."""

    def __init__(self, connection: socket.socket, address: str, now: float) -> None:
        self.connection = connection
        self.address = address
        #: The number of the connection in the C library.
        self.slot = -1
        #: The messages of both sides in the handshake, starting with the challenge. The proofs cover them.
        self.transcript = proof.nonce()
        self.came = now
        self.member: Optional[Member] = None


class Server:
    """Serves all groups on one lane of the reducer (one connection of each worker), in one thread. The first
    server also accepts the connections of all lanes. It passes each authenticated connection to the server of
    the connection's lane.
    """

    def __init__(
        self, listener: Optional[socket.socket], token: bytes, *, library: Library, outlet: Outlet
    ) -> None:
        """`listener`: the listening socket; None except for the first server. Raises OSError if no file
        descriptor is available."""
        #: All servers of the reducer, by lane (index of the thread). The first server passes connections to
        #: them.
        self.all: Sequence[Server] = (self,)
        self._listener = listener
        self._token = token
        #: Function that receives the reports of this thread.
        self._outlet = outlet
        self._sessions = Sessions()
        #: Polls the listening socket and the socket that wakes this thread.
        self._selector = selectors.DefaultSelector()
        self._native = NativeReducer(library, self._selector.fileno())
        #: All peers by slot, the number of their connection.
        self._peers: Dict[int, Peer] = {}
        #: Unauthenticated peers, the oldest connection first.
        self._unauthenticated: Dict[Peer, None] = {}
        self._members: Dict[Member, Peer] = {}
        #: Connections on which the last message was queued, with the times at which they are closed at the
        #: latest. They are in the order of these times.
        self._leaving: Dict[Peer, float] = {}
        self._now = time.monotonic()
        self._listens = False
        self._listen_at = self._status_at = 0.0
        self._ended = False
        #: Authenticated peers that the first server has passed to this server; None = stop serving.
        self._inbox: queue.SimpleQueue[Optional[Tuple[Peer, Hello]]] = queue.SimpleQueue()
        self._wake_sender, self._wake_receiver = socket.socketpair()
        for end in (self._wake_sender, self._wake_receiver):
            end.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, self._read_inbox)
        if listener is not None:
            listener.setblocking(False)

    def end(self) -> None:
        self._put(None)

    def _put(self, entry: Optional[Tuple[Peer, Hello]]) -> None:
        self._inbox.put(entry)
        # If the socket is full, the thread wakes anyway. If it is closed, the thread has ended.
        with contextlib.suppress(OSError):
            self._wake_sender.send(b"\0")

    def _read_inbox(self) -> None:
        self._wake_receiver.recv(4096)
        while not self._inbox.empty():
            entry = self._inbox.get()
            if entry is None:
                self._ended = True
                continue
            peer, hello = entry
            with contextlib.suppress(OSError):
                self._add(peer)
                self._carry_out(self._admit(peer, hello))

    def _add(self, peer: Peer) -> None:
        """Serve the connection of a peer in this thread. If the connection is broken, closes it and raises
        OSError."""
        try:
            peer.slot = self._native.add(peer.connection.fileno())
        except OSError:
            peer.connection.close()
            raise
        self._peers[peer.slot] = peer

    def run(self) -> None:
        """Serve until `end` is called. Then close all connections without a last message, so that workers
        connect again to the restarted reducer."""
        while not self._ended:
            self._handle_timers()
            events = self._native.run(self._wait_time())
            self._now = time.monotonic()
            for event in events:
                self._carry_out(self._handle(event))
            for key, _ in self._selector.select(0):
                key.data()
        for peer in [*self._peers.values()]:
            self._close(peer)
        self._native.close()
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    # ---- time limits and regular tasks

    def _wait_time(self) -> Optional[float]:
        """Return the seconds until the next action is due; None = no action is due."""
        moments = [self._listen_at, self._status_at]
        moments += [peer.came + self._handshake_timeout() for peer in [*self._unauthenticated][:1]]
        moments += [*self._leaving.values()][:1]
        first = min((moment for moment in moments if moment), default=None)
        return None if first is None else max(0.0, first - time.monotonic())

    def _handshake_timeout(self) -> float:
        crowded = len(self._unauthenticated) >= MAX_UNAUTHENTICATED
        return _BUSY_HANDSHAKE_TIMEOUT if crowded else proof.HANDSHAKE_SECONDS

    def _handle_timers(self) -> None:
        now = self._now = time.monotonic()
        late = [
            peer_left
            for peer_left in self._unauthenticated
            if now >= peer_left.came + self._handshake_timeout()
        ]
        for peer in [*late, *(gone for gone, until in self._leaving.items() if now >= until)]:
            self._carry_out(self._drop(peer))
        if self._status_at and now >= self._status_at:
            self._status_at = 0.0
            self._carry_out(self._sessions.status(now))
        if not self._status_at and self._sessions.is_waiting:
            self._status_at = now + _SECOND
        if now >= self._listen_at:
            self._listen_at = 0.0
            self._listen(len(self._unauthenticated) < MAX_UNAUTHENTICATED)

    # ---- new connections

    def _listen(self, wanted: bool) -> None:
        if wanted == self._listens or self._listener is None:
            return
        self._listens = wanted
        if wanted:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        else:
            self._selector.unregister(self._listener)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError as error:
            self._outlet("log", f"cannot accept a connection: {error}")
            self._listen(False)
            self._listen_at = self._now + _ACCEPT_RETRY_INTERVAL
            return
        try:
            sockets.set_options(connection, _STALL_TIMEOUT)
            connection.setblocking(False)
        except OSError:  # The peer has disconnected.
            connection.close()
            return
        peer = Peer(connection, "{}:{}".format(*address[:2]), self._now)
        with contextlib.suppress(OSError):
            self._add(peer)
            self._unauthenticated[peer] = None
            self._native.send(peer.slot, proof.frame(Kind.CHALLENGE, peer.transcript))
        self._listen(len(self._unauthenticated) < MAX_UNAUTHENTICATED)

    def _greet(self, peer: Peer, event: Message | MismatchedChunk) -> List[Effect]:
        """Handle the first message of an unauthenticated peer, and return the effects. Raises Malformed if
        the message is not a valid HELLO."""
        if isinstance(event, MismatchedChunk) or event.header.kind is not Kind.HELLO:
            raise Malformed("the first frame of a connection must be HELLO")
        hello = proof.read_signed(self._token, Hello, event.payload, peer.transcript)
        if hello is None:
            return self._refuse(peer, proof.WRONG_TOKEN, "a worker")
        peer.transcript += event.payload
        name = f"rank {hello.rank}"
        if not hello.rank < hello.world <= wire.MAX_WORLD:
            return self._refuse(peer, f"{name} of {hello.world} does not exist", name)
        if hello.lane >= len(self.all):
            return self._refuse(peer, f"there are {len(self.all)} threads", name)
        serving = self.all[hello.lane]
        if serving is self:
            self._native.resume(peer.slot)
            return self._admit(peer, hello)
        del self._unauthenticated[peer]
        self._release(peer)
        serving._put((peer, hello))
        return []

    def _admit(self, peer: Peer, hello: Hello) -> List[Effect]:
        """Add an authenticated peer to its group, or reject it. Return the effects."""
        try:
            member, following = self._sessions.admit(hello, self._now)
        except Refusal as refusal:
            return self._refuse(peer, str(refusal), f"rank {hello.rank}")
        self._unauthenticated.pop(peer, None)
        peer.member = member
        self._members[member] = peer
        self._outlet("connected", hello.rank)
        accept = proof.sign(self._token, Accept(len(self.all)), peer.transcript)
        self._native.send(peer.slot, proof.frame(Kind.ACCEPT, accept))
        return following

    def _refuse(self, peer: Peer, text: str, name: str) -> List[Effect]:
        self._outlet("log", f"refused {name} at {peer.address}: {text}")
        return self._dismiss(peer, proof.text_frame(Kind.ERROR, text))

    # ---- events and effects

    def _handle(self, event: Event) -> List[Effect]:
        peer = self._peers.get(event.lane)
        if peer is None:
            return []  # Ignore events of a connection that is already closed.
        if isinstance(event, Lost):
            return self._drop(peer)
        if peer in self._leaving:
            return []  # Ignore events of a connection that only sends its last message.
        try:
            if isinstance(event, ProtocolViolation):
                raise Malformed(wire.VIOLATION)
            if peer.member is None:
                return self._greet(peer, event)
            if isinstance(event, MismatchedChunk):
                return peer.member.group.reject_chunk(peer.member, event.header)
            return peer.member.group.handle_frame(peer.member, event.header, event.payload, self._now)
        except Malformed as error:
            self._outlet("log", f"{peer.address}: {error}")
            return self._dismiss(peer, proof.text_frame(Kind.ERROR, str(error)))

    def _carry_out(self, following: List[Effect]) -> None:
        pending: Deque[Effect] = deque(following)
        while pending:
            effect = pending.popleft()
            if isinstance(effect, groups.Log):
                self._outlet("log", effect.text)
            elif isinstance(effect, groups.Started):
                if effect.is_first:
                    self._outlet("serving", effect.group.world)
                    self._outlet("log", f"group of {effect.group.world} workers is complete")
                rows = NativeGroup(
                    self._native, effect.group.world, effect.group.progress, effect.group.departed_positions
                )
                for member in effect.group.members.values():
                    rows.join(member.rank, self._members[member].slot, member.hello.received)
                effect.group.run(rows)
            elif (peer := self._members.get(effect.member)) is not None:
                if isinstance(effect, groups.SendFrame):
                    if not (effect.is_reminder and self._native.unsent(peer.slot)):
                        self._native.send(peer.slot, effect.frame)
                elif effect.farewell:
                    pending.extend(self._dismiss(peer, effect.farewell))
                else:
                    pending.extend(self._drop(peer))

    def _dismiss(self, peer: Peer, farewell: bytes) -> List[Effect]:
        """Send a last frame to a peer. The connection is closed when the peer has read the frame, or after a
        timeout. Return the effects on other members."""
        following = self._part(peer)
        self._native.send(peer.slot, farewell)
        self._native.dismiss(peer.slot)
        self._leaving[peer] = self._now + _CLOSE_TIMEOUT
        return following

    def _drop(self, peer: Peer) -> List[Effect]:
        """Close the connection of a peer. Return the effects on other members."""
        following = self._part(peer)
        self._leaving.pop(peer, None)
        self._close(peer)
        return following

    def _part(self, peer: Peer) -> List[Effect]:
        self._unauthenticated.pop(peer, None)
        member, peer.member = peer.member, None
        if member is None:
            return []
        del self._members[member]
        return member.group.handle_loss(member, self._now)

    def _close(self, peer: Peer) -> None:
        self._release(peer)
        peer.connection.close()

    def _release(self, peer: Peer) -> None:
        self._native.drop(peer.slot)
        del self._peers[peer.slot]
