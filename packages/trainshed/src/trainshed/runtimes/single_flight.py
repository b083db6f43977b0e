"""Runs one build for each key, regardless of how many callers wait for it. Each caller receives the progress
from the start of its wait."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from trainshed.eventloop.background import wait_shielded
from trainshed.runtimes.port import Progress
from trainshed.runtimes.stop import Stop

T = TypeVar("T")

Build = Callable[[Progress, Stop], T]
"""A function that builds. It blocks, and runs in a thread."""


class SingleFlight(Generic[T]):
    """Runs builds in threads, at most one for each key at a time."""

    def __init__(self, workers: ThreadPoolExecutor, *, abandons: bool = False) -> None:
        """`abandons`: whether to stop a build for which no caller waits any longer."""
        self._workers = workers
        self._abandons = abandons
        self._flights: dict[str, _Flight[T]] = {}
        self._lock = threading.RLock()

    async def run(self, key: str, build: Build[T], listener: Progress | None) -> T:
        """Wait for the running build of that key, or start one. Return its result or raise its error. The
        cancellation of a caller does not stop a build for which other callers wait."""
        flight = self._join(key, build, listener)
        flight.callers += 1
        built = asyncio.wrap_future(flight.future)
        try:
            return await wait_shielded(built)
        except asyncio.CancelledError:
            if self._abandons and flight.callers == 1:
                self._finish(key, flight)
                flight.stop.request()
            raise
        finally:
            flight.callers -= 1
            if listener is not None:
                flight.remove_listener(listener)

    def count_others(self, key: str) -> int:
        """Return the number of running and queued builds of other keys."""
        with self._lock:
            return sum(other != key for other in self._flights)

    def _join(self, key: str, build: Build[T], listener: Progress | None) -> "_Flight[T]":
        with self._lock:
            flight = self._flights.get(key)
            is_new = flight is None
            if flight is None:
                flight = self._flights[key] = _Flight[T]()
            if listener is not None:
                # Add the listener before the build starts, so that no line is lost.
                flight.add_listener(listener)
            if is_new:
                flight.future = self._workers.submit(build, flight.tell, flight.stop)
                flight.future.add_done_callback(lambda _: self._finish(key, flight))
            return flight

    def _finish(self, key: str, flight: "_Flight[T]") -> None:
        with self._lock:
            if self._flights.get(key) is flight:
                del self._flights[key]


class _Flight(Generic[T]):
    """A running build and its listeners."""

    future: Future[T]

    def __init__(self) -> None:
        self.stop = Stop()
        #: Number of callers that wait for the build; changed only on the event loop.
        self.callers = 0
        self._last = ""
        self._listeners: list[Progress] = []
        self._lock = threading.Lock()

    def add_listener(self, listener: Progress) -> None:
        with self._lock:
            self._listeners.append(listener)
            last = self._last
        if last:
            listener(f"It is already being built. Its last line: {last}")

    def remove_listener(self, listener: Progress) -> None:
        with self._lock:
            self._listeners.remove(listener)

    def tell(self, line: str) -> None:
        """Pass a line to all listeners. Called in the build's thread."""
        with self._lock:
            self._last = line
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener(line)
