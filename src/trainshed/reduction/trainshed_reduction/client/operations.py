"""The queue between callers and the communicator's thread, and an operation under way.

This is all that the threads share.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Callable, Deque, List, NamedTuple, Optional

from trainshed_reduction.client.choice import Pace
from trainshed_reduction.client.port import ReductionFailed
from trainshed_reduction.wire import DType, Reduction

_LOG = logging.getLogger(__name__)


class Operation:
    """An all-reduce under way; made by `Communicator.issue`, finished by its thread. Thread-safe."""

    def __init__(self, number: int) -> None:
        #: As messages have it, and as all ranks must: `wire.Header.ordinal`.
        self.number = number
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._failure: Optional[ReductionFailed] = None
        self._callbacks: List[Callable[[Operation], None]] = []

    def done(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Whether it is done; raises ReductionFailed if it failed."""
        if not self._event.wait(timeout):
            return False
        if self._failure is not None:
            # Where it was found, in a thread of ours, is no news to the program, whose own lines count.
            raise self._failure.with_traceback(None)
        return True

    def on_done(self, callback: "Callable[[Operation], None]") -> None:
        """Call it once when done or failed, in the communicator's thread; at once if it is already."""
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


class QueuedOperation(NamedTuple):
    """An operation, in the order of its number. `view`: of bytes. `pace`: the same on all ranks; None: the
    one before."""

    view: memoryview
    dtype: DType
    reduction: Reduction
    operation: Operation
    pace: Optional[Pace] = None


class OperationQueue:
    """Operations on their way from callers to the communicator's thread."""

    def __init__(self) -> None:
        #: Called after something was handed in, in the caller's thread.
        self.wake: Callable[[], None] = lambda: None
        self.closing = False
        #: Operations that did without the reducers because that was faster.
        self.natively = 0
        self._changed = threading.Condition()
        self._handed: Deque[QueuedOperation] = deque()
        self._issued = 0
        self._open = False
        self._held = False
        self._native_from: Optional[int] = None
        self._native = False
        self._failure: Optional[ReductionFailed] = None
        self._pending: Deque[Operation] = deque()

    # ---- callers

    def await_open(self) -> None:
        """Until the group has come together. Raises ReductionFailed: it has not."""
        with self._changed:
            while not self._open:
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()

    def hand_in(
        self,
        view: memoryview,
        dtype: DType,
        reduction: Reduction,
        ordinal: Optional[int],
        pace: Optional[Pace] = None,
    ) -> Optional[Operation]:
        """None: it is the native backend's. Raises ReductionFailed."""
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._native:
                    return None
                if not self._held or self._issued < (self._native_from or 0):
                    break
                self._changed.wait()
            self._issued += 1
            operation = Operation(self._issued if ordinal is None else ordinal)
            self._handed.append(QueuedOperation(view, dtype, reduction, operation, pace))
            self._pending.append(operation)
            self._changed.notify_all()
        self.wake()
        return operation

    def close(self) -> None:
        self.closing = True
        self.wake()
        with self._changed:
            self._changed.notify_all()

    # ---- the communicator's thread

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def take(self) -> List[QueuedOperation]:
        if not self._handed:
            return []
        with self._changed:
            handed = list(self._handed)
            self._handed.clear()
            while self._pending and self._pending[0].done():
                self._pending.popleft()
        return handed

    def hold(self) -> None:
        """Hand nothing in until `release`: callers wait."""
        with self._changed:
            self._held = True

    def release(self) -> None:
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def await_issued(self, number: int, seconds: float) -> bool:
        """Operations below this number are taken, later ones held. Whether all of them were handed in in
        time."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._native_from = number
            self._changed.notify_all()
            while self._issued < number and not self.closing and time.monotonic() < deadline:
                self._changed.wait(deadline - time.monotonic())
            return self._issued >= number

    def go_native(self) -> None:
        with self._changed:
            self._native = True
            self._changed.notify_all()

    @property
    def is_native(self) -> bool:
        return self._native

    def fail(self, failure: ReductionFailed) -> None:
        """All that is not done fails with it, and so does what is handed in later; the first failure
        stays."""
        with self._changed:
            if self._failure is None:
                self._failure = failure
            self._handed.clear()
            pending = list(self._pending)
            self._pending.clear()
            self._changed.notify_all()
        for operation in pending:
            operation.finish(self._failure)
