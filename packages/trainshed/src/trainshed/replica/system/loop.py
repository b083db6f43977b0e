"""Provides the shim's event loop: calls handlers at given times and when file descriptors become readable."""

import select
import time
from collections.abc import Callable

READABLE = select.POLLIN


class Loop:
    """An event loop with one handler per file descriptor, and any number of timed handlers. A handler may add
    and remove file descriptors, including its own, and schedule calls."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._moments: list[tuple[float, Callable[[], None]]] = []

    def add(self, handle: int, handler: Callable[[], None], events: int = READABLE) -> None:
        self._handlers[handle] = handler
        self._poll.register(handle, events)

    def drop(self, handle: int) -> None:
        """Stop watching a file descriptor. Call this before closing it, because its number may be reused."""
        if self._handlers.pop(handle, None) is not None:
            self._poll.unregister(handle)

    def clear(self) -> None:
        for handle in list(self._handlers):
            self.drop(handle)
        self._moments = []

    def after(self, seconds: float, handler: Callable[[], None]) -> None:
        """Call `handler` once after this number of seconds."""
        self._moments.append((time.monotonic() + seconds, handler))

    def turn(self, pause: float | None) -> None:
        """Wait up to `pause` milliseconds (None = without limit) for events, then call all due handlers."""
        if self._moments:
            left = min(at for at, _ in self._moments) - time.monotonic()
            # Rounded up, because a wait that is too short would need another turn. `poll` accepts 31 bits.
            wait = max(0, min(int(left * 1000) + 1, 2**31 - 1))
            pause = wait if pause is None else min(pause, wait)
        for handle, _ in self._poll.poll(pause):
            handler = self._handlers.get(handle)
            if handler is not None:
                handler()
        if self._moments:
            now = time.monotonic()
            due = [handler for at, handler in self._moments if at <= now]
            self._moments = [moment for moment in self._moments if moment[0] > now]
            for handler in due:
                handler()
