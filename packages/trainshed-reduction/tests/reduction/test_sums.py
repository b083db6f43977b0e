"""Tests of groups of workers with real reducers: sums are exact for all sizes, types and numbers of lanes
(connections to reducers) (spec/reduction#exactness)."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.reduction import ranks
from tests.reduction.ranks import Ranks, expected_sum, inputs, issue, settings
from tests.reduction.reducers import Address, Reducers
from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.client.operations import Operation, ReductionFailed
from trainshed_reduction.native.transfer import NativeTransfer
from trainshed_reduction.wire import DType, Reduction

KINDS = [(dtype, Reduction.SUM) for dtype in DType] + [
    (dtype, Reduction.AVERAGE) for dtype in DType if not dtype.is_integer
]
SIZES = (1, 4097, 70_003)


@pytest.fixture(scope="module")
def addresses() -> Iterator[tuple[Address, ...]]:
    with Reducers(2, threads=2) as reducers:
        yield reducers.addresses


@pytest.mark.parametrize(("world", "reducers", "chunk"), [(3, 2, 64 << 10), (2, 1, 4096)])
def test_results_are_the_rank_ordered_sums_on_all_ranks(
    addresses: tuple[Address, ...], world: int, reducers: int, chunk: int
) -> None:
    """spec/reduction#exactness: Sums and means of every type, with many operations at once. The program may
    reuse its memory immediately."""

    def act(rank: int, communicator: Communicator) -> None:
        plan = [(kind, size) for kind in KINDS for size in SIZES]
        arrays = [inputs(seed, rank, size, kind[0]) for seed, (kind, size) in enumerate(plan)]
        issued = [issue(communicator, array, *kind) for array, (kind, _) in zip(arrays, plan, strict=True)]
        for seed, (operation, array) in enumerate(zip(issued, arrays, strict=True)):
            assert operation.wait(ranks.TEST_TIMEOUT)
            result = array.tobytes()
            array.fill(77)
            kind, size = plan[seed]
            assert result == expected_sum(seed, world, size, *kind).tobytes(), (*kind, size)

    group = Ranks(settings(addresses[:reducers], chunk_bytes=chunk), world, f"sums {world}")
    group.run(act)
    assert f"{2 * reducers} thread" in group.all[0].describe()


def test_callback_of_a_finished_operation_may_start_the_next_operation(
    addresses: tuple[Address, ...],
) -> None:
    """spec/reduction#exactness: A callback runs in the communicator's thread."""

    def act(rank: int, communicator: Communicator) -> bytes:
        array = inputs(1, rank, 50_000, DType.FLOAT32)
        again, issued = list[Operation](), threading.Event()

        def issue_more(_: object) -> None:
            again.append(issue(communicator, array, DType.FLOAT32))
            issued.set()

        issue(communicator, array, DType.FLOAT32).add_done_callback(issue_more)
        assert issued.wait(ranks.TEST_TIMEOUT)
        assert again[0].wait(ranks.TEST_TIMEOUT) and again[0].number == 2
        return array.tobytes()

    results = Ranks(settings(addresses), 2, group="callbacks").run(act)
    once = expected_sum(1, 2, 50_000, DType.FLOAT32, Reduction.SUM)
    assert results == [(once + once).tobytes()] * 2


@pytest.mark.parametrize("bad", ["read-only", "odd", "average of integers"])
def test_unsupported_data_is_rejected_immediately(addresses: tuple[Address, ...], bad: str) -> None:
    """spec/reduction#exactness: Only the caller gets the error; other ranks are not affected."""

    def act(rank: int, communicator: Communicator) -> None:
        data = memoryview(bytearray(64))
        data = {"read-only": data.toreadonly(), "odd": data[:63]}.get(bad, data)
        reduction = Reduction.AVERAGE if bad == "average of integers" else Reduction.SUM
        with pytest.raises(ValueError, match=r"writable|AVERAGE"):
            communicator.issue(data, DType.INT32, reduction)

    Ranks(settings(addresses), 2, group=bad).run(act)


def test_error_of_a_failed_group_start_names_the_missing_rank(addresses: tuple[Address, ...]) -> None:
    """spec/reduction#reports: The start has a timeout."""
    group = Ranks(settings(addresses, start_seconds=8.0), 3, group="missing")
    group.world = 2
    with pytest.raises(ReductionFailed, match="rank 2"):
        group.run(lambda rank, communicator: None)


def test_timeout_error_of_an_operation_names_the_rank_that_did_not_take_part(
    addresses: tuple[Address, ...],
) -> None:
    """spec/reduction#exactness: Every wait has a timeout. Its error contains the operation, chunk, reducer
    and missing rank."""

    def act(rank: int, communicator: Communicator) -> str:
        array = inputs(1, rank, 4096, DType.FLOAT32)
        first = issue(communicator, array, DType.FLOAT32)
        assert first.wait(ranks.TEST_TIMEOUT)
        if rank == 1:
            return missed.wait(ranks.TEST_TIMEOUT) * "waited"
        second = issue(communicator, array, DType.FLOAT32)
        with pytest.raises(ReductionFailed) as caught:
            second.wait(ranks.TEST_TIMEOUT)
        missed.set()
        return str(caught.value)

    missed = threading.Event()
    text, _ = Ranks(settings(addresses, wait_seconds=8.0), 2, group="late").run(act)
    assert "operation 2, chunk 0 has waited" in text
    assert "rank 1" in text and "127.0.0.1:" in text


def test_error_of_a_failed_group_start_names_the_missing_reducers() -> None:
    """spec/reduction#exactness: The start fails within its timeout, so that workers can use the native
    all-reduce."""
    group = Ranks(settings([("127.0.0.1", 1)], start_seconds=0.3), 2)
    with pytest.raises(ReductionFailed, match=r"reducer 127\.0\.0\.1:1"):
        group.run(lambda rank, communicator: None)


def test_rank_that_leaves_during_an_operation_fails_the_other_ranks(
    addresses: tuple[Address, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/reduction#reports: Other ranks do not wait for it."""

    def push_and_signal(*arguments: Any) -> None:
        push(*arguments)
        begun.release()

    def act(rank: int, communicator: Communicator) -> str:
        array = inputs(1, rank, 4096, DType.FLOAT32)
        if rank == 2:
            begun.release()
            return left.wait(ranks.TEST_TIMEOUT) * "waited"
        operation = issue(communicator, array, DType.FLOAT32)
        if rank == 1:
            # Wait until the thread has taken the operation. Otherwise the rank would leave with BYE.
            assert all(begun.acquire(timeout=ranks.TEST_TIMEOUT) for _ in range(3))
            assert not operation.done()
            return ""
        with pytest.raises(ReductionFailed) as caught:
            operation.wait(ranks.TEST_TIMEOUT)
        left.set()
        return str(caught.value)

    left, begun, push = threading.Event(), threading.Semaphore(0), NativeTransfer.push
    monkeypatch.setattr(NativeTransfer, "push", push_and_signal)
    result = Ranks(settings(addresses), 3, group="gives up").run(act)[0]
    assert "rank 1 failed: it left the group before operation 1 finished" in result
