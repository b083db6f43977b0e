"""The shim's event loop: handles that become readable, and what is called then. Runs on Python 3.6."""

import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

READABLE = select.POLLIN
URGENT = select.POLLPRI


class Loop:
    """One handler per file handle. A handler may add and drop handles, its own included."""

    __slots__ = ("_handlers", "_poll")

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: "dict[int, Callable[[], None]]" = {}

    def add(self, handle: int, handler: "Callable[[], None]", events: int = READABLE) -> None:
        self._handlers[handle] = handler
        self._poll.register(handle, events)

    def drop(self, handle: int) -> None:
        """To be called before the handle is closed: its number may be another's next."""
        if self._handlers.pop(handle, None) is not None:
            self._poll.unregister(handle)

    def turn(self, pause: "float | None") -> None:
        """Wait at most `pause` milliseconds (None: as long as it takes) and call whom it concerns."""
        for handle, _ in self._poll.poll(pause):
            handler = self._handlers.get(handle)
            if handler is not None:
                handler()
