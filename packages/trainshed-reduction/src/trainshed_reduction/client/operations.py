"""The queue between callers and the communicator's thread, and an operation under way.

This is all that the threads share.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent import futures
from typing import TYPE_CHECKING, Callable, Deque, Iterator, NamedTuple, Optional, Sequence

from trainshed_reduction.wire import DType, Reduction

if TYPE_CHECKING:
    _Future = futures.Future[None]
else:
    _Future = futures.Future  # Python 3.8 has no parameters for it.


class ReductionFailed(RuntimeError):
    """An all-reduce cannot be finished; the text says which rank or reducer is to blame, and what to do."""


class Operation(_Future):
    """An all-reduce under way; made by `Communicator.issue`, finished by the communicator's thread, which
    calls its callbacks."""

    def __init__(self, number: int) -> None:
        super().__init__()
        #: Its number in messages, the same on all ranks: `wire.Header.ordinal`.
        self.number = number

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Wait, and return whether it is done. Raises ReductionFailed if it failed."""
        try:
            failure = self.exception(timeout)
        except futures.TimeoutError:
            return False
        if failure is not None:
            # The traceback of a thread of ours tells the program nothing: its own lines count.
            raise failure.with_traceback(None)
        return True

    def finish(self, failure: Optional[ReductionFailed] = None) -> None:
        """End it, so that everyone goes on; later calls change nothing."""
        if self.done():
            return
        if failure is None:
            self.set_result(None)
        else:
            self.set_exception(failure)


class QueuedOperation(NamedTuple):
    """An operation that was handed in. `view`: its bytes."""

    view: memoryview
    dtype: DType
    reduction: Reduction
    operation: Operation


class OperationQueue:
    """Operations on their way from callers to the communicator's thread."""

    def __init__(self) -> None:
        #: Called after something was handed in, in the caller's thread.
        self.wake: Callable[[], None] = lambda: None
        self.closing = False
        self._changed = threading.Condition()
        self._handed: Deque[QueuedOperation] = deque()
        self._issued = 0
        self._open = False
        self._failure: Optional[ReductionFailed] = None

    # ---- callers

    def await_open(self) -> None:
        """Wait until the group has formed. Raises ReductionFailed: it has not."""
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._failure is not None)
            if not self._open and self._failure is not None:
                raise self._failure

    def hand_in(
        self, view: memoryview, dtype: DType, reduction: Reduction, ordinal: Optional[int]
    ) -> Operation:
        """Queue an operation. Raises ReductionFailed."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._issued += 1
            operation = Operation(self._issued if ordinal is None else ordinal)
            self._handed.append(QueuedOperation(view, dtype, reduction, operation))
        self.wake()
        return operation

    def close(self) -> None:
        self.closing = True
        self.wake()

    # ---- the communicator's thread

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def take(self) -> Iterator[QueuedOperation]:
        """Yield one after the other; each leaves the queue afterwards, so that `fail` still finds it."""
        while self._handed:
            yield self._handed[0]
            self._handed.popleft()

    def fail(self, failure: ReductionFailed, taken: Sequence[Operation] = ()) -> None:
        """Fail all operations that are not done, `taken` or queued, and all that come later; the first
        failure stays."""
        with self._changed:
            self._failure = self._failure or failure
            pending = [*taken, *(handed.operation for handed in self._handed)]
            self._handed.clear()
            self._changed.notify_all()
        for operation in pending:
            operation.finish(self._failure)
