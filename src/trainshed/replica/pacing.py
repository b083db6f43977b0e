"""When a file that changes is looked at: at once, but for a rest after each look. Runs on Python 3.6."""

import time

from trainshed.replica import loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable


class Pacing:
    """`look`: called when it is time, once for however many changes came meanwhile."""

    __slots__ = ("_events", "_look", "_rest_until", "_waiting")

    def __init__(self, events: loop.Loop, look: "Callable[[], None]") -> None:
        self._events = events
        self._look = look
        self._rest_until = 0.0
        self._waiting = False

    def changed(self) -> None:
        """There may be something new."""
        if not self._waiting:
            pause = self._rest_until - time.monotonic()
            if pause > 0:
                self.look_after(pause)
            else:
                self._look()

    def look_after(self, pause: float) -> None:
        """Look in so many seconds, whatever happens before."""
        self._waiting = True
        self._events.after(pause, self._wake)

    def rest(self, seconds: float) -> None:
        """From now on; what changes meanwhile is looked at afterwards."""
        self._rest_until = time.monotonic() + seconds

    def _wake(self) -> None:
        self._waiting = False
        self._look()
