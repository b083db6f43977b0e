"""An all-reduce under way, as the thread that waits for it and the one that finishes it share it."""

from __future__ import annotations

import logging
import threading
from typing import Callable, List, Optional

from trainshed_reduction.client.port import Operation, ReductionFailed

_LOG = logging.getLogger(__name__)


class Pending(Operation):
    """See `port.Operation`. `finish` is called once, by the communicator's thread."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._failure: Optional[ReductionFailed] = None
        self._callbacks: List[Callable[[Operation], None]] = []

    def done(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: Optional[float] = None) -> bool:
        if not self._event.wait(timeout):
            return False
        if self._failure is not None:
            # Where it was found, in a thread of ours, is no news to the program, whose own lines count.
            raise self._failure.with_traceback(None)
        return True

    def on_done(self, callback: "Callable[[Operation], None]") -> None:
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def failure(self) -> Optional[ReductionFailed]:
        return self._failure

    def finish(self, failure: Optional[ReductionFailed] = None) -> None:
        """Let everyone go on. The callbacks' exceptions are theirs: the next is called all the same."""
        with self._lock:
            if self._event.is_set():
                return
            self._failure = failure
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:  # One caller's mistake must not stop the others' operations.
                _LOG.exception("a callback of operation %d failed", self.number)
