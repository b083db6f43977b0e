"""One replica of a gang: stopped, hit by a fault, restarted in place or on another node
(spec/failures#lost-replicas, spec/operations#drills)."""

import signal

import pytest

from tests.contract.engines.conftest import PRIMARY, SECOND, House, Run
from trainshed.core.launch import Limits
from trainshed.core.lifecycle.replica_events import ReplicaExited
from trainshed.core.names import ReplicaId
from trainshed.engines.port import (
    Fault,
    LaunchRejected,
    SlotRequest,
)

WORKER = ReplicaId(1, 0)
UP = "echo up; exec sleep 60"


def test_a_replica_that_ignores_its_stop_is_killed_after_the_grace(house: Run) -> None:
    async def test(house: House) -> None:
        uid = await house.run("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.02; done")
        await house.line(uid, lambda text: text == "up")
        await house.engine.stop_replica(uid, 1, PRIMARY, 1, SECOND // 5)
        assert (await house.exit(uid)).exit.signal == signal.SIGKILL

    house(test)


def test_a_stop_of_one_that_is_just_starting_ends_it(house: Run) -> None:
    async def test(house: House) -> None:
        uid = await house.run("sleep", "60")
        await house.engine.stop_replica(uid, 1, PRIMARY, 1, 0)
        end = await house.end(uid)
        if isinstance(end, ReplicaExited):
            assert end.exit.signal in (signal.SIGTERM, signal.SIGKILL)
        else:
            assert end.cause == "never started"

    house(test)


def test_a_replica_without_a_slot_cannot_be_stopped(house: Run) -> None:
    async def test(house: House) -> None:
        with pytest.raises(LaunchRejected, match="allocate first"):
            await house.engine.stop_replica(house.job(), 1, PRIMARY, 1, 0)

    house(test)


def test_a_restart_in_place_keeps_names_and_files_and_goes_on_in_the_log(house: Run) -> None:
    """spec/failures#lost-replicas: same hostname, index and directory; peers are not touched."""

    async def test(house: House) -> None:
        uid = house.job()
        slots = await house.allocate(uid, [PRIMARY, WORKER])
        await house.engine.launch(
            [
                house.plan(uid, "sh", "-c", "echo 7 > state; pwd; hostname; echo up; sleep 60"),
                house.plan(uid, "sh", "-c", UP, replica=WORKER),
            ]
        )
        await house.line(uid, lambda text: text == "up")
        await house.started(uid, WORKER)
        await house.engine.inject(uid, 1, PRIMARY, 1, Fault.KILL)
        await house.exit(uid)
        assert await house.allocate(uid, [PRIMARY, WORKER]) == slots
        await house.engine.launch(
            [house.plan(uid, "sh", "-c", "pwd; hostname; cat state", incarnation=2)]
        )
        await house.exit(uid, incarnation=2)
        texts = house.texts(uid)
        assert texts[3:5] == texts[:2]
        assert texts[5] == "7"
        assert [line["n"] for line in house.log(uid)] == list(range(6))
        assert [event.replica for event in house.ends(uid)] == [PRIMARY]

    house(test)


def test_a_move_keeps_names_and_log_and_leaves_the_files_behind(house: Run) -> None:
    """spec/failures#maintenance: on another node if its own is gone or draining; same hostname and address,
    same index."""

    async def test(house: House) -> None:
        await house.restart(nodes=2)
        uid = house.job()
        first, second = await house.allocate(uid, [PRIMARY, WORKER], node="local-0")
        await house.engine.launch(
            [
                house.plan(uid, "sh", "-c", "hostname; echo x > file; exit 1"),
                house.plan(uid, "sh", "-c", UP, replica=WORKER),
            ]
        )
        await house.exit(uid)
        await house.started(uid, WORKER)
        move = SlotRequest(PRIMARY, first.hostname, "local-1")
        moved = await house.engine.allocate(uid, 1, [move])
        assert [(slot.replica, slot.node) for slot in moved] == [
            (PRIMARY, "local-1"),
            (WORKER, "local-0"),
        ]
        assert moved[0].hostname == first.hostname
        assert (moved[0].address, moved[0].port, moved[1]) == (first.address, first.port, second)
        await house.restart()
        assert await house.engine.allocate(uid, 1, [move]) == moved
        await house.engine.launch([house.plan(uid, "sh", "-c", "hostname; ls", incarnation=2)])
        assert (await house.exit(uid, incarnation=2)).exit.exit_code == 0
        hostname, again = house.texts(uid)
        assert hostname == again
        work = house.data / "slots" / str(uid) / "1" / str(PRIMARY) / "files" / "work"
        assert not list(work.iterdir())

    house(test)


def test_a_program_without_progress_is_ended(house: Run) -> None:
    """Issue point 9: the stall watchdog, off by default."""

    async def test(house: House) -> None:
        uid = await house.run("sh", "-c", UP, limits=Limits(stall_after=SECOND))
        end = await house.exit(uid)
        assert end.exit.stalled

    house(test)
