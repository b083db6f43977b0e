"""One replica of a gang: stopped, hit by a fault, restarted in place or on another node
(spec/failures#lost-replicas, spec/operations#drills)."""

import signal
from pathlib import Path

import pytest

from tests.contract.engines.conftest import PRIMARY, SECOND, House, Run
from trainshed.core.launch import Limits
from trainshed.core.lifecycle.events import ReplicaExited, ReplicaLost
from trainshed.core.names import ReplicaId
from trainshed.engines.port import (
    EngineUnavailable,
    Fault,
    LaunchRejected,
    SlotRequest,
)

WORKER = ReplicaId(1, 0)
UP = "echo up; exec sleep 60"
LEAVES = "trap 'echo saving; exit 0' TERM; echo up; while :; do sleep 0.02; done"


def test_stopping_one_replica_leaves_the_others_alone(house: Run) -> None:
    """spec/failures#maintenance: node under maintenance; the record says that it had been asked to stop."""

    async def test(house: House) -> None:
        uid = house.job()
        await house.allocate(uid, [PRIMARY, WORKER])
        await house.engine.launch(
            [
                house.plan(uid, "sh", "-c", LEAVES),
                house.plan(uid, "sh", "-c", UP, replica=WORKER),
            ]
        )
        await house.line(uid, lambda text: text == "up")
        await house.started(uid, WORKER)
        await house.engine.stop_replica(uid, 1, PRIMARY, 1, 10 * SECOND)
        end = await house.exit(uid)
        assert (end.exit.exit_code, end.exit.stopped) == (0, True)
        assert "saving" in house.texts(uid)
        assert [event.replica for event in house.ends(uid)] == [PRIMARY]
        await house.engine.stop_replica(uid, 1, PRIMARY, 1, 10 * SECOND)
        await house.until(lambda: house.ends(uid) == [end, end])
        await house.engine.launch([house.plan(uid, "echo", "again", incarnation=2)])
        assert not (await house.exit(uid, incarnation=2)).exit.stopped

    house(test)


def test_a_replica_that_ignores_its_stop_is_killed_after_the_grace(house: Run) -> None:
    async def test(house: House) -> None:
        uid = await house.run("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.02; done")
        await house.line(uid, lambda text: text == "up")
        await house.engine.stop_replica(uid, 1, PRIMARY, 1, SECOND // 5)
        assert (await house.exit(uid)).exit.signal == signal.SIGKILL

    house(test)


def test_an_incarnation_stopped_before_its_launch_never_starts_and_the_next_one_does(
    house: Run,
) -> None:
    async def test(house: House) -> None:
        uid = house.job()
        await house.allocate(uid)
        never = ReplicaLost(1, PRIMARY, 1, "never started")
        await house.engine.stop_replica(uid, 1, PRIMARY, 1, 0)
        assert await house.end(uid) == never
        await house.restart()
        first = house.plan(uid, "sh", "-c", "echo ran")
        await house.engine.launch([first])
        assert await house.end(uid) == never
        await house.engine.launch([house.plan(uid, "echo", "second", incarnation=2)])
        assert (await house.exit(uid, incarnation=2)).exit.exit_code == 0
        await house.engine.launch([first])
        await house.until(lambda: house.ends(uid) == [never, never])
        await house.engine.stop_replica(uid, 1, PRIMARY, 1, 0)
        await house.until(lambda: house.ends(uid) == [never, never, never])
        assert house.texts(uid) == ["second"]

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


@pytest.mark.parametrize(
    ("fault", "killed_by", "oom"),
    [
        (Fault.KILL, signal.SIGKILL, False),
        (Fault.OOM, signal.SIGKILL, True),
        (Fault.SEGV, signal.SIGSEGV, False),
    ],
)
def test_faults_look_like_what_they_stand_for(
    house: Run, fault: Fault, killed_by: int, oom: bool
) -> None:
    """spec/operations#drills: drills."""

    async def test(house: House) -> None:
        uid = await house.run("sh", "-c", UP)
        await house.line(uid, lambda text: text == "up")
        await house.engine.inject(uid, 1, PRIMARY, 2, fault)
        await house.engine.inject(uid, 1, PRIMARY, 1, fault)
        end = await house.exit(uid)
        assert (end.exit.signal, end.exit.oom) == (killed_by, oom)
        assert not end.exit.stopped
        await house.engine.inject(uid, 1, PRIMARY, 1, fault)
        await house.engine.launch([house.plan(uid, "echo", "again", incarnation=2)])
        assert (await house.exit(uid, incarnation=2)).exit.exit_code == 0

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


def test_nothing_moves_while_it_lives(house: Run) -> None:
    async def test(house: House) -> None:
        await house.restart(nodes=2)
        uid = house.job()
        slots = await house.allocate(uid, node="local-0")
        await house.engine.launch([house.plan(uid, "sh", "-c", f"touch file; {UP}")])
        await house.line(uid, lambda text: text == "up")
        with pytest.raises(EngineUnavailable, match="still run"):
            await house.allocate(uid, node="local-1")
        assert await house.allocate(uid, node="local-0") == slots
        work = house.data / "slots" / str(uid) / "1" / str(PRIMARY) / "files" / "work"
        assert [path.name for path in work.iterdir()] == ["file"]

    house(test)


def test_an_unknown_node_is_refused(house: Run, tmp_path: Path) -> None:
    async def test(house: House) -> None:
        with pytest.raises(LaunchRejected, match="no node 'elsewhere'"):
            await house.allocate(house.job(), node="elsewhere")

    house(test)


def test_a_program_without_progress_is_ended(house: Run) -> None:
    """Issue point 9: the stall watchdog, off by default."""

    async def test(house: House) -> None:
        uid = await house.run("sh", "-c", UP, limits=Limits(stall_after=SECOND))
        end = await house.exit(uid)
        assert end.exit.stalled

    house(test)
