"""Tests of groups with lost or missing reducers, and of lost workers (spec/reduction#losses)."""

import random
import threading
import time

import numpy as np
import pytest

from tests.reduction import ranks
from tests.reduction.ranks import Ranks, expected_sum, inputs, issue, settings
from tests.reduction.reducers import Reducers
from tests.reduction.workers import Worker
from trainshed_reduction import layout
from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.client.lanes import Lane
from trainshed_reduction.client.operations import ReductionFailed
from trainshed_reduction.wire import DType, Reduction

SIZE = 400_000


def _is_sum_exact(communicator: Communicator, rank: int, world: int, seed: int) -> bool:
    """Run an all-reduce, and return whether its result is exact."""
    array = inputs(seed, rank, SIZE, DType.FLOAT32)
    operation = issue(communicator, array, DType.FLOAT32)
    assert operation.wait(ranks.TEST_TIMEOUT)
    result = array.tobytes()
    array.fill(np.nan)
    return result == expected_sum(seed, world, SIZE, DType.FLOAT32, Reduction.SUM).tobytes()


def test_sums_stay_exact_when_reducers_are_killed_during_steps() -> None:
    """spec/reduction#losses: The reducers restart. Every result is exact, even if a rank overwrites its
    memory immediately afterwards."""
    chance, steps = random.Random(0), threading.Semaphore(0)
    wanted = [expected_sum(seed, 2, 60_000, DType.FLOAT32, Reduction.SUM).tobytes() for seed in range(3)]
    with Reducers(3) as reducers:

        def kill() -> None:
            for _ in range(6):
                assert steps.acquire(timeout=ranks.TEST_TIMEOUT)
                victim = chance.choice(reducers.all)
                time.sleep(chance.uniform(0, 0.02))  # At a random point of a step.
                victim.kill()
                victim.start()

        def act(rank: int, communicator: Communicator) -> None:
            for step in range(20):
                if rank == 0 and step % 3 == 0:
                    steps.release()
                arrays = [inputs(seed, rank, 60_000, DType.FLOAT32) for seed in range(3)]
                issued = [issue(communicator, array, DType.FLOAT32) for array in arrays]
                for operation, array, want in zip(issued, arrays, wanted, strict=True):
                    assert operation.wait(ranks.TEST_TIMEOUT)
                    assert array.tobytes() == want
                    array.fill(np.nan)

        killer = threading.Thread(target=kill)
        killer.start()
        Ranks(settings(reducers.addresses), 2).run(act)
        killer.join(ranks.TEST_TIMEOUT)
        assert not killer.is_alive()


def test_leaving_rank_sends_results_that_other_ranks_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    """spec/reduction#losses: One rank has the last result and leaves. The connection of another rank broke
    before; it still gets the result."""
    lost, lose = threading.Event(), Lane.lose

    def record_loss(lane: Lane, cause: str) -> None:
        lose(lane, cause)
        lost.set()

    monkeypatch.setattr(Lane, "lose", record_loss)
    with Reducers(1) as reducers:
        elements = 100
        arrays = [inputs(0, rank, elements, DType.FLOAT32) for rank in range(2)]
        wanted = expected_sum(0, 2, elements, DType.FLOAT32, Reduction.SUM).tobytes()
        port = reducers.addresses[0][1]
        step = layout.chunk_elements(elements, 4, 1, 128 << 10)

        def send_chunk() -> Worker:
            """Connect as rank 1 and send its chunk."""
            worker = Worker(port, 1, 2, group="test")
            assert worker.start().position == 0
            worker.send_array(arrays[1], total=elements, step=step)
            return worker

        def act(_: int, communicator: Communicator) -> None:
            starter.join()
            operation = issue(communicator, arrays[0], DType.FLOAT32)
            with send_chunk():
                assert operation.wait(ranks.TEST_TIMEOUT)
                arrays[0].fill(np.nan)
                lost.clear()  # Ignore the loss of rank 1's first connection.
            assert lost.wait(ranks.TEST_TIMEOUT)
            leaving = threading.Thread(target=communicator.close)
            leaving.start()
            with send_chunk() as worker:
                assert worker.result() == wanted
                worker.bye()
                leaving.join()

        group = Ranks(settings(reducers.addresses), 2)
        group.world = 1
        starter = threading.Thread(target=_connect_and_disconnect, args=(port,))
        starter.start()
        group.run(act)


def test_lost_worker_fails_the_group_before_the_response_timeout() -> None:
    """spec/reduction#losses: No reducer has a connection to the worker. The error contains its rank."""
    with Reducers(1) as reducers:

        def act(_: int, communicator: Communicator) -> None:
            starter.join()
            with pytest.raises(ReductionFailed, match=r"a rank is lost.*for rank 1"):
                _is_sum_exact(communicator, 0, 2, 0)

        group = Ranks(settings(reducers.addresses, absent_seconds=8.0), 2)
        group.world = 1
        starter = threading.Thread(target=_connect_and_disconnect, args=(reducers.addresses[0][1],))
        starter.start()
        group.run(act)


def _connect_and_disconnect(port: int) -> None:
    """Connect rank 1, so that rank 0 can start, and disconnect it."""
    deadline = time.monotonic() + ranks.TEST_TIMEOUT
    while True:
        try:
            with Worker(port, 1, 2, group="test") as worker:
                worker.start()
                return
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_lost_reducer_fails_the_group_after_the_response_timeout() -> None:
    """spec/reduction#losses: The error contains the reducer's address."""
    with Reducers(2) as reducers:

        def act(rank: int, communicator: Communicator) -> str:
            _is_sum_exact(communicator, rank, 2, 0)
            # Otherwise the reducer would be killed before the other rank has its result.
            summed.wait(ranks.TEST_TIMEOUT)
            reducers.all[1].kill()
            with pytest.raises(ReductionFailed) as caught:
                _is_sum_exact(communicator, rank, 2, 1)
            return str(caught.value)

        place, summed = "{}:{}".format(*reducers.all[1].address), threading.Barrier(2)
        for text in Ranks(settings(reducers.addresses, wait_seconds=8.0), 2).run(act):
            assert place in text
