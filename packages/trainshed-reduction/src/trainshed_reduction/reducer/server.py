"""One thread of a reducer, and the connections that are for it.

Whoever connects has to prove within seconds, and with little memory, that it knows the job's token; only then
may it send chunks. The part in C reports events of connections, which go to the sessions; the sessions'
effects go to connections. A connection that breaks or violates the protocol is closed alone. While nothing
happens and nobody waits, nothing runs here.
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
from trainshed_reduction.native.library import Library, Lost, Message, Odd, Strange
from trainshed_reduction.native.reducing import Event, NativeGroup, NativeReducer
from trainshed_reduction.reducer import groups
from trainshed_reduction.reducer.groups import Effect, Member, Refusal, Sessions
from trainshed_reduction.wire import Accept, Hello, Kind, Malformed

Outlet = Callable[[str, object], None]
"""Takes what a thread reports, by its kind: `log`, a line; `serving`, how many workers a complete group has;
`connected`, a worker's rank. It neither blocks for long nor raises."""

STRANGERS = 64
"""Most connections at a time that have not proved themselves."""
_HURRY = 1.0
"""Seconds that each of them has to do so while there are so many that others have to wait."""
_PAUSE = 0.5
"""Seconds until connections are accepted again after the system could not give one."""
_SECOND = 1.0
_LINGER = 2.0
"""Seconds in which the other side can read why its connection ends."""
_VANISHED = 60.0
"""Seconds after which a worker that accepts no data counts as gone."""


class Peer:
    """The other end of a connection; a stranger as long as it has no member."""

    def __init__(self, connection: socket.socket, address: str, now: float) -> None:
        self.connection = connection
        self.address = address
        #: The connection's number in C.
        self.slot = -1
        #: What both sides have sent, as far as proofs cover it; the challenge first.
        self.said = proof.nonce()
        self.came = now
        self.member: Optional[Member] = None


class Server:
    """Serves the groups of one lane. The first server also accepts all connections, and hands those that have
    proved themselves to the server of their lane."""

    def __init__(
        self, listener: Optional[socket.socket], token: bytes, *, library: Library, outlet: Outlet
    ) -> None:
        """`listener`: only the first server has it. Raises OSError."""
        #: All servers of the reducer, by lane.
        self.all: Sequence[Server] = (self,)
        self._listener = listener
        self._token = token
        #: Where lines go.
        self._outlet = outlet
        self._sessions = Sessions()
        #: For what is no peer's connection.
        self._selector = selectors.DefaultSelector()
        self._native = NativeReducer(library, self._selector.fileno())
        #: By slot.
        self._peers: Dict[int, Peer] = {}
        #: In the order in which they came; so below.
        self._strangers: Dict[Peer, None] = {}
        self._members: Dict[Member, Peer] = {}
        #: When the connections that were told why they end are closed.
        self._leaving: Dict[Peer, float] = {}
        self._now = time.monotonic()
        self._listens = False
        self._listen_at = self._status_at = 0.0
        self._ended = False
        #: From other threads: peers that they have greeted; None: the end.
        self._handed: queue.SimpleQueue[Optional[Tuple[Peer, Hello]]] = queue.SimpleQueue()
        self._waker, self._woken_by = socket.socketpair()
        for end in (self._waker, self._woken_by):
            end.setblocking(False)
        self._selector.register(self._woken_by, selectors.EVENT_READ, self._take_over)
        if listener is not None:
            listener.setblocking(False)

    def end(self) -> None:
        self._hand(None)

    def _hand(self, what: Optional[Tuple[Peer, Hello]]) -> None:
        self._handed.put(what)
        with contextlib.suppress(OSError):  # Full: it will wake up anyway. Closed: it has ended.
            self._waker.send(b"\0")

    def _take_over(self) -> None:
        self._woken_by.recv(4096)
        while not self._handed.empty():
            handed = self._handed.get()
            if handed is None:
                self._ended = True
                continue
            peer, hello = handed
            with contextlib.suppress(OSError):
                self._take(peer)
                self._carry_out(self._admit(peer, hello))

    def _take(self, peer: Peer) -> None:
        """Read and send on the peer's connection in this thread. Raises OSError: the connection broke, and
        is closed."""
        try:
            peer.slot = self._native.add(peer.connection.fileno())
        except OSError:
            peer.connection.close()
            raise
        self._peers[peer.slot] = peer

    def run(self) -> None:
        """Serve until `end`. Connections are then closed without a message: workers connect again, to
        whoever listens."""
        while not self._ended:
            self._keep_time()
            events = self._native.run(self._patience())
            self._now = time.monotonic()
            for event in events:
                self._carry_out(self._hear(event))
            for key, _ in self._selector.select(0):
                key.data()
        for peer in [*self._peers.values()]:
            self._close(peer)
        self._native.close()
        self._selector.close()
        self._woken_by.close()
        self._waker.close()

    # ---- time

    def _patience(self) -> Optional[float]:
        """Return the seconds until something is due; None: nothing is."""
        moments = [self._listen_at, self._status_at]
        moments += [peer.came + self._time_limit() for peer in [*self._strangers][:1]]
        moments += [*self._leaving.values()][:1]
        first = min((moment for moment in moments if moment), default=None)
        return None if first is None else max(0.0, first - time.monotonic())

    def _time_limit(self) -> float:
        crowded = len(self._strangers) >= STRANGERS
        return _HURRY if crowded else proof.HANDSHAKE_SECONDS

    def _keep_time(self) -> None:
        now = self._now = time.monotonic()
        late = [
            peer_left for peer_left in self._strangers if now >= peer_left.came + self._time_limit()
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
            self._listen(len(self._strangers) < STRANGERS)

    # ---- who comes

    def _listen(self, wanted: bool) -> None:
        if wanted == self._listens or self._listener is None:
            return
        self._listens = wanted
        if wanted:
            self._selector.register(self._listener, selectors.EVENT_READ, self._welcome)
        else:
            self._selector.unregister(self._listener)

    def _welcome(self) -> None:
        assert self._listener is not None
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError as error:
            self._outlet("log", f"cannot take another connection: {error}")
            self._listen(False)
            self._listen_at = self._now + _PAUSE
            return
        try:
            sockets.set_options(connection, _VANISHED)
            connection.setblocking(False)
        except OSError:  # It has gone already.
            connection.close()
            return
        peer = Peer(connection, "{}:{}".format(*address[:2]), self._now)
        with contextlib.suppress(OSError):
            self._take(peer)
            self._strangers[peer] = None
            self._native.tell(peer.slot, proof.frame(Kind.CHALLENGE, peer.said))
        self._listen(len(self._strangers) < STRANGERS)

    def _greet(self, peer: Peer, event: Message | Odd) -> List[Effect]:
        """Handle a stranger's first message. Raises Malformed."""
        if isinstance(event, Odd) or event.header.kind is not Kind.HELLO:
            raise Malformed("HELLO must come first")
        hello = proof.read_signed(self._token, Hello, event.payload, peer.said)
        if hello is None:
            return self._refuse(peer, proof.WRONG_TOKEN, "a worker")
        peer.said += event.payload
        who = f"rank {hello.rank}"
        if not hello.rank < hello.world <= wire.MAX_WORLD:
            return self._refuse(peer, f"{who} of {hello.world} is none", who)
        if hello.lane >= len(self.all):
            return self._refuse(peer, f"there are {len(self.all)} threads", who)
        serving = self.all[hello.lane]
        if serving is self:
            self._native.resume(peer.slot)
            return self._admit(peer, hello)
        del self._strangers[peer]
        self._let_go(peer)
        serving._hand((peer, hello))
        return []

    def _admit(self, peer: Peer, hello: Hello) -> List[Effect]:
        """Let a peer that has proved itself into its group, or refuse it."""
        try:
            member, following = self._sessions.admit(hello, self._now)
        except Refusal as refusal:
            return self._refuse(peer, str(refusal), f"rank {hello.rank}")
        self._strangers.pop(peer, None)
        peer.member = member
        self._members[member] = peer
        self._outlet("connected", hello.rank)
        accept = proof.signed(self._token, Accept(len(self.all)), peer.said)
        self._native.tell(peer.slot, proof.frame(Kind.ACCEPT, accept))
        return following

    def _refuse(self, peer: Peer, text: str, who: str) -> List[Effect]:
        self._outlet("log", f"refused {who} at {peer.address}: {text}")
        return self._dismiss(peer, proof.text_frame(Kind.ERROR, text))

    # ---- what comes, and what is to be done

    def _hear(self, event: Event) -> List[Effect]:
        peer = self._peers.get(event.lane)
        if peer is None:
            return []  # An earlier event has closed it.
        if isinstance(event, Lost):
            return self._drop(peer)
        if peer in self._leaving:
            return []  # An earlier event has ended the connection.
        try:
            if isinstance(event, Strange):
                raise Malformed(wire.STRANGE)
            if peer.member is None:
                return self._greet(peer, event)
            if isinstance(event, Odd):
                return peer.member.group.odd(peer.member, event.header)
            return peer.member.group.frame(peer.member, event.header, event.payload, self._now)
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
                    self._native, effect.group.world, effect.group.progress, effect.group.departed
                )
                for member in effect.group.members.values():
                    rows.join(member.rank, self._members[member].slot, member.hello.received)
                effect.group.run(rows)
            elif (peer := self._members.get(effect.member)) is not None:
                if isinstance(effect, groups.Tell):
                    if not (effect.is_reminder and self._native.unsent(peer.slot)):
                        self._native.tell(peer.slot, effect.frame)
                elif effect.farewell:
                    pending.extend(self._dismiss(peer, effect.farewell))
                else:
                    pending.extend(self._drop(peer))

    def _dismiss(self, peer: Peer, farewell: bytes) -> List[Effect]:
        """Send a farewell, and close the connection when it has been read, or after a while."""
        following = self._part(peer)
        self._native.tell(peer.slot, farewell)
        self._native.dismiss(peer.slot)
        self._leaving[peer] = self._now + _LINGER
        return following

    def _drop(self, peer: Peer) -> List[Effect]:
        """Close the connection; return what follows for others."""
        following = self._part(peer)
        self._leaving.pop(peer, None)
        self._close(peer)
        return following

    def _part(self, peer: Peer) -> List[Effect]:
        self._strangers.pop(peer, None)
        member, peer.member = peer.member, None
        if member is None:
            return []
        del self._members[member]
        return member.group.lose(member, self._now)

    def _close(self, peer: Peer) -> None:
        self._let_go(peer)
        peer.connection.close()

    def _let_go(self, peer: Peer) -> None:
        self._native.drop(peer.slot)
        del self._peers[peer.slot]
