"""A lane connects a worker to one thread of a reducer. If its connection breaks, the lane connects again. It
also records which ranks are missing, and how long the reducer has been lost."""

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

_KEEPALIVE_TIMEOUT = 10.0
"""Seconds without a frame after which a reducer that waits for ranks counts as lost. A waiting reducer sends
its status every second."""
_FIRST_INTERVAL = 0.01
_MAX_INTERVAL = 0.5
_STALL_TIMEOUT = 20.0
"""Seconds after which a host that accepts no data counts as lost."""


class Dial:
    """The parameters that all connections of a rank share."""

    def __init__(self, settings: Settings, wake: Callable[[], None]) -> None:
        self.token = settings.token
        #: Called, in any thread, when the state of a connection has changed.
        self.wake = wake


class Connection:
    """One connection of a lane (the link to one thread of a reducer). It includes the attempt to connect.

    Each connection has a thread, so that an unresponsive reducer does not delay other lanes. The thread
    connects, sends HELLO, waits until all ranks are connected, and stores the results in fields, which the
    communicator's thread reads.
    """

    def __init__(self, address: Address, dial: Dial, hello: Hello) -> None:
        #: The reducer's ACCEPT; None until the reducer has accepted this worker.
        self.accept: Optional[Accept] = None
        #: The time at which the reducer accepted this worker.
        self.greeted = 0.0
        #: The time at which the reducer's last frame arrived.
        self.last_frame_time = 0.0
        #: The last status that a waiting reducer has sent; None = it has sent none, or does not wait.
        self.status: Optional[str] = None
        #: The reducer's START; None until all ranks are connected. From then on, only the communicator's
        #: thread uses the socket.
        self.start: Optional[Start] = None
        self.socket: Optional[socket.socket] = None
        #: Why the connection failed; None = it has not failed. It is set after all other fields.
        self.cause: Optional[str] = None
        #: Whether the reducer has rejected this worker. Another attempt would then be useless.
        self.is_refused = False
        self._address = address
        self._dial = dial
        self._hello = hello
        self._is_closed = False
        name = "reduction-connect-{}:{}".format(*address)
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def record_frame(self, now: float, status: Optional[str] = None) -> None:
        self.last_frame_time, self.status = now, status

    def close(self) -> None:
        """End the connection. Later results of its thread are ignored."""
        self._is_closed = True
        connection = self.socket
        if connection is not None and (self.start is not None or self.cause):
            connection.close()
        elif connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # ---- executed by the connection's thread

    def _run(self) -> None:
        try:
            self.start = self._connect()
        except proof.WorkerRejected as error:
            self.is_refused, self.cause = True, str(error) or "the reducer sent no reason"
        except socket.timeout:
            self.cause = "it does not respond"
        except (OSError, wire.Malformed, ValueError) as error:
            self.cause = str(error) or type(error).__name__
        if self.socket is not None and (self._is_closed or self.start is None):
            self.socket.close()
        self._dial.wake()

    def _connect(self) -> Start:
        """Connect, and wait until all ranks are connected. Raises WorkerRejected if the reducer rejects this
        worker, Malformed if a frame is invalid, and OSError if the connection fails."""
        dial = self._dial
        connection, accept = proof.connect(self._address, dial.token, self._hello)
        self.socket = connection
        sockets.set_options(connection, _STALL_TIMEOUT)
        self.greeted = self.last_frame_time = time.monotonic()
        self.accept = accept
        dial.wake()
        while not self._is_closed:
            header, payload = proof.read_frame(connection, time.monotonic() + _KEEPALIVE_TIMEOUT)
            text = None if header.kind is Kind.START else payload.decode(errors="replace")
            if header.kind not in (Kind.START, Kind.STATUS):
                raise proof.WorkerRejected(text or header.kind.name)
            self.record_frame(time.monotonic(), text)
            if header.kind is Kind.START:
                return wire.unpack_message(Start, payload)
        raise ConnectionAbortedError("this worker closed its connection to the reducer")


class Lane:
    """The successive connections of a worker to one thread of a reducer."""

    def __init__(self, address: Address, thread: int = 0) -> None:
        """`address`: the address of the reducer. `thread`: index of the thread within the reducer."""
        self.address = address
        self.thread = thread
        self.index = -1
        #: The current connection, or the current attempt to connect; None = neither.
        self.connection: Optional[Connection] = None
        #: Whether chunks are transferred on the current connection.
        self.running = False
        #: Why the last connection was lost or failed; None before the first attempt.
        self.cause: Optional[str] = None
        #: The time at which the last accepted connection was lost. Before that, the time at which the lane
        #: (connection to a reducer's thread) was created.
        self._gone = time.monotonic()
        self._interval = 0.0
        self._due = 0.0

    def __str__(self) -> str:
        return "reducer {}:{}".format(*self.address)

    @property
    def accept(self) -> Optional[Accept]:
        """The reducer's ACCEPT; None = the reducer has not accepted this worker on the current connection.
        After ACCEPT, the reducer may still wait for other ranks."""
        return None if self.connection is None else self.connection.accept

    @property
    def start(self) -> Optional[Start]:
        """The reducer's START; None until all ranks are connected."""
        return None if self.connection is None else self.connection.start

    @property
    def status(self) -> Optional[str]:
        """The last status that a waiting reducer has sent; None = it has sent none, or does not wait."""
        return None if self.connection is None else self.connection.status

    @property
    def last_frame_time(self) -> float:
        """The time of the reducer's last frame, or the time at which the connection was lost if that is
        later."""
        return self._gone if self.connection is None else max(self._gone, self.connection.last_frame_time)

    def record_frame(self, now: float, status: Optional[str] = None) -> None:
        if self.connection is not None:
            self.connection.record_frame(now, status)

    def connect(self, dial: Dial, hello: Callable[[Lane], Hello], now: float) -> Optional[float]:
        """Start to connect if an attempt is due. Return the time at which the next attempt is due, or None if
        no time is known before the connection changes. Raises ReductionFailed if the reducer has rejected
        this worker."""
        connection = self.connection
        if connection is not None and connection.cause:
            if connection.is_refused:
                raise ReductionFailed(f"{self} rejects this worker: {connection.cause}")
            self.lose(connection.cause)
        if self.connection is not None:
            return None
        if self._due > now:
            return self._due
        self.connection = Connection(self.address, dial, hello(self)._replace(lane=self.thread))
        return None

    def start_transfer(self) -> Tuple[socket.socket, Start]:
        """Start to transfer chunks on the connection. Return its socket and the reducer's START."""
        assert self.connection is not None and self.connection.socket is not None
        assert self.start is not None
        self.running = True
        self._interval = 0.0
        return self.connection.socket, self.start

    def lose(self, cause: str) -> None:
        """Close the connection, which has failed, and schedule another attempt. `cause`: why it failed."""
        gone = self._gone if self.accept is None else time.monotonic()
        self.close()
        self.cause, self._gone = cause, gone
        self._due = time.monotonic() + self._interval * random.uniform(0.5, 1.0)
        self._interval = min(_MAX_INTERVAL, max(_FIRST_INTERVAL, 2 * self._interval))

    def close(self) -> None:
        """Close the current connection, if there is one."""
        if self.connection is not None:
            self.connection.close()
        self.connection = None
        self.running = False
        self._gone = time.monotonic()

    def complaint(self) -> str:
        """Return a message about why the lane has no running connection to its reducer."""
        if self.accept is not None:
            return f"{self}: {self.status or 'it has not reported the missing ranks yet'}"
        return f"no connection to {self}: {self.cause or 'it does not respond'}"


def connect_due(lanes: Iterable[Lane], dial: Dial, hello: Callable[[Lane], Hello], now: float) -> float:
    """Start a connection to a reducer for each lane whose next attempt to connect is due. Return the time at
    which the next attempt of any lane is due (infinity = none)."""
    dues = [lane.connect(dial, hello, now) for lane in lanes]
    return min((due for due in dues if due is not None), default=float("inf"))
