"""A lane's connection over time: when it is tried again, who is missing, and since when the reducer is gone.

Only the communicator's thread uses these; attempts leave their news in its `Inbox`.
"""

from __future__ import annotations

import queue
import random
import socket
import ssl
import time
from typing import Callable, Iterable, List, NamedTuple, Optional, Tuple

from trainshed_reduction.client.connection_attempts import (
    Address,
    Admitted,
    Attempt,
    Failed,
    News,
    Started,
    Target,
    Waiting,
)
from trainshed_reduction.client.port import ReductionFailed
from trainshed_reduction.wire import Accept, Hello, Start

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.5


class Dial(NamedTuple):
    """What every lane of a rank connects with."""

    token: bytes
    tls: Optional[ssl.SSLContext]


class Inbox:
    """News of attempts. `wake`: called in their threads after each."""

    def __init__(self) -> None:
        self._queue: "queue.SimpleQueue[Tuple[Lane, Attempt, News]]" = queue.SimpleQueue()
        self.wake: Callable[[], None] = lambda: None

    def put(self, lane: "Lane", attempt: Attempt, news: News) -> None:
        self._queue.put((lane, attempt, news))
        self.wake()

    def take(self, seconds: float = 0.0) -> "List[Lane]":
        """Handles what has come, waiting so long for the first; gives the lanes concerned. Raises
        ReductionFailed."""
        lanes: List[Lane] = []
        try:
            while True:
                wait = seconds if not lanes and seconds > 0 else None
                item = self._queue.get(wait is not None, wait)
                if item[0].take(item[1], item[2]):
                    lanes.append(item[0])
        except queue.Empty:
            return lanes


class Lane:
    """`host`: which of the reducers, counted as `TRAINSHED_REDUCERS` does, or beyond them a worker's own."""

    def __init__(self, host: int, target: Target, owner: Optional[int] = None) -> None:
        """`owner`: the rank whose own reducer it is; None: one of the pool."""
        self.host = host
        self.owner = owner
        self.target = target
        self.index = -1
        self.accept: Optional[Accept] = None
        self.own = ""
        """This worker's address on the connection."""
        self.connection: Optional[socket.socket] = None
        self.start: Optional[Start] = None
        """Of the connection, not yet taken by `take_over`."""
        self.running = False
        self.dropped = False
        """Lost for good."""
        self.status = ""
        """What the reducer waited for when it last said so."""
        self.cause = ""
        """Why there is no connection."""
        self.is_greeted = False
        """The reducer has let this worker in; there is a connection, or will be when all ranks are there."""
        self.greeted = 0.0
        """When it did so."""
        self.seen = time.monotonic()
        """When the reducer last gave a sign of life."""
        self._attempt: Optional[Attempt] = None
        self._pause = 0.0
        self._due = 0.0

    def __str__(self) -> str:
        whose = "reducer" if self.owner is None else "rank {}'s own reducer".format(self.owner)
        return "{} {}:{}".format(whose, *self.target.guess)

    @property
    def first(self) -> Address:
        return self.target.first

    @property
    def due(self) -> Optional[float]:
        """When to connect; None: not now."""
        if self.dropped or self.connection is not None or self._attempt is not None:
            return None
        return self._due

    def dial(self, dial: Dial, hello: Hello, inbox: Inbox) -> None:
        self._attempt = Attempt(
            self.target,
            dial.token,
            hello,
            dial.tls,
            lambda attempt, news: inbox.put(self, attempt, news),
        )
        self._attempt.begin()

    def take(self, attempt: Attempt, news: News) -> bool:
        """Whether something is new. Raises ReductionFailed: this worker is not wanted any more."""
        if attempt is not self._attempt:
            if isinstance(news, Started):
                news.connection.close()
            return False
        now = time.monotonic()
        if isinstance(news, Failed):
            self._attempt = None
            if news.final:
                raise ReductionFailed("{} refuses this worker: {}".format(self, news.cause))
            if self.is_greeted:
                self.is_greeted, self.seen = False, now
            self._again(news.cause, now)
            return True
        self.seen = now
        if isinstance(news, Admitted):
            self.accept, self.own = news.accept, news.own
            self.target = self.target._replace(guess=news.address)
            self.is_greeted, self.greeted = True, now
            self.status = self.cause = ""
        elif isinstance(news, Waiting):
            self.status = news.text
        else:
            self._attempt = None
            self._pause = 0.0
            self.connection, self.start = news.connection, news.start
            self.status = ""
        return True

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
        self._again(cause, time.monotonic())

    def _again(self, cause: str, now: float) -> None:
        self.cause = cause
        self._due = now + self._pause * random.uniform(0.5, 1.0)
        self._pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * self._pause))

    def close(self) -> None:
        """Nothing is left of connections and attempts."""
        if self._attempt is not None:
            self._attempt.stop()
            self._attempt = None
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


def earliest(lanes: "Iterable[Lane]") -> Optional[float]:
    """When the next lane is to be connected."""
    return min((lane.due for lane in lanes if lane.due is not None), default=None)


def connect_due(
    lanes: "Iterable[Lane]",
    dial: Dial,
    inbox: Inbox,
    hello: "Callable[[Lane], Hello]",
    now: float,
) -> None:
    """Begin an attempt for every lane whose time has come."""
    for lane in lanes:
        due = lane.due
        if due is not None and due <= now:
            lane.dial(dial, hello(lane), inbox)
