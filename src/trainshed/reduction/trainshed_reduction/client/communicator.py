"""One group of ranks and its reducers, as the rest of a worker's program sees it, and what they can gain in
one line."""

from __future__ import annotations

import threading
from typing import Callable, Dict, Optional

from trainshed_reduction import layout, proof
from trainshed_reduction.client.agreement import Agreement, Membership
from trainshed_reduction.client.choice import Pace
from trainshed_reduction.client.operations import OperationQueue
from trainshed_reduction.client.port import Board, Native, NativeOperations, Operation
from trainshed_reduction.client.session import Session
from trainshed_reduction.reports import Metric, Reports
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import DType, Hello, Reduction


def _to_nowhere(_: str) -> None:
    pass


class Communicator:
    """A rank's part of a group: `start` once, `issue` as often as one likes, `close` once."""

    def __init__(
        self,
        settings: Settings,
        *,
        group: str,
        rank: int,
        world: int,
        board: Optional[Board] = None,
        native: Optional[Native] = None,
        apart: Optional[NativeOperations] = None,
        reports: Optional[Reports] = None,
        log: Callable[[str], None] = _to_nowhere,
    ) -> None:
        """`group`: a name that all ranks give alike and no other group of the job has. The rest as in
        `Membership`."""
        self._settings = settings
        self._world = world
        self._operations = OperationQueue()
        operations = self._operations
        hello = Hello(b"", b"", proof.group_digest(group), 0, 0, rank, world, 0)
        agreement = None
        if board is not None:
            prefix = "reduction/{}/{}".format(hello.group.hex(), settings.attempt)
            agreement = Agreement(board, prefix, rank, world, lambda: operations.closing)
        self._session = Session(
            Membership(settings, operations, hello, agreement, native, apart, reports, log)
        )
        self._thread = threading.Thread(
            target=self._session.run, name="reduction-{}".format(group), daemon=True
        )

    def start(self) -> None:
        """Connect to all reducers and wait for all ranks to have done so. Blocks for `settings.start_limit`
        seconds at most. Raises ReductionFailed, which names the reducers or ranks that are missing; the
        communicator is closed then. That one rank starts does not say that all do: the caller agrees on it
        with the others."""
        self._thread.start()
        self._operations.await_open()

    def issue(
        self,
        data: memoryview,
        dtype: DType,
        reduction: Reduction,
        ordinal: Optional[int] = None,
        pace: Optional[Pace] = None,
    ) -> Optional[Operation]:
        """Begin an all-reduce in place. `data`: writable, contiguous bytes, not to be touched until the
        operation is done, not empty, a multiple of the element's size. Every rank issues the same
        operations in the same order; the order of calls is that of the operations. `ordinal`: by which
        ranks compare their places and messages name it; by itself it counts from 1. `pace`: how much is
        under way from here on, the same on all ranks. Thread-safe; returns at once but while the ranks
        agree on the loss of a reducer. None: no reducer is left, and this operation and all later ones are
        the native backend's. Raises ReductionFailed where the group cannot go on; ValueError (read-only,
        not contiguous, AVERAGE of integers)."""
        view = memoryview(data)
        if (
            view.readonly
            or not view.c_contiguous
            or not view.nbytes
            or view.nbytes % dtype.itemsize
        ):
            raise ValueError(
                "an all-reduce wants writable, contiguous memory of whole {} elements".format(
                    dtype.name
                )
            )
        if reduction is Reduction.AVERAGE and dtype.is_integer:
            raise ValueError("integers are only summed, not averaged")
        return self._operations.hand_in(view.cast("B"), dtype, reduction, ordinal, pace)

    def went_natively(self) -> None:
        """One operation was done without the reducers, since that is faster: for the report."""
        self._operations.natively += 1

    def close(self) -> None:
        """Leave the group: operations that are not done fail. Waits for nothing that cannot come; may be
        called again."""
        self._operations.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def describe(self) -> str:
        """One line: how many reducers, which mode, and what that can gain. After `start`."""
        formation = self._session.formation
        if formation is None:
            return "no reducers"
        processes = sum(lane.host < formation.reducers for lane in formation.lanes)
        return describe(
            self._settings,
            self._world,
            formation.reducers,
            processes,
            formation.shares,
            lack=formation.lack,
        )

    def metrics(self) -> Dict[str, Metric]:
        """Numbers since `start`: operations, bytes sent and received by kind, lost connections, seconds of
        waiting."""
        return self._session.metrics()


def describe(
    settings: Settings,
    world: int,
    reducers: int,
    processes: int,
    shares: layout.Shares,
    *,
    lack: str = "",
) -> str:
    """`reducers`: replicas of the pool, of `processes` in all. `lack`: why workers do not reduce though it
    would pay."""
    known = settings.worker_gbps > 0 and settings.reducer_gbps > 0
    # Where nothing is known of the links, reducers are taken to have what they need.
    speed = settings.reducer_gbps / settings.worker_gbps if known else world / reducers
    if shares.is_hybrid and not known:
        speed = 1.0
    bounds = layout.bounds(world, reducers, speed)
    mode = "pure"
    limit = bounds.ring / bounds.pure
    if shares.is_hybrid:
        mode = "hybrid: {:.0%} of every tensor to each reducer, {:.0%} to each worker".format(
            *shares
        )
        limit = bounds.limit
    text = "{} ({}), {}{}; at most {:.2f} times the ring's speed".format(
        _count(reducers, "reducer"),
        _count(processes, "process", "processes"),
        mode,
        " over TLS" if settings.is_secured else "",
        limit,
    )
    if lack:
        text += "; workers would reduce as well, but {}".format(lack)
    if world > 2:
        text += "; reducers alone are faster than the ring from {:.2f} times a worker's bandwidth on".format(
            layout.break_even(world)
        )
        if known:
            text += ", these have {:.2f}".format(reducers * speed)
    return text


def _count(number: int, one: str, many: str = "") -> str:
    return "{} {}".format(number, one if number == 1 else many or one + "s")
