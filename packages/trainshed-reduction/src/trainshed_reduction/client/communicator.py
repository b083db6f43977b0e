"""The interface between a worker's program and its reducers. Callers issue operations (all-reduces). A thread
forms the group of ranks, and moves the data until the group ends or fails."""

from __future__ import annotations

import logging
import threading
from typing import Callable, Optional

from trainshed_reduction import proof
from trainshed_reduction.client.formation import Formation, Membership
from trainshed_reduction.client.operations import Operation, OperationQueue, ReductionFailed
from trainshed_reduction.client.running_group import RunningGroup
from trainshed_reduction.process import Reports
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import DType, Hello, Reduction

_LOG = logging.getLogger(__name__)


def _discard(_: str) -> None:
    pass


class Communicator:
    """Connects a rank to the reducers of its group. Call `start` once, `issue` any number of times, and then
    `close`."""

    def __init__(
        self,
        settings: Settings,
        *,
        group: str,
        rank: int,
        world: int,
        generation: int,
        reports: Optional[Reports] = None,
        log: Callable[[str], None] = _discard,
    ) -> None:
        """`group`: a name that is unique in the job and the same on all ranks. `generation`: the same on all
        ranks, and greater than the generations of earlier groups with this name. For the other parameters,
        see `Membership`."""
        self._operations = operations = OperationQueue()
        hello = Hello(proof.group_digest(group), generation, rank, world)
        self._membership = Membership(settings, operations, hello, reports, log)
        self._formation: Optional[Formation] = None
        self._running: Optional[RunningGroup] = None
        self._thread = threading.Thread(target=self._run, name=f"reduction-{group}", daemon=True)

    def start(self) -> None:
        """Connect to all reducers, and wait until all ranks are connected. Blocks for up to
        `settings.start_seconds`.

        On failure, closes the communicator and raises ReductionFailed. The message lists the missing reducers
        or ranks. The outcome may differ between ranks, so callers must agree on it.
        """
        self._thread.start()
        self._operations.await_open()

    def issue(
        self, data: memoryview, dtype: DType, reduction: Reduction, ordinal: Optional[int] = None
    ) -> Operation:
        """Start an all-reduce in place. Thread-safe; does not block.

        Every rank must issue the same operations in the same order.

        Args:
            data: Writable, contiguous memory of whole elements, not empty. Do not access it until the
                operation is done.
            dtype: The element type.
            reduction: SUM or AVERAGE.
            ordinal: The number of the operation in messages. By default, operations are counted from 1.

        Raises:
            ReductionFailed: The group has failed.
            ValueError: `data` is unsuitable, or the caller requests the AVERAGE of integers.
        """
        view = memoryview(data)
        size = view.nbytes
        if view.readonly or not view.c_contiguous or not size or size % dtype.itemsize:
            raise ValueError(
                f"an all-reduce needs writable, contiguous memory of whole {dtype.name} elements"
            )
        if reduction is Reduction.AVERAGE and dtype.is_integer:
            raise ValueError(
                f"an all-reduce of {dtype.name} elements supports SUM, not AVERAGE, because they are integers"
            )
        return self._operations.queue(view.cast("B"), dtype, reduction, ordinal)

    def close(self) -> None:
        """Leave the group. Unfinished operations fail. Blocks until the thread has ended. Before that, the
        thread sends the data that other ranks may still need. Further calls have no effect."""
        self._operations.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def describe(self) -> str:
        """Return one line with the number of reducers and the maximum speed-up. Call this after `start`."""
        assert self._formation is not None
        return self._formation.describe()

    # ---- executed by the communicator's thread

    def _run(self) -> None:
        try:
            self._formation = Formation(self._membership)
            self._serve(self._formation)
        except ReductionFailed as failure:
            self._fail(failure)
        except Exception as error:
            _LOG.exception("the client of the reducers failed")
            self._fail(ReductionFailed(f"the client of the reducers failed: {error!r}"))
        finally:
            if self._running is not None:
                self._running.close()
            if self._formation is not None:
                self._formation.close()
            self._end(ReductionFailed("the group was closed before the operation finished"))

    def _serve(self, formation: Formation) -> None:
        formation.form()
        running = self._running = RunningGroup(self._membership, formation)
        running.start()
        self._operations.open()
        if self._membership.reports is not None:
            self._membership.reports.announce()
        while not self._operations.closing:
            running.run_once()
        running.leave()

    def _fail(self, failure: ReductionFailed) -> None:
        if self._running is not None:
            self._running.report_failure(str(failure))
        if not self._operations.closing:
            self._membership.log(f"reduction failed: {failure}")
        self._end(failure)

    def _end(self, failure: ReductionFailed) -> None:
        self._operations.fail(failure, () if self._running is None else self._running.unfinished_operations)
