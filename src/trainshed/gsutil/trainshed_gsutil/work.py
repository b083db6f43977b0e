"""Many things of one kind done one after the other, or by several threads with -m."""

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
"""So many are looked up before they are done: a listing of millions is never whole in memory."""


class FailureCounter:
    """Says of each failure what it is, where a command goes on after one."""

    def __init__(self, output: "Output") -> None:
        self._output = output
        self._lock = threading.Lock()
        self.count = 0

    def add(self, failure: Exception) -> None:
        """For `failed` of `do_each`, by any thread."""
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
    """Do it with each of the items. `failed`: told of each that fails, and the others go on; None = the first
    that fails ends it, and is raised."""
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
    except Exception as failure:  # Broad: of whatever kind, the others go on.
        if failed is None:
            raise
        failed(failure)
