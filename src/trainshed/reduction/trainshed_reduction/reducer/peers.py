"""Whoever is connected, and what their bytes lead to: frames go to the sessions, effects of that to
connections.

A connection that breaks, or carries what is no protocol, is closed, and nobody else's. Who sends more than
its window is not read from until results go out.
"""

from __future__ import annotations

import selectors
from collections import deque
from typing import TYPE_CHECKING, Callable, Deque, Dict, List, NamedTuple, Optional, Set, Union

from trainshed_reduction import proof, wire
from trainshed_reduction.reducer import groups
from trainshed_reduction.reducer.connections import Connection
from trainshed_reduction.reducer.counters import Counters, Outlet
from trainshed_reduction.reducer.groups import WINDOW, Effect, Member
from trainshed_reduction.reducer.sessions import Sessions
from trainshed_reduction.wire import Header, Kind, Malformed

if TYPE_CHECKING:
    from trainshed_reduction.native.reducing import NativeReducer

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_LINGER = 2.0
"""Seconds in which the other side is to read why its connection ends."""
_TURN = 1 << 20
"""Bytes that are read from one connection before the others have their turn."""


class Peer:
    """Who is at the other end; a stranger as long as it has no member."""

    __slots__ = ("address", "came", "challenge", "connection", "events", "member", "until")

    def __init__(self, connection: Connection, address: str, now: float) -> None:
        self.connection = connection
        self.address = address
        self.challenge = proof.nonce()
        self.came = now
        self.member: Optional[Member] = None
        self.until = 0.0
        """When the connection is closed, if it was told why."""
        self.events = 0
        """What the selector looks for."""

    @property
    def is_full(self) -> bool:
        member = self.member
        return member is not None and (member.is_full or self.connection.unsent_bytes >= WINDOW)

    @property
    def is_closed(self) -> bool:
        return self.connection.fileno() < 0


class Message(NamedTuple):
    """Event of the part in C: a frame came that is no chunk. `key`: the peer, as in all of these, of which
    nothing more is read."""

    key: object
    header: Header
    payload: bytes


class Lost(NamedTuple):
    """Event of the part in C: the connection broke, or the other side has closed it."""

    key: object


class Odd(NamedTuple):
    """Event of the part in C: a header is not as it should be, by itself or for a chunk in its place."""

    key: object
    header: bytes


class Peers:
    """The connections of one process to workers. `now` and `has_news` are for the caller to keep."""

    def __init__(
        self,
        *,
        selector: selectors.BaseSelector,
        sessions: Sessions,
        counters: Counters,
        outlet: Outlet,
        greet: Callable[[Peer, bytes], List[Effect]],
        native: "Optional[NativeReducer]",
        now: float,
    ) -> None:
        self.now = now
        self.has_news = True
        """The numbers have changed."""
        self.strangers: Dict[Peer, None] = {}
        """In the order in which they came."""
        self._selector = selector
        self._sessions = sessions
        self._counters = counters
        self._outlet = outlet
        #: Called with a stranger's HELLO; may raise Malformed.
        self._greet = greet
        #: Takes over the connections of groups that run; None: it is all done here.
        self._native = native
        self._members: Dict[Member, Peer] = {}
        self._leaving: Dict[Peer, None] = {}
        self._ready: Set[Peer] = set()

    @property
    def connected(self) -> int:
        return len(self._members)

    @property
    def moment(self) -> float:
        """When `serve_ready` has something to do; 0 = no time is set."""
        if self._ready:
            return self.now
        return next(iter(self._leaving)).until if self._leaving else 0.0

    def add(self, peer: Peer) -> None:
        self.strangers[peer] = None
        peer.connection.send(proof.frame(Kind.CHALLENGE, peer.challenge))
        self.serve(peer, WRITE)

    def admit(self, peer: Peer, member: Member) -> None:
        """The stranger has proved itself."""
        del self.strangers[peer]
        peer.member = member
        peer.connection.hello_only = False
        self._members[member] = peer
        self.has_news = True

    def serve(self, peer: Peer, events: int) -> None:
        """The selector says that the connection can be read or written."""

        def move() -> "List[Effect]":
            if events & WRITE:
                self._flush(peer)
            if events & READ or not peer.connection.is_secured:
                self._read(peer)
            return []

        self._attempt(peer, move)

    def hear(self, events: "List[object]") -> None:
        """What the part in C tells."""
        for event in events:
            if isinstance(event, (Message, Lost, Odd)):
                peer = event.key
                assert isinstance(peer, Peer)
                self._attempt(peer, lambda event=event, peer=peer: self._told(peer, event))

    def _told(self, peer: Peer, event: "Union[Message, Lost, Odd]") -> "List[Effect]":
        """Raises Malformed."""
        if peer.member is None or peer.connection.native is None:
            return []  # Something before it has ended the connection.
        if isinstance(event, Lost):
            return self.drop(peer)
        if isinstance(event, Message):
            return self._sessions.frame(peer.member, event.header, event.payload, self.now)
        return self._sessions.odd(peer.member, wire.unpack(event.header))

    def _attempt(self, peer: Peer, step: "Callable[[], List[Effect]]") -> None:
        """Take a step with one connection: if it raises, that one ends."""
        try:
            following = step()
        except Malformed as error:
            self._outlet("log", "{}: {}".format(peer.address, error))
            following = self.dismiss(peer, proof.text_frame(Kind.ERROR, str(error)))
        except OSError:
            following = self.drop(peer)
        self.carry_out(following)
        self._attend(peer)

    def serve_ready(self) -> None:
        """Whatever the selector does not tell of."""
        ready, self._ready = self._ready, set()
        for peer in ready:
            self.serve(peer, READ)
        while self._leaving:
            peer = next(iter(self._leaving))
            if self.now < peer.until:
                break
            self.drop(peer)

    def close(self) -> None:
        for peer in [*self.strangers, *self._members.values(), *self._leaving]:
            peer.connection.close()

    def carry_out(self, following: "List[Effect]") -> None:
        pending: Deque[Effect] = deque(following)
        while pending:
            effect = pending.popleft()
            if isinstance(effect, groups.Log):
                self._outlet("log", effect.text)
            elif isinstance(effect, groups.Completed):
                self._outlet("serving", effect.world)
                self._outlet("log", "group of {} workers is complete".format(effect.world))
            elif isinstance(effect, groups.Started):
                self._go_native(effect.group)
            elif isinstance(effect, (groups.Deliver, groups.Resume)):
                for member in effect.members:
                    pending.extend(self._reach(member, effect))
            else:
                pending.extend(self._reach(effect.member, effect))

    def _go_native(self, group: groups.Group) -> None:
        """Have the part in C serve the group, if there is one and all of its connections are plain TCP."""
        peers = [self._members.get(member) for member in group.members.values()]
        known = [each for each in peers if each is not None and each.connection.may_be_native]
        if self._native is None or len(known) < group.world:
            return
        native = self._native.begin(group.world, group.progress)
        for peer in known:
            member = peer.member
            assert member is not None
            try:
                joined = native.join(
                    member.rank, peer.connection.fileno(), member.hello.received, peer
                )
            except OSError:
                # Nothing is left to wait for it with. None of them has read or sent anything yet.
                for each in known:
                    each.connection.come_back()
                return
            peer.connection.native = joined
        group.go_native(native)
        for peer in known:
            assert peer.member is not None
            peer.member.native = peer.connection.native
            self._attend(peer)

    def _reach(self, member: Member, effect: Effect) -> "List[Effect]":
        """Does with one connection what the effect says; what follows from that."""
        peer = self._members.get(member)
        if peer is None:
            return []
        connection = peer.connection
        if isinstance(effect, groups.Dismiss):
            following = self.dismiss(peer, effect.farewell) if effect.farewell else self.drop(peer)
        elif isinstance(effect, groups.Tell) and effect.is_reminder and connection.unsent_bytes:
            return []
        else:
            if isinstance(effect, groups.Resume):
                self._ready.add(peer)
            elif isinstance(effect, groups.Deliver):
                connection.send(effect.header, effect.payload)
            elif isinstance(effect, groups.Tell):
                connection.send(effect.frame)
            following = []
            try:
                if not connection.wants_write:
                    self._flush(peer)
            except OSError:
                following = self.drop(peer)
        self._attend(peer)
        return following

    def dismiss(self, peer: Peer, farewell: bytes) -> "List[Effect]":
        """Close the connection when this has been read, or after a while."""
        if peer.is_closed:
            return []
        following = self._part(peer)
        peer.connection.come_back()
        peer.until = self.now + _LINGER
        self._leaving[peer] = None
        peer.connection.send(farewell)
        try:
            self._flush(peer)
        except OSError:
            self.drop(peer)
        self._attend(peer)
        return following

    def drop(self, peer: Peer) -> "List[Effect]":
        """Close the connection; what follows for others."""
        if peer.is_closed:
            return []
        if peer.events:
            self._selector.unregister(peer.connection)
            peer.events = 0
        self._leaving.pop(peer, None)
        following = self._part(peer)
        peer.connection.close()
        return following

    def _part(self, peer: Peer) -> "List[Effect]":
        self.strangers.pop(peer, None)
        self._ready.discard(peer)
        member, peer.member = peer.member, None
        if member is None:
            return []
        self.has_news = True
        del self._members[member]
        return self._sessions.lose(member, self.now)

    def _read(self, peer: Peer) -> None:
        """Raises Malformed, OSError."""
        connection = peer.connection
        left = 0 if peer.is_closed else _TURN
        while left > 0 and not peer.is_full:
            if peer.until:
                if not connection.discard():
                    self.drop(peer)
                return
            self.has_news = True
            for header, payload in connection.read():
                if peer.member is not None:
                    following = self._sessions.frame(peer.member, header, payload, self.now)
                elif isinstance(payload, bytes) and peer in self.strangers:
                    following = self._greet(peer, payload)
                else:
                    return
                self.carry_out(following)
                if peer.is_closed or peer.until:
                    return  # Whatever came behind that is nobody's.
            left -= connection.got
            self._counters.received_bytes += connection.got
            if connection.is_drained or peer.is_closed:
                return
        if left <= 0 and connection.has_more:
            self._ready.add(peer)

    def _flush(self, peer: Peer) -> None:
        """Raises OSError."""
        if peer.is_closed:
            return
        self._counters.sent_bytes += peer.connection.flush()
        if peer.until and not peer.connection.unsent_bytes:
            peer.connection.end_sending()

    def _attend(self, peer: Peer) -> None:
        """Have the selector look for what can be done now."""
        if peer.is_closed:
            return
        connection = peer.connection
        wanted = (0 if peer.is_full else READ) | (WRITE if connection.wants_write else 0)
        if connection.native is not None:
            wanted = 0
        if wanted == peer.events:
            return
        if not wanted:
            self._selector.unregister(connection)
        elif not peer.events:
            self._selector.register(connection, wanted, peer)
        else:
            self._selector.modify(connection, wanted, peer)
        if wanted & READ and not peer.events & READ and connection.has_more:
            self._ready.add(peer)
        peer.events = wanted
