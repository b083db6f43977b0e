"""Service, zygote and shims killed at any moment (spec/invariants#one-incarnation,
spec/invariants#durability, spec/invariants#shims). One replica of a gang: stopped, hit by a fault, restarted
in place or on another node (spec/failures#lost-replicas, spec/operations#drills). Shims that stop answering:
noticed by lease, and never two live processes of one replica (spec/invariants#one-incarnation)."""

import asyncio
import errno
import os
import signal
from pathlib import Path

import pytest

from tests.contract.engines.conftest import PRIMARY, SECOND, House
from tests.contract.engines.test_stock import shims, stocked
from tests.contract.engines.test_terminals import sleeper
from tests.e2e.processes import commands, wait_until_gone
from tests.waiting import until
from trainshed.core.lifecycle.replica_events import ReplicaLost
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local import engine, slot_handle, spawner
from trainshed.engines.local.layout import Layout
from trainshed.engines.port import EngineUnavailable


async def test_launches_in_flight_survive_the_death_of_the_zygote(house: House) -> None:
    zygote = house.zygote()
    os.kill(zygote, signal.SIGSTOP)
    replicas = [ReplicaId(1, index) for index in range(4)]
    uid = house.job()
    await house.allocate(uid, replicas)
    plans = [house.plan(uid, "sh", "-c", "echo ran", replica=r) for r in replicas]
    await house.engine.launch(plans)
    os.kill(zygote, signal.SIGKILL)
    for replica in replicas:
        assert (await house.exit(uid, replica)).exit.exit_code == 0
        assert house.texts(uid, replica) == ["ran"]


async def test_a_gang_whose_zygote_hangs_starts_by_a_new_one_and_nobody_waits(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the socket of a zygote holds that was stopped (SIGSTOP, or swap): the loop goes on turning
    meanwhile, the zygote is replaced, every program starts once, and what ran before runs on."""
    before = await house.python("import time; print('up'); time.sleep(60)")
    await house.line(before, lambda text: text == "up")
    hung = house.zygote()
    os.kill(hung, signal.SIGSTOP)
    turned, start, patience = [0], spawner.start, spawner.REQUEST_TIMEOUT

    def start_patiently() -> spawner.ZygoteHandle:
        # A busy machine may take long to begin another one, which does not hang.
        monkeypatch.setattr(spawner, "REQUEST_TIMEOUT", patience)
        turned.append(0)
        return start()

    monkeypatch.setattr(spawner, "REQUEST_TIMEOUT", 3.0)
    monkeypatch.setattr(spawner, "start", start_patiently)
    replicas = [ReplicaId(1, index) for index in range(10)]
    uid = house.job()
    await house.allocate(uid, replicas)
    bulk = (("BULK", "x" * 100_000),)
    plans = [house.plan(uid, "sh", "-c", "echo ran", replica=r, environ=bulk) for r in replicas]
    launching = asyncio.ensure_future(house.engine.launch(plans))
    while not launching.done():
        await asyncio.sleep(0.001)
        turned[-1] += 1
    # It waits for the zygote, and the loop for nobody, though that may get the processor late.
    assert turned[0] >= 20
    await launching
    for replica in replicas:
        assert (await house.exit(uid, replica)).exit.exit_code == 0
        assert house.texts(uid, replica) == ["ran"]
    assert house.zygote() != hung
    with pytest.raises(ProcessLookupError):
        os.kill(hung, 0)
    assert not house.ends(before)


async def test_a_zygote_that_hangs_is_replaced_when_a_shim_does_not_come_up(house: House) -> None:
    await house.restart(lease=300.0)
    hung = house.zygote()
    os.kill(hung, signal.SIGSTOP)
    uid = await house.run("echo", "ran")
    # As after two thirds of a lease; a short one would be over before a busy machine has started it.
    for _ in range(2):
        house.engine._reconciler._ask()  # pyright: ignore[reportPrivateUsage]
    assert (await house.exit(uid)).exit.exit_code == 0
    assert house.texts(uid) == ["ran"] and house.zygote() != hung


async def test_what_a_zygote_takes_up_that_was_taken_for_hung_starts_once(house: House) -> None:
    """It is stopped, and goes on in the moment in which it is replaced."""
    hung = house.zygote()
    os.kill(hung, signal.SIGSTOP)
    replicas = [ReplicaId(1, index) for index in range(8)]
    uid = house.job()
    await house.allocate(uid, replicas)
    plans = [house.plan(uid, "sh", "-c", "echo ran; sleep 0.2", replica=r) for r in replicas]
    await house.engine.launch(plans)
    os.kill(hung, signal.SIGCONT)
    spawner = house.engine._spawner  # pyright: ignore[reportPrivateUsage]
    await spawner._replace(spawner._handle)  # pyright: ignore[reportPrivateUsage] - as if it did not answer in time
    for replica in replicas:
        assert (await house.exit(uid, replica)).exit.exit_code == 0
        assert house.texts(uid, replica) == ["ran"]


async def test_an_end_that_cannot_be_written_down_yet_is_told_later(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, say: the service looks again, and the replica is not forgotten."""
    look = slot_handle.probe_slot
    refusals = iter([OSError(errno.ENOSPC, "no space left")])

    def refusing(slot: Path, incarnation: int) -> slot_handle.Finding:
        for refusal in refusals:
            raise refusal
        return look(slot, incarnation)

    monkeypatch.setattr(engine, "probe_slot", refusing)
    monkeypatch.setattr(engine, "_RETRY_INTERVAL", 0.01)
    uid = await sleeper(house)
    os.kill(house.shim(uid)["shim"], signal.SIGKILL)
    assert isinstance(await house.end(uid), ReplicaLost)


async def test_a_stop_that_cannot_be_written_down_ends_what_runs(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs may be what fills the disk. The caller tries again, until nothing can start any more."""
    refusals = iter([OSError(errno.ENOSPC, "no space left")])
    mark_stopped = Layout.mark_stopped

    def refusing(self: Layout, job_uid: JobUid, attempt: int) -> None:
        for refusal in refusals:
            raise refusal
        mark_stopped(self, job_uid, attempt)

    monkeypatch.setattr(Layout, "mark_stopped", refusing)
    uid = await sleeper(house)
    with pytest.raises(EngineUnavailable, match="free disk space"):
        await house.engine.stop(uid, 1, SECOND)
    assert (await house.exit(uid)).exit.signal == signal.SIGTERM
    await house.engine.stop(uid, 1, SECOND)


GONE = "its shim did not answer for 4 s; it was killed, and its program with it"


async def test_a_shim_that_does_not_answer_is_killed_and_its_replica_lost(
    house: House, mark: str
) -> None:
    uid = await house.run("sh", "-c", f"echo up; sleep 60; : {mark}")
    other = await sleeper(house)
    await house.line(uid, lambda text: text == "up")
    begin = asyncio.get_running_loop().time()
    # Only now: a busy machine may take longer to start them.
    await house.restart(lease=4.0)
    os.kill(house.shim(uid)["shim"], signal.SIGSTOP)
    assert await house.end(uid) == ReplicaLost(1, PRIMARY, 1, GONE)
    assert asyncio.get_running_loop().time() - begin >= 4
    assert not commands(mark) and not house.ends(other)
    await house.restart(lease=300.0)
    await house.engine.launch([house.plan(uid, "echo", "again", incarnation=2)])
    assert (await house.exit(uid, incarnation=2)).exit.exit_code == 0


async def test_a_start_that_nobody_takes_up_within_its_lease_is_lost_for_good(house: House) -> None:
    """What wakes up with it after that finds that it is over."""
    await house.restart(lease=300.0)
    (shim, _), *_ = await stocked(house)
    os.kill(shim, signal.SIGSTOP)
    uid = await house.run("echo", "first")
    # It has the order once the zygote has made another one: that is replaced after two questions.
    await until(lambda: len(shims(house.zygote())) > spawner.POOL)
    for _ in range(4):
        house.engine._reconciler._ask()  # pyright: ignore[reportPrivateUsage]
    assert await house.end(uid) == ReplicaLost(1, PRIMARY, 1, "no shim came up for it within 300 s")
    os.kill(shim, signal.SIGCONT)
    await asyncio.to_thread(wait_until_gone, [shim])
    await house.engine.launch([house.plan(uid, "echo", "second", incarnation=2)])
    assert (await house.exit(uid, incarnation=2)).exit.exit_code == 0
    assert house.texts(uid) == ["second"]
