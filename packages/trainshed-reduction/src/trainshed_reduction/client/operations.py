"""The queue of operations between callers and the communicator's thread. Callers and this thread share no
other data."""

from __future__ import annotations

import threading
from collections import deque
from concurrent import futures
from typing import TYPE_CHECKING, Callable, Deque, Iterator, NamedTuple, Optional, Sequence

from trainshed_reduction.wire import DType, Reduction

if TYPE_CHECKING:
    _Future = futures.Future[None]
else:
    # At run time, use the plain class, because Future is not generic in Python 3.8.
    _Future = futures.Future


class ReductionFailed(RuntimeError):
    """An all-reduce cannot finish. The message contains the cause (a rank or reducer) and a remedy."""


class Operation(_Future):
    """An all-reduce that was issued (`Communicator.issue`). The communicator's thread finishes it and calls
    its callbacks."""

    def __init__(self, number: int) -> None:
        super().__init__()
        #: Number of the operation in messages to users. It is the same on all ranks (`wire.Header.ordinal`).
        self.number = number

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Wait until the operation is done or `timeout` seconds have passed. Return whether it is done.
        Raises ReductionFailed if it failed."""
        try:
            failure = self.exception(timeout)
        except futures.TimeoutError:
            return False
        if failure is not None:
            # Omit the traceback, because it is about the internal thread and does not help the author of the
            # program.
            raise failure.with_traceback(None)
        return True

    def finish(self, failure: Optional[ReductionFailed] = None) -> None:
        """Finish the operation: it failed with `failure`, or succeeded if that is None. Further calls have no
        effect."""
        if self.done():
            return
        if failure is None:
            self.set_result(None)
        else:
            self.set_exception(failure)


class QueuedOperation(NamedTuple):
    """An operation in the queue. `view`: the bytes to reduce."""

    view: memoryview
    dtype: DType
    reduction: Reduction
    operation: Operation


class OperationQueue:
    """Passes operations from callers to the communicator's thread."""

    def __init__(self) -> None:
        #: Called in the caller's thread after an operation was queued.
        self.wake: Callable[[], None] = lambda: None
        self.closing = False
        self._changed = threading.Condition()
        self._handed: Deque[QueuedOperation] = deque()
        self._issued = 0
        self._open = False
        self._failure: Optional[ReductionFailed] = None

    # ---- called in the threads of callers

    def await_open(self) -> None:
        """Wait until the group is formed. Raises ReductionFailed if it cannot be formed."""
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._failure is not None)
            if not self._open and self._failure is not None:
                raise self._failure

    def queue(
        self, view: memoryview, dtype: DType, reduction: Reduction, ordinal: Optional[int]
    ) -> Operation:
        """Add an operation to the queue. Raises ReductionFailed if the group has failed."""
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

    # ---- called in the communicator's thread

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def drain(self) -> Iterator[QueuedOperation]:
        """Yield the operations in order. An operation is removed only when the caller requests the next
        operation, so that `fail` still finds the current operation."""
        while self._handed:
            yield self._handed[0]
            self._handed.popleft()

    def fail(self, failure: ReductionFailed, taken: Sequence[Operation] = ()) -> None:
        """Fail all queued operations and the operations in `taken`, and reject all later operations. Further
        calls do not replace the first failure."""
        with self._changed:
            self._failure = self._failure or failure
            pending = [*taken, *(handed.operation for handed in self._handed)]
            self._handed.clear()
            self._changed.notify_all()
        for operation in pending:
            operation.finish(self._failure)
