"""The queue of operations between callers and the communicator's thread. The threads share nothing else."""

from __future__ import annotations

import threading
from collections import deque
from concurrent import futures
from typing import TYPE_CHECKING, Callable, Deque, Iterator, NamedTuple, Optional, Sequence

from trainshed_reduction.wire import DType, Reduction

if TYPE_CHECKING:
    _Future = futures.Future[None]
else:
    _Future = futures.Future  # Future is not generic in Python 3.8.


class ReductionFailed(RuntimeError):
    """An all-reduce cannot finish. The message contains the responsible rank or reducer, and a remedy."""


class Operation(_Future):
    """A running all-reduce. `Communicator.issue` creates it. The communicator's thread finishes it and calls
    its callbacks."""

    def __init__(self, number: int) -> None:
        super().__init__()
        #: Number of the operation in messages. It is the same on all ranks (`wire.Header.ordinal`).
        self.number = number

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Wait, and return whether the operation is done. Raises ReductionFailed if it failed."""
        try:
            failure = self.exception(timeout)
        except futures.TimeoutError:
            return False
        if failure is not None:
            # Omit the traceback of the internal thread, which does not help the program's author.
            raise failure.with_traceback(None)
        return True

    def finish(self, failure: Optional[ReductionFailed] = None) -> None:
        """Finish the operation. Further calls have no effect."""
        if self.done():
            return
        if failure is None:
            self.set_result(None)
        else:
            self.set_exception(failure)


class QueuedOperation(NamedTuple):
    """A queued operation. `view`: the bytes to reduce."""

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

    # ---- callers

    def await_open(self) -> None:
        """Wait until the group has formed. Raises ReductionFailed if the formation fails."""
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._failure is not None)
            if not self._open and self._failure is not None:
                raise self._failure

    def queue(
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

    def drain(self) -> Iterator[QueuedOperation]:
        """Yield the operations in order. An operation stays queued until the caller requests the next one, so
        that `fail` finds it."""
        while self._handed:
            yield self._handed[0]
            self._handed.popleft()

    def fail(self, failure: ReductionFailed, taken: Sequence[Operation] = ()) -> None:
        """Fail all unfinished operations (`taken` or queued) and all later ones. Further calls do not change
        the failure."""
        with self._changed:
            self._failure = self._failure or failure
            pending = [*taken, *(handed.operation for handed in self._handed)]
            self._handed.clear()
            self._changed.notify_all()
        for operation in pending:
            operation.finish(self._failure)
