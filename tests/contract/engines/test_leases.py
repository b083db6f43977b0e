"""Shims that stop answering: noticed by lease, and never two live processes of one replica
(spec/invariants#one-incarnation)."""

import asyncio
import os
import signal

from tests.contract.engines.conftest import PRIMARY, House
from tests.contract.engines.test_stock import stocked
from tests.e2e.processes import commands, wait_until_gone
from trainshed.core.lifecycle.replica_events import ReplicaLost

LEASE = 4.0
GONE = "its shim did not answer for 4 s; it was killed, and its program with it"


async def test_a_shim_that_does_not_answer_is_killed_and_its_replica_lost(
    house: House, mark: str
) -> None:
    await house.restart(lease=LEASE)
    uid = await house.run("sh", "-c", f"echo up; sleep 60; : {mark}")
    other = await house.run("sleep", "60")
    await house.line(uid, lambda text: text == "up")
    begin = asyncio.get_running_loop().time()
    os.kill(house.shim(uid)["shim"], signal.SIGSTOP)
    assert await house.end(uid) == ReplicaLost(1, PRIMARY, 1, GONE)
    assert asyncio.get_running_loop().time() - begin >= LEASE
    assert not commands(mark)
    await house.engine.launch([house.plan(uid, "echo", "again", incarnation=2)])
    assert (await house.exit(uid, incarnation=2)).exit.exit_code == 0
    assert not house.ends(other)


async def test_a_start_that_nobody_takes_up_within_its_lease_is_lost_for_good(house: House) -> None:
    """What wakes up with it after that finds that it is over."""
    await house.restart(lease=LEASE)
    idle = [shim for shim, _ in await stocked(house)][:1]
    for shim in idle:
        os.kill(shim, signal.SIGSTOP)
    uid = await house.run("echo", "first")
    end = await house.end(uid)
    assert isinstance(end, ReplicaLost) and end.cause == "no shim came up for it within 4 s"
    for shim in idle:
        os.kill(shim, signal.SIGCONT)
    await asyncio.to_thread(wait_until_gone, idle)
    await house.engine.launch([house.plan(uid, "echo", "second", incarnation=2)])
    assert (await house.exit(uid, incarnation=2)).exit.exit_code == 0
    assert house.texts(uid) == ["second"]
