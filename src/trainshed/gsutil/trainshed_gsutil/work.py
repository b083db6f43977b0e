"""Applies a function to many items, one after the other, or with -m in several threads."""

import concurrent.futures
import threading

from trainshed_gsutil.errors import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterable, TypeVar

    from trainshed_gsutil.output import Output

    T = TypeVar("T")

_THREADS = 8
_AHEAD = 64
"""Items that are taken ahead of the work: a listing of millions is never whole in memory."""


class FailureCounter:
    """Prints and counts failures, for commands that go on after one."""

    def __init__(self, output: "Output") -> None:
        self._output = output
        self._lock = threading.Lock()
        self.count = 0

    def add(self, failure: Exception) -> None:
        """Print and count a failure. Any thread may call it."""
        with self._lock:
            self.count += 1
        name = failure.name if isinstance(failure, Failure) else type(failure).__name__
        self._output.error("%s: %s" % (name, failure))


def do_each(
    items: "Iterable[T]",
    do: "Callable[[T], None]",
    *,
    parallel: bool,
    failed: "Callable[[Exception], None] | None" = None,
) -> None:
    """Call `do` with each item. `failed` is called with each failure, and the others go on; None = the first
    failure ends the work, and is raised."""
    if not parallel:
        for item in items:
            _try(do, item, failed)
        return
    room = threading.BoundedSemaphore(_AHEAD)
    faults: "list[BaseException]" = []

    def ended(done: "concurrent.futures.Future[None]") -> None:
        room.release()
        fault = done.exception()
        if fault is not None:
            faults.append(fault)

    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        for item in items:
            room.acquire()
            if faults:
                break
            pool.submit(_try, do, item, failed).add_done_callback(ended)
    if faults:
        raise faults[0]


def _try(
    do: "Callable[[T], None]", item: "T", failed: "Callable[[Exception], None] | None"
) -> None:
    try:
        do(item)
    except Exception as failure:  # Whatever an item's failure is, the others go on.
        if failed is None:
            raise
        failed(failure)
