"""A lane: one worker's connection to one thread of a reducer, over time. When it is tried again, who is
missing, and since when the reducer is gone.

Each attempt to connect runs in a short-lived thread, so that one that does not answer delays no other. What
it finds it leaves in the `Inbox`; all else is done by the communicator's thread.
"""

from __future__ import annotations

import queue
import random
import socket
import ssl
import threading
import time
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Tuple

from trainshed_reduction import proof, sockets, wire
from trainshed_reduction.client.port import ReductionFailed
from trainshed_reduction.settings import Settings
from trainshed_reduction.variables import CA
from trainshed_reduction.wire import Accept, Hello, Kind, Start

Address = Tuple[str, int]

_SILENCE = 10.0
"""Seconds: a reducer that waits for other ranks says so every second."""
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.5
_VANISHED = 20.0
"""Seconds after which a host is gone that takes nothing any more."""


class Dial(NamedTuple):
    """What every lane of a rank connects with. `tls`: None: plain TCP."""

    token: bytes
    tls: Optional[ssl.SSLContext]

    @staticmethod
    def of(settings: Settings) -> Dial:
        """Raises ReductionFailed: the authority that is to be believed cannot be used."""
        if not settings.is_secured:
            return Dial(settings.token, None)
        try:
            return Dial(settings.token, proof.worker_tls(settings.ca_file, settings.ca))
        except OSError as error:
            raise ReductionFailed(
                "the certificate authority of the reducers in {} cannot be used: {}".format(
                    settings.ca_file or CA, error
                )
            ) from error


class Attempt(threading.Thread):
    """Connects once, says HELLO and waits until all ranks have. `tell` is called in this thread, with one of
    `Lane`'s methods for news and what that takes; last with `started` or `failed`."""

    def __init__(
        self, address: Address, dial: Dial, hello: Hello, tell: Callable[..., None]
    ) -> None:
        super().__init__(name="reduction-connect-{}:{}".format(*address), daemon=True)
        self._address = address
        self._dial = dial
        self._hello = hello
        self._tell = tell
        self._connection: Optional[socket.socket] = None
        self._is_stopped = False

    def stop(self) -> None:
        """It soon ends; what it still tells is of no use to anybody."""
        self._is_stopped = True
        connection = self._connection
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        """After it has ended: nobody wants the connection."""
        if self._connection is not None:
            self._connection.close()

    def run(self) -> None:
        cause, is_final = "", False
        try:
            start = self._connect()
        except proof.Refused as error:
            cause, is_final = str(error), True
        except socket.timeout:
            cause = "it does not answer"
        except (OSError, wire.Malformed, ValueError) as error:
            cause = str(error) or type(error).__name__
        else:
            if not self._is_stopped:
                self._tell(self, Lane.started, self._connection, start)
                return
        self.close()
        self._tell(self, Lane.failed, cause, is_final)

    def _connect(self) -> Start:
        """Raises Refused, OSError, Malformed."""
        dial = self._dial
        connection, accept = proof.connect(self._address, dial.token, self._hello, tls=dial.tls)
        self._connection = connection
        sockets.set_options(connection, _VANISHED)
        self._tell(self, Lane.admitted, accept, connection.getsockname()[0])
        while not self._is_stopped:
            header, payload = proof.read_frame(
                connection, time.monotonic() + _SILENCE, wire.MAX_TEXT
            )
            if header.kind is Kind.START:
                return wire.unpack_start(payload)
            text = payload.decode(errors="replace")
            if header.kind is not Kind.STATUS:
                raise proof.Refused(text or header.kind.name)
            self._tell(self, Lane.waits, text)
        raise ConnectionAbortedError("nobody wants it any more")


class Inbox:
    """News of attempts. `wake`: called in their threads after each."""

    def __init__(self) -> None:
        self._queue: "queue.SimpleQueue[Tuple[Lane, Attempt, Callable[..., None], Tuple[Any, ...]]]"
        self._queue = queue.SimpleQueue()
        self.wake: Callable[[], None] = lambda: None

    def put(
        self, lane: Lane, attempt: Attempt, news: Callable[..., None], *details: object
    ) -> None:
        self._queue.put((lane, attempt, news, details))
        self.wake()

    def take(self, seconds: float = 0.0) -> "List[Lane]":
        """Handles what has come, waiting so long for the first; gives the lanes concerned. Raises
        ReductionFailed."""
        lanes: List[Lane] = []
        try:
            while True:
                wait = not lanes and seconds > 0
                lane, attempt, news, details = self._queue.get(wait, seconds if wait else None)
                if lane.attempt is attempt:
                    news(lane, *details)
                    lanes.append(lane)
                elif news is Lane.started:
                    attempt.close()
        except queue.Empty:
            return lanes


class Lane:
    """`host`: which of the reducers, counted as `TRAINSHED_REDUCERS` does, or beyond them a worker's own."""

    def __init__(
        self, host: int, address: Address, thread: int = 0, owner: Optional[int] = None
    ) -> None:
        """`address`, `thread`: the reducer's. `owner`: the rank whose own it is; None: one of the pool."""
        self.host = host
        self.address = address
        self.thread = thread
        self.owner = owner
        self.index = -1
        self.attempt: Optional[Attempt] = None
        self.accept: Optional[Accept] = None
        #: This worker's address on the connection.
        self.own = ""
        self.connection: Optional[socket.socket] = None
        #: Of the connection, not yet taken by `take_over`.
        self.start: Optional[Start] = None
        self.running = False
        #: Lost for good.
        self.dropped = False
        #: What the reducer waited for when it last said so.
        self.status = ""
        #: Why there is no connection.
        self.cause = ""
        #: The reducer has let this worker in; there is a connection, or will be when all ranks are there.
        self.is_greeted = False
        #: When it did so.
        self.greeted = 0.0
        #: When the reducer last gave a sign of life.
        self.seen = time.monotonic()
        self._pause = 0.0
        self._due = 0.0

    def __str__(self) -> str:
        whose = "reducer" if self.owner is None else "rank {}'s own reducer".format(self.owner)
        return "{} {}:{}".format(whose, *self.address)

    @property
    def due(self) -> Optional[float]:
        """When to connect; None: not now."""
        if self.dropped or self.connection is not None or self.attempt is not None:
            return None
        return self._due

    def dial(self, dial: Dial, hello: Hello, inbox: Inbox) -> None:
        def tell(*news: Any) -> None:
            inbox.put(self, *news)

        self.attempt = Attempt(self.address, dial, hello._replace(lane=self.thread), tell)
        self.attempt.start()

    # ---- news of the attempt that is under way

    def admitted(self, accept: Accept, own: str) -> None:
        """The reducer has let this worker in."""
        self.accept, self.own = accept, own
        self.seen = self.greeted = time.monotonic()
        self.is_greeted = True
        self.status = self.cause = ""

    def waits(self, text: str) -> None:
        """For what, in the reducer's words."""
        self.seen, self.status = time.monotonic(), text

    def started(self, connection: socket.socket, start: Start) -> None:
        """All ranks are there."""
        self.attempt = None
        self._pause = 0.0
        self.connection, self.start = connection, start
        self.seen, self.status = time.monotonic(), ""

    def failed(self, cause: str, is_final: bool) -> None:
        """`is_final`: trying again would be of no use. Raises ReductionFailed then."""
        self.attempt = None
        if is_final:
            raise ReductionFailed("{} refuses this worker: {}".format(self, cause))
        if self.is_greeted:
            self.is_greeted, self.seen = False, time.monotonic()
        self._again(cause)

    # ---- the connection

    def take_over(self) -> "Tuple[socket.socket, Start]":
        """The connection is used from now on."""
        assert self.connection is not None and self.start is not None
        start, self.start, self.running = self.start, None, True
        return self.connection, start

    def lose(self, cause: str) -> None:
        """The connection is of no use any more; connect anew soon."""
        self.close()
        self.status = ""
        self.seen = time.monotonic()
        self._again(cause)

    def _again(self, cause: str) -> None:
        self.cause = cause
        self._due = time.monotonic() + self._pause * random.uniform(0.5, 1.0)
        self._pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * self._pause))

    def close(self) -> None:
        """Nothing is left of connections and attempts."""
        if self.attempt is not None:
            self.attempt.stop()
            self.attempt = None
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        self.start = None
        self.is_greeted = self.running = False

    def complaint(self) -> str:
        """Why the lane does not run, for people."""
        if self.is_greeted:
            return "{}: {}".format(self, self.status or "it has not said yet whom it waits for")
        return "no connection to {}: {}".format(self, self.cause or "it does not answer")


def connect_due(
    lanes: "Iterable[Lane]", dial: Dial, inbox: Inbox, hello: "Callable[[Lane], Hello]"
) -> float:
    """Begin an attempt for every lane whose time has come; when the next one's does (infinity: never)."""
    now = time.monotonic()
    dues = [(lane.due, lane) for lane in lanes]
    for due, lane in dues:
        if due is not None and due <= now:
            lane.dial(dial, hello(lane), inbox)
    return min((due for due, _ in dues if due is not None and due > now), default=float("inf"))
