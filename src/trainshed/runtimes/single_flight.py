"""One build for each key, however many callers wait for it: each hears what is said from then on."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from trainshed.runtimes.port import Progress
from trainshed.runtimes.stop import Stop

T = TypeVar("T")

Build = Callable[[Progress, Stop], T]
"""Blocks; called in a thread."""


class SingleFlight(Generic[T]):
    """Builds under way, by key, each in a thread."""

    def __init__(self, workers: ThreadPoolExecutor, *, abandons: bool = False) -> None:
        """`abandons`: a build for which nobody waits any more is stopped."""
        self._workers = workers
        self._abandons = abandons
        self._flights: dict[str, _Flight[T]] = {}
        self._lock = threading.RLock()

    async def run(self, key: str, build: Build[T], hear: Progress | None) -> T:
        """What the build of that key that is under way comes to, or a new one. A cancelled caller stops no
        build that others wait for."""
        flight = self._join(key, build, hear)
        flight.callers += 1
        built = asyncio.wrap_future(flight.future)
        built.add_done_callback(looked_at)
        try:
            return await asyncio.shield(built)
        except asyncio.CancelledError:
            if self._abandons and flight.callers == 1:
                self._finish(key, flight)
                flight.stop.ask()
            raise
        finally:
            flight.callers -= 1
            if hear is not None:
                flight.remove_listener(hear)

    def others(self, key: str) -> int:
        """How many builds of other keys are under way or wait for their turn."""
        with self._lock:
            return sum(other != key for other in self._flights)

    def _join(self, key: str, build: Build[T], hear: Progress | None) -> "_Flight[T]":
        with self._lock:
            flight = self._flights.get(key)
            is_new = flight is None
            if flight is None:
                flight = self._flights[key] = _Flight[T]()
            if hear is not None:
                # Before it begins: its first words count as well.
                flight.add_listener(hear)
            if is_new:
                flight.future = self._workers.submit(build, flight.tell, flight.stop)
                flight.future.add_done_callback(lambda _: self._finish(key, flight))
            return flight

    def _finish(self, key: str, flight: "_Flight[T]") -> None:
        with self._lock:
            if self._flights.get(key) is flight:
                del self._flights[key]


def looked_at(done: asyncio.Future[T]) -> None:
    """Take notice of a failure, so that the event loop does not complain that nobody did."""
    if not done.cancelled():
        done.exception()


class _Flight(Generic[T]):
    """A build under way and who listens to it."""

    future: Future[T]

    def __init__(self) -> None:
        self.stop = Stop()
        #: How many wait for it; changed on the event loop alone.
        self.callers = 0
        self._last = ""
        self._listeners: list[Progress] = []
        self._lock = threading.Lock()

    def add_listener(self, hear: Progress) -> None:
        with self._lock:
            self._listeners.append(hear)
            last = self._last
        if last:
            hear(f"It is being built already; the last that was said: {last}")

    def remove_listener(self, hear: Progress) -> None:
        with self._lock:
            self._listeners.remove(hear)

    def tell(self, line: str) -> None:
        """From the build's thread."""
        with self._lock:
            self._last = line
            listeners = tuple(self._listeners)
        for hear in listeners:
            hear(line)
