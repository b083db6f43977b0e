"""Groups of workers over real reducers (spec/reduction#exactness): sums are right bit by bit, whatever the
sizes, types and lanes are."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.reduction import ranks
from tests.reduction.ranks import Ranks, expected, inputs, issue, settings
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
    """spec/reduction#exactness: every type, sums and means, many operations under way at a time; the memory
    is the user's again at once."""

    def act(rank: int, communicator: Communicator) -> None:
        plan = [(kind, size) for kind in KINDS for size in SIZES]
        arrays = [inputs(seed, rank, size, kind[0]) for seed, (kind, size) in enumerate(plan)]
        issued = [
            issue(communicator, array, *kind) for array, (kind, _) in zip(arrays, plan, strict=True)
        ]
        for seed, (operation, array) in enumerate(zip(issued, arrays, strict=True)):
            assert operation.wait(ranks.PATIENCE)
            result = array.tobytes()
            array.fill(77)
            kind, size = plan[seed]
            assert result == expected(seed, world, size, *kind).tobytes(), (*kind, size)

    group = Ranks(settings(addresses[:reducers], chunk_bytes=chunk), world, f"sums {world}")
    group.run(act)
    assert f"{2 * reducers} thread" in group.all[0].describe()


def test_callers_are_called_back_and_may_issue_more(addresses: tuple[Address, ...]) -> None:
    """spec/reduction#exactness: a callback runs in the communicator's thread; an operation may follow from
    there."""

    def act(rank: int, communicator: Communicator) -> bytes:
        array = inputs(1, rank, 50_000, DType.FLOAT32)
        again, issued = list[Operation](), threading.Event()

        def issue_more(_: object) -> None:
            again.append(issue(communicator, array, DType.FLOAT32))
            issued.set()

        issue(communicator, array, DType.FLOAT32).add_done_callback(issue_more)
        assert issued.wait(ranks.PATIENCE)
        assert again[0].wait(ranks.PATIENCE) and again[0].number == 2
        return array.tobytes()

    results = Ranks(settings(addresses), 2, group="callbacks").run(act)
    once = expected(1, 2, 50_000, DType.FLOAT32, Reduction.SUM)
    assert results == [(once + once).tobytes()] * 2


@pytest.mark.parametrize("bad", ["read-only", "odd", "average of integers"])
def test_what_cannot_be_summed_is_refused_at_once(addresses: tuple[Address, ...], bad: str) -> None:
    """spec/reduction#exactness: the caller's mistake is the caller's, and no other rank hears of it."""

    def act(rank: int, communicator: Communicator) -> None:
        data = memoryview(bytearray(64))
        data = {"read-only": data.toreadonly(), "odd": data[:63]}.get(bad, data)
        reduction = Reduction.AVERAGE if bad == "average of integers" else Reduction.SUM
        with pytest.raises(ValueError, match=r"writable|averaged"):
            communicator.issue(data, DType.INT32, reduction)

    Ranks(settings(addresses), 2, group=bad).run(act)


def test_a_rank_that_does_not_come_is_named(addresses: tuple[Address, ...]) -> None:
    """spec/reduction#reports: starting has a limit, and says whom it waited for."""
    group = Ranks(settings(addresses, start_seconds=8.0), 3, group="missing")
    group.world = 2
    with pytest.raises(ReductionFailed, match="rank 2"):
        group.run(lambda rank, communicator: None)


def test_a_rank_that_issues_nothing_is_named(addresses: tuple[Address, ...]) -> None:
    """spec/reduction#exactness: every wait has a limit, and its error names operation, chunk, reducer and the
    missing rank."""

    def act(rank: int, communicator: Communicator) -> str:
        array = inputs(1, rank, 4096, DType.FLOAT32)
        first = issue(communicator, array, DType.FLOAT32)
        assert first.wait(ranks.PATIENCE)
        if rank == 1:
            return missed.wait(ranks.PATIENCE) * "waited"
        second = issue(communicator, array, DType.FLOAT32)
        with pytest.raises(ReductionFailed) as caught:
            second.wait(ranks.PATIENCE)
        missed.set()
        return str(caught.value)

    missed = threading.Event()
    text, _ = Ranks(settings(addresses, wait_seconds=8.0), 2, group="late").run(act)
    assert "operation 2, chunk 0 waits" in text
    assert "rank 1" in text and "127.0.0.1:" in text


def test_reducers_that_are_not_there_are_named() -> None:
    """spec/reduction#exactness: starting fails within its limit; the workers can go on natively."""
    group = Ranks(settings([("127.0.0.1", 1)], start_seconds=0.3), 2)
    with pytest.raises(ReductionFailed, match=r"reducer 127\.0\.0\.1:1"):
        group.run(lambda rank, communicator: None)


def test_a_rank_that_gives_up_tells_the_others(
    addresses: tuple[Address, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/reduction#reports: nobody waits for one that has left in the middle of an operation."""

    def pushed(*arguments: Any) -> None:
        push(*arguments)
        begun.release()

    def act(rank: int, communicator: Communicator) -> str:
        array = inputs(1, rank, 4096, DType.FLOAT32)
        if rank == 2:
            begun.release()
            return left.wait(ranks.PATIENCE) * "waited"
        operation = issue(communicator, array, DType.FLOAT32)
        if rank == 1:
            # Until its thread has taken the operation, it would leave in good order.
            assert all(begun.acquire(timeout=ranks.PATIENCE) for _ in range(3))
            assert not operation.done()
            return ""
        with pytest.raises(ReductionFailed) as caught:
            operation.wait(ranks.PATIENCE)
        left.set()
        return str(caught.value)

    left, begun, push = threading.Event(), threading.Semaphore(0), NativeTransfer.push
    monkeypatch.setattr(NativeTransfer, "push", pushed)
    result = Ranks(settings(addresses), 3, group="gives up").run(act)[0]
    assert "rank 1 cannot go on: it left the group before operation 1 was done" in result
