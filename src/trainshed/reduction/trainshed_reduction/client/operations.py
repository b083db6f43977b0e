"""The queue between callers and the communicator's thread, and an operation under way.

This is all that the threads share.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent import futures
from typing import TYPE_CHECKING, Callable, Deque, List, NamedTuple, Optional

from trainshed_reduction.client.choice import Pace
from trainshed_reduction.client.port import ReductionFailed
from trainshed_reduction.wire import DType, Reduction

if TYPE_CHECKING:
    _Future = futures.Future[None]
else:
    _Future = futures.Future  # Python 3.8 has no parameters for it.


class Operation(_Future):
    """An all-reduce under way; made by `Communicator.issue`, finished by its thread, in which its callbacks
    are called."""

    def __init__(self, number: int) -> None:
        super().__init__()
        #: As messages have it, and as all ranks must: `wire.Header.ordinal`.
        self.number = number

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Whether it is done; raises ReductionFailed if it failed."""
        try:
            failure = self.exception(timeout)
        except futures.TimeoutError:
            return False
        if failure is not None:
            # Where it was found, in a thread of ours, is no news to the program, whose own lines count.
            raise failure.with_traceback(None)
        return True

    def finish(self, failure: Optional[ReductionFailed] = None) -> None:
        """Let everyone go on; what comes after the first time changes nothing."""
        if self.done():
            return
        if failure is None:
            self.set_result(None)
        else:
            self.set_exception(failure)


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
