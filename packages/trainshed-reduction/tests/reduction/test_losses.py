"""What becomes of a group whose reducers are killed or stay away, and of workers that were replaced
(spec/reduction#losses)."""

import random
import threading
import time

import numpy as np
import pytest

from tests.reduction import ranks
from tests.reduction.ranks import Ranks, expected, inputs, issue, settings
from tests.reduction.reducers import Reducers
from tests.reduction.workers import Worker
from trainshed_reduction import layout
from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.client.lanes import Lane
from trainshed_reduction.client.operations import ReductionFailed
from trainshed_reduction.wire import DType, Reduction

SIZE = 400_000


def _sum_of(communicator: Communicator, rank: int, world: int, seed: int) -> bool:
    """Whether an all-reduce gave the right bits."""
    array = inputs(seed, rank, SIZE, DType.FLOAT32)
    operation = issue(communicator, array, DType.FLOAT32)
    assert operation.wait(ranks.PATIENCE)
    result = array.tobytes()
    array.fill(np.nan)
    return result == expected(seed, world, SIZE, DType.FLOAT32, Reduction.SUM).tobytes()


def test_reducers_killed_in_the_middle_of_steps_change_no_bit() -> None:
    """spec/reduction#losses: they are started again, and every result is exact, though a rank destroys it
    right afterwards."""
    chance, steps = random.Random(0), threading.Semaphore(0)
    wanted = [
        expected(seed, 2, 60_000, DType.FLOAT32, Reduction.SUM).tobytes() for seed in range(3)
    ]
    with Reducers(3) as reducers:

        def kill() -> None:
            for _ in range(6):
                assert steps.acquire(timeout=ranks.PATIENCE)
                victim = chance.choice(reducers.all)
                time.sleep(chance.uniform(0, 0.02))  # Somewhere in a step.
                victim.kill()
                victim.start()

        def act(rank: int, communicator: Communicator) -> None:
            for step in range(20):
                if rank == 0 and step % 3 == 0:
                    steps.release()
                arrays = [inputs(seed, rank, 60_000, DType.FLOAT32) for seed in range(3)]
                issued = [issue(communicator, array, DType.FLOAT32) for array in arrays]
                for operation, array, want in zip(issued, arrays, wanted, strict=True):
                    assert operation.wait(ranks.PATIENCE)
                    assert array.tobytes() == want
                    array.fill(np.nan)

        killer = threading.Thread(target=kill)
        killer.start()
        Ranks(settings(reducers.addresses), 2).run(act)
        killer.join(ranks.PATIENCE)
        assert not killer.is_alive()


def test_a_rank_that_leaves_gives_the_others_what_a_lost_connection_owes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """spec/reduction#losses: a rank has the last result and leaves; another has not, for its connection
    broke, and still gets it."""
    lost, lose = threading.Event(), Lane.lose

    def seen(lane: Lane, cause: str) -> None:
        lose(lane, cause)
        lost.set()

    monkeypatch.setattr(Lane, "lose", seen)
    with Reducers(1) as reducers:
        elements = 100
        arrays = [inputs(0, rank, elements, DType.FLOAT32) for rank in range(2)]
        wanted = expected(0, 2, elements, DType.FLOAT32, Reduction.SUM).tobytes()
        port = reducers.addresses[0][1]
        step = layout.chunk_elements(elements, 4, 1, 128 << 10)

        def sends() -> Worker:
            """Rank 1, by hand."""
            worker = Worker(port, 1, 2, group="test")
            assert worker.start().position == 0
            worker.send_array(arrays[1], total=elements, step=step)
            return worker

        def act(_: int, communicator: Communicator) -> None:
            starter.join()
            operation = issue(communicator, arrays[0], DType.FLOAT32)
            with sends():
                assert operation.wait(ranks.PATIENCE)
                arrays[0].fill(np.nan)
                lost.clear()  # That of rank 1's first visit.
            assert lost.wait(ranks.PATIENCE)
            leaving = threading.Thread(target=communicator.close)
            leaving.start()
            with sends() as worker:
                assert worker.result() == wanted
                worker.bye()
                leaving.join()

        group = Ranks(settings(reducers.addresses), 2)
        group.world = 1
        starter = threading.Thread(target=_come_and_go, args=(port,))
        starter.start()
        group.run(act)


def test_a_worker_that_is_gone_is_not_waited_for() -> None:
    """spec/reduction#losses: no reducer hears of it any more, which ends the group long before the limit for
    an answer, and names it."""
    with Reducers(1) as reducers:

        def act(_: int, communicator: Communicator) -> None:
            starter.join()
            with pytest.raises(ReductionFailed, match=r"a rank is gone.*for rank 1"):
                _sum_of(communicator, 0, 2, 0)

        group = Ranks(settings(reducers.addresses, absent_seconds=8.0), 2)
        group.world = 1
        starter = threading.Thread(target=_come_and_go, args=(reducers.addresses[0][1],))
        starter.start()
        group.run(act)


def _come_and_go(port: int) -> None:
    """Rank 1 comes, so that rank 0 can begin, and is lost."""
    deadline = time.monotonic() + ranks.PATIENCE
    while True:
        try:
            with Worker(port, 1, 2, group="test") as worker:
                worker.start()
                return
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_reducer_that_stays_away_is_an_error_that_names_it() -> None:
    """spec/reduction#losses: it is waited for no longer than for any answer."""
    with Reducers(2) as reducers:

        def act(rank: int, communicator: Communicator) -> str:
            _sum_of(communicator, rank, 2, 0)
            # Else what the other one still waits for is killed as well.
            summed.wait(ranks.PATIENCE)
            reducers.all[1].kill()
            with pytest.raises(ReductionFailed) as caught:
                _sum_of(communicator, rank, 2, 1)
            return str(caught.value)

        place, summed = "{}:{}".format(*reducers.all[1].address), threading.Barrier(2)
        for text in Ranks(settings(reducers.addresses, wait_seconds=8.0), 2).run(act):
            assert place in text
