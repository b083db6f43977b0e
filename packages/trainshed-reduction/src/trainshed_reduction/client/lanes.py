"""A lane: one worker's connection to one thread of a reducer, over time. Knows when to connect again, who is
missing, and since when the reducer is gone."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from typing import Callable, Iterable, Optional, Tuple

from trainshed_reduction import proof, sockets, wire
from trainshed_reduction.client.operations import ReductionFailed
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import Accept, Hello, Kind, Start

Address = Tuple[str, int]

_SILENCE = 10.0
"""Longest silence, in seconds, of a reducer that waits for other ranks and says so every second."""
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.5
_VANISHED = 20.0
"""Seconds after which a host that accepts no data counts as gone."""


class Dial:
    """What every lane of a rank connects with."""

    def __init__(self, settings: Settings, wake: Callable[[], None]) -> None:
        self.token = settings.token
        #: Called from any thread when a connection has news.
        self.wake = wake


class Connection:
    """One connection of a lane, from the attempt to make it on.

    It is made in a thread of its own, so that a reducer that does not answer delays no other. The thread
    sends HELLO, waits until all ranks have done so, and leaves here what the communicator's thread reads."""

    def __init__(self, address: Address, dial: Dial, hello: Hello) -> None:
        #: Set once the reducer has let this worker in.
        self.accept: Optional[Accept] = None
        #: When it did so.
        self.greeted = 0.0
        #: When the reducer last gave a sign of life.
        self.seen = 0.0
        #: What the reducer last said that it waits for; None = nothing.
        self.status: Optional[str] = None
        #: Set once all ranks are there; only the communicator's thread uses the socket from then on.
        self.start: Optional[Start] = None
        self.socket: Optional[socket.socket] = None
        #: Why it could not be made, set after all else; None = it is being made, or was.
        self.cause: Optional[str] = None
        #: To try again would be of no use.
        self.is_refused = False
        self._address = address
        self._dial = dial
        self._hello = hello
        self._is_closed = False
        name = "reduction-connect-{}:{}".format(*address)
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def heard(self, now: float, status: Optional[str] = None) -> None:
        self.seen, self.status = now, status

    def close(self) -> None:
        """Make it end soon; what its thread still finds is of no use."""
        self._is_closed = True
        connection = self.socket
        if connection is not None and (self.start is not None or self.cause):
            connection.close()
        elif connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # ---- the thread

    def _run(self) -> None:
        try:
            self.start = self._connect()
        except proof.Refused as error:
            self.is_refused, self.cause = True, str(error) or "it does not say why"
        except socket.timeout:
            self.cause = "it does not answer"
        except (OSError, wire.Malformed, ValueError) as error:
            self.cause = str(error) or type(error).__name__
        if self.socket is not None and (self._is_closed or self.start is None):
            self.socket.close()
        self._dial.wake()

    def _connect(self) -> Start:
        """Raises Refused, OSError, Malformed."""
        dial = self._dial
        connection, accept = proof.connect(self._address, dial.token, self._hello)
        self.socket = connection
        sockets.set_options(connection, _VANISHED)
        self.greeted = self.seen = time.monotonic()
        self.accept = accept
        dial.wake()
        while not self._is_closed:
            header, payload = proof.read_frame(connection, time.monotonic() + _SILENCE)
            text = None if header.kind is Kind.START else payload.decode(errors="replace")
            if header.kind not in (Kind.START, Kind.STATUS):
                raise proof.Refused(text or header.kind.name)
            self.heard(time.monotonic(), text)
            if header.kind is Kind.START:
                return wire.unpack_message(Start, payload)
        raise ConnectionAbortedError("nobody wants it any more")


class Lane:
    """A lane."""

    def __init__(self, address: Address, thread: int = 0) -> None:
        """`address`, `thread`: the reducer's."""
        self.address = address
        self.thread = thread
        self.index = -1
        #: The connection in use, or being made.
        self.connection: Optional[Connection] = None
        #: The connection carries chunks.
        self.running = False
        #: Why there is no connection; None = it was not tried yet.
        self.cause: Optional[str] = None
        #: Since when there is no connection that the reducer has let in.
        self._gone = time.monotonic()
        self._pause = 0.0
        self._due = 0.0

    def __str__(self) -> str:
        return "reducer {}:{}".format(*self.address)

    @property
    def accept(self) -> Optional[Accept]:
        """Set while the reducer has let this worker in, though it may still wait for other ranks."""
        return None if self.connection is None else self.connection.accept

    @property
    def start(self) -> Optional[Start]:
        """Set when all ranks are there."""
        return None if self.connection is None else self.connection.start

    @property
    def status(self) -> Optional[str]:
        """What the reducer last said that it waits for; None = nothing."""
        return None if self.connection is None else self.connection.status

    @property
    def seen(self) -> float:
        """When the reducer last gave a sign of life, or since when there is no connection to it."""
        return self._gone if self.connection is None else max(self._gone, self.connection.seen)

    def heard(self, now: float, status: Optional[str] = None) -> None:
        if self.connection is not None:
            self.connection.heard(now, status)

    def connect(self, dial: Dial, hello: Callable[[Lane], Hello], now: float) -> Optional[float]:
        """Connect if it is time, and return when to call this again (None: on news). Raises ReductionFailed:
        the reducer refuses this worker."""
        connection = self.connection
        if connection is not None and connection.cause:
            if connection.is_refused:
                raise ReductionFailed(f"{self} refuses this worker: {connection.cause}")
            self.lose(connection.cause)
        if self.connection is not None:
            return None
        if self._due > now:
            return self._due
        self.connection = Connection(self.address, dial, hello(self)._replace(lane=self.thread))
        return None

    def use(self) -> Tuple[socket.socket, Start]:
        """Return the socket and START: the connection carries chunks from now on."""
        assert self.connection is not None and self.connection.socket is not None
        assert self.start is not None
        self.running = True
        self._pause = 0.0
        return self.connection.socket, self.start

    def lose(self, cause: str) -> None:
        """Close a connection that is of no use any more, and connect again soon."""
        gone = self._gone if self.accept is None else time.monotonic()
        self.close()
        self.cause, self._gone = cause, gone
        self._due = time.monotonic() + self._pause * random.uniform(0.5, 1.0)
        self._pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * self._pause))

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self.connection is not None:
            self.connection.close()
        self.connection = None
        self.running = False
        self._gone = time.monotonic()

    def complaint(self) -> str:
        """Return why the lane does not run, for people."""
        if self.accept is not None:
            return f"{self}: {self.status or 'it has not said yet whom it waits for'}"
        return f"no connection to {self}: {self.cause or 'it does not answer'}"


def connect_due(
    lanes: Iterable[Lane], dial: Dial, hello: Callable[[Lane], Hello], now: float
) -> float:
    """Connect every lane whose time has come, and return when the next one's does (infinity: never)."""
    dues = [lane.connect(dial, hello, now) for lane in lanes]
    return min((due for due in dues if due is not None), default=float("inf"))
