"""One process of a reducer: a thread, a selector, and every connection that comes to its port.

Whoever connects proves within seconds, and with a few bytes of memory, that it knows the job's token; only
then may it send chunks. While nothing happens and nobody waits, nothing runs here.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from typing import TYPE_CHECKING, Callable, List, Optional, Sequence

from trainshed_reduction import framing, proof, wire
from trainshed_reduction.arithmetic import Kernels
from trainshed_reduction.reducer.buffers import Buffers
from trainshed_reduction.reducer.connections import Connection
from trainshed_reduction.reducer.counters import Counters, Outlet
from trainshed_reduction.reducer.groups import WINDOW, Effect
from trainshed_reduction.reducer.peers import READ, Peer, Peers
from trainshed_reduction.reducer.sessions import Refusal, Sessions
from trainshed_reduction.wire import Accept, Kind

if TYPE_CHECKING:
    from trainshed_reduction.native.reducing import NativeReducer

STRANGERS = 64
"""Connections at a time that have not proved themselves."""
_HURRY = 1.0
"""Seconds that such a one has while others cannot come in because of it."""
_PAUSE = 0.5
"""Seconds until the system is asked for another connection after it could not give one."""
_SECOND = 1.0
_VANISHED = 60.0
"""Seconds after which a worker is gone that takes nothing any more."""


class Server:
    """One process of a reducer: takes workers' connections and serves their groups. `ports` are those of all
    its processes, in their order."""

    def __init__(
        self,
        listener: socket.socket,
        ports: Sequence[int],
        token: bytes,
        *,
        kernels: Kernels,
        outlet: Outlet,
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        self._listener = listener
        self._token = token
        #: Where lines and numbers go.
        self._outlet = outlet
        self._tls = tls
        self._accept = Accept(b"", proof.nonce()[:16], WINDOW, wire.MAX_CHUNK, tuple(ports))
        self._buffers = Buffers()
        self._counters = Counters()
        self._sessions = Sessions(kernels, self._buffers, self._counters)
        self._selector = selectors.DefaultSelector()
        self._native = None if tls is not None else _native(self._selector)
        #: Of the part in C, when they were looked at last.
        self._numbers = (0,) * 5
        now = time.monotonic()
        self._peers = Peers(
            selector=self._selector,
            sessions=self._sessions,
            counters=self._counters,
            outlet=outlet,
            greet=self._greet,
            native=self._native,
            now=now,
        )
        self._listens = False
        self._listen_at = self._status_at = self._report_at = 0.0
        self._reported = now - _SECOND
        self._ended = False
        listener.setblocking(False)

    def watch(self, handle: int, call: Callable[[], None]) -> None:
        """Call it whenever the handle is readable."""
        self._selector.register(handle, READ, call)

    def end(self) -> None:
        """For what `watch` calls: `run` returns."""
        self._ended = True

    def run(self) -> None:
        """Serve until `end`. Connections are closed then without a word: workers come again, to whoever
        listens."""
        peers = self._peers
        while not self._ended:
            self._keep_time()
            patience = self._patience()
            if self._native is not None:
                said = self._native.run(patience)
                peers.now = time.monotonic()
                peers.hear(said)
                self._catch_up()
                patience = 0.0
            for key, events in self._selector.select(patience):
                peers.now = time.monotonic()
                if isinstance(key.data, Peer):
                    peers.serve(key.data, events)
                else:
                    key.data()
            peers.serve_ready()
        peers.close()
        self._report()
        if self._native is not None:
            self._native.close()

    def _catch_up(self) -> None:
        """With what the part in C has counted."""
        assert self._native is not None
        before, self._numbers = self._numbers, self._native.numbers()
        counted = [now - then for now, then in zip(self._numbers, before)]
        if any(counted):
            self._counters.add(*counted[:4])
            self._peers.has_news = True

    def _patience(self) -> Optional[float]:
        """Seconds until there is something to do of which the selector does not tell; None: never."""
        moments = [self._listen_at, self._status_at, self._report_at, self._peers.moment]
        for oldest in self._peers.strangers:
            moments.append(oldest.came + self._time_limit())
            break
        first = min((each for each in moments if each), default=None)
        return None if first is None else max(0.0, first - time.monotonic())

    def _time_limit(self) -> float:
        crowded = len(self._peers.strangers) >= STRANGERS
        return _HURRY if crowded else proof.HANDSHAKE_SECONDS

    def _keep_time(self) -> None:
        now = self._peers.now = time.monotonic()
        for stranger in [*self._peers.strangers]:
            if now < stranger.came + self._time_limit():
                break
            self._peers.drop(stranger)
        if self._status_at and now >= self._status_at:
            self._status_at = 0.0
            self._peers.carry_out(self._sessions.status(now))
        if not self._status_at and self._sessions.is_waiting:
            self._status_at = now + _SECOND
        if self._peers.has_news and not self._report_at:
            self._report_at = max(now, self._reported + _SECOND)
        if self._report_at and now >= self._report_at:
            self._report()
        if now >= self._listen_at:
            self._listen_at = 0.0
            self._listen(len(self._peers.strangers) < STRANGERS)

    def _report(self) -> None:
        waited = () if self._native is None else self._native.waited()
        self._counters.connections = self._peers.connected
        self._counters.chunks_in_flight = self._sessions.chunks_in_flight
        self._counters.pending_bytes = self._buffers.used_bytes + self._numbers[-1]
        self._outlet("metrics", self._counters.snapshot(waited))
        self._reported = self._peers.now
        self._report_at = 0.0
        self._peers.has_news = False

    def _listen(self, wanted: bool) -> None:
        if wanted == self._listens:
            return
        self._listens = wanted
        if wanted:
            self._selector.register(self._listener, READ, self._welcome)
        else:
            self._selector.unregister(self._listener)

    def _welcome(self) -> None:
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError as error:
            self._outlet("log", "cannot take another connection: {}".format(error))
            self._listen(False)
            self._listen_at = self._peers.now + _PAUSE
            return
        try:
            secured = self._prepare(connection)
        except OSError:  # It has gone already.
            connection.close()
            return
        address_text = "{}:{}".format(*address[:2])
        self._peers.add(Peer(Connection(secured, self._buffers), address_text, self._peers.now))
        self._listen(len(self._peers.strangers) < STRANGERS)

    def _prepare(self, connection: socket.socket) -> socket.socket:
        """Raises OSError."""
        connection.setblocking(False)
        framing.set_options(connection, _VANISHED)
        if self._tls is None:
            return connection
        return self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def _greet(self, peer: Peer, payload: bytes) -> "List[Effect]":
        """A stranger's HELLO. Raises Malformed."""
        hello = wire.unpack_hello(payload)
        if not proof.is_worker(self._token, peer.challenge, hello):
            return self._refuse(peer, proof.WRONG_TOKEN, "a worker")
        try:
            member, following = self._sessions.admit(hello, self._peers.now)
        except Refusal as refusal:
            return self._refuse(peer, str(refusal), "rank {}".format(hello.rank))
        accept = proof.prove_reducer(self._token, peer.challenge, hello, self._accept)
        self._peers.admit(peer, member)
        peer.connection.send(proof.frame(Kind.ACCEPT, wire.pack_accept(accept)))
        self._peers.serve(peer, selectors.EVENT_WRITE)
        return following

    def _refuse(self, peer: Peer, text: str, who: str) -> "List[Effect]":
        self._counters.refused += 1
        self._outlet("log", "refused {} at {}: {}".format(who, peer.address, text))
        return self._peers.dismiss(peer, proof.text_frame(Kind.REFUSE, text))


def _native(selector: selectors.BaseSelector) -> "Optional[NativeReducer]":
    """The part in C, which waits for the selector as well; None where there is none."""
    fileno = getattr(selector, "fileno", None)
    if fileno is None:
        return None
    try:
        from trainshed_reduction.native import library

        found = library.load()
        if found is None:
            return None
        from trainshed_reduction.native.reducing import NativeReducer

        return NativeReducer.made(found, fileno())
    except (ImportError, OSError):
        return None
