"""Shims and nodes that stop answering: noticed by lease, and never two live processes of one replica
(spec/invariants#one-incarnation)."""

import asyncio
import fcntl
import os
import select
import signal
from pathlib import Path

import pytest

from tests.contract.engines.conftest import PRIMARY, PYTHON, House, Run, processes_marked
from tests.contract.engines.test_stock import stocked
from tests.engines.cut_nodes import cut_off, rejoin
from trainshed.core.lifecycle.replica_events import ReplicaLost
from trainshed.engines.port import NodeChanged, NodeState, ReplicaReport, SlotRequest

LEASE = 2.0
GONE = "its shim did not answer for 2 s; it was killed, and its program with it"

ALONE = """
import fcntl, os, sys, time
file = open(sys.argv[1], 'a')
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print('not alone')
    raise SystemExit(3)
file.write(sys.argv[2] + '\\n')
file.flush()
print('up')
time.sleep(60)
"""
"""Holds a lock, and says so in the file that it is on, for as long as it lives."""


def test_a_shim_that_does_not_answer_is_killed_and_its_replica_lost(house: Run, mark: str) -> None:
    async def test(house: House) -> None:
        await house.restart(lease=LEASE)
        uid = await house.run("sh", "-c", f"echo up; sleep 60; : {mark}")
        other = await house.run("sleep", "60")
        await house.line(uid, lambda text: text == "up")
        begin = asyncio.get_running_loop().time()
        os.kill(house.shim(uid)["shim"], signal.SIGSTOP)
        assert await house.end(uid) == ReplicaLost(1, PRIMARY, 1, GONE)
        assert asyncio.get_running_loop().time() - begin >= LEASE
        assert not processes_marked(mark)
        # The only node is the one that the service is on.
        assert not any(isinstance(event, NodeChanged) for event in house.events)
        await house.engine.launch([house.plan(uid, "echo", "again", incarnation=2)])
        assert (await house.exit(uid, incarnation=2)).exit.exit_code == 0
        assert not house.ends(other)

    house(test)


def test_a_start_that_nobody_takes_up_within_its_lease_is_lost_for_good(house: Run) -> None:
    """What wakes up with it after that finds that it is over."""

    async def test(house: House) -> None:
        await house.restart(lease=2.0)
        idle = [shim for shim, _ in await stocked(house)][:1]
        for shim in idle:
            os.kill(shim, signal.SIGSTOP)
        uid = await house.run("echo", "first")
        end = await house.end(uid)
        assert isinstance(end, ReplicaLost)
        assert end.cause == "no shim came up for it within 2 s"
        handles = [os.pidfd_open(shim) for shim in idle]
        for shim in idle:
            os.kill(shim, signal.SIGCONT)
        for handle in handles:
            await asyncio.to_thread(_wait_for_end, handle)
        await house.engine.launch([house.plan(uid, "echo", "second", incarnation=2)])
        assert (await house.exit(uid, incarnation=2)).exit.exit_code == 0
        assert house.texts(uid) == ["second"]

    house(test)


def _wait_for_end(process: int) -> None:
    assert select.select([process], [], [], 20)[0]
    os.close(process)


def test_a_node_that_stops_answering_is_gone_until_nothing_is_left_on_it(
    house: Run, common_place: Path
) -> None:
    """spec/invariants#one-incarnation: never two live incarnations of one replica, whoever wakes up when."""
    witness = common_place / "witness"
    witness.touch()
    witness.chmod(0o666)

    async def test(house: House) -> None:
        shared = house.engine.capabilities().process_namespace
        place = Path("/gcs/common/witness") if shared else witness
        buckets = (("common", str(common_place)),)
        await house.restart(nodes=2, lease=LEASE)
        uid, other = house.job(), JobOnOther(house)
        (slot,) = await house.allocate(uid, node="local-1")
        await other.start()
        await house.engine.launch([house.plan(uid, *_alone(place, 1), buckets=buckets)])
        await house.line(uid, lambda text: text == "up")
        stopped = cut_off(house.data, "local-1")
        gone = await house.changed("local-1", NodeState.GONE)
        lost = await house.end(uid)
        assert isinstance(lost, ReplicaLost)
        assert gone < house.events.index(ReplicaReport(uid, lost))
        # As soon as it is reported lost, nothing of it lives: its lock is free.
        with witness.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        moved = await house.engine.allocate(
            uid, 1, [SlotRequest(PRIMARY, slot.hostname, "local-0")]
        )
        assert moved[0].node == "local-0"
        again = house.plan(uid, *_alone(place, 2), buckets=buckets, incarnation=2)
        await house.engine.launch([again])
        rejoin(stopped)
        await house.changed("local-1", NodeState.UP)
        await house.until(lambda: witness.read_text() == "1\n2\n")
        with witness.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert "not alone" not in house.texts(uid)
        assert not house.ends(other.uid)
        await house.allocate(house.job(), node="local-1")

    house(test)


class JobOnOther:
    """A job on the other node, which must not notice anything."""

    def __init__(self, house: House) -> None:
        self._house = house

    async def start(self) -> None:
        self.uid = self._house.job()
        await self._house.allocate(self.uid, node="local-0")
        await self._house.engine.launch([self._house.plan(self.uid, "sleep", "60")])
        await self._house.started(self.uid)


def _alone(witness: Path, incarnation: int) -> tuple[str, ...]:
    return (PYTHON, "-u", "-c", ALONE, str(witness), str(incarnation))
