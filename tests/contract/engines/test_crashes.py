"""Service, zygote and shims are killed at any moment (spec/invariants#one-incarnation,
spec/invariants#durability, spec/invariants#shims). A single replica of a gang is stopped, killed, and
restarted in place or on another node (spec/failures#lost-replicas, spec/operations#drills). A shim that
stops answering is detected by its lease, and a replica never has two live processes."""

import asyncio
import errno
import os
import signal
from pathlib import Path

import pytest

from tests.contract.engines.conftest import PRIMARY, SECOND, EngineHarness
from tests.contract.engines.test_idle_shims import idle_shims, shims
from tests.contract.engines.test_terminals import start_sleeping_job
from tests.e2e.processes import commands, wait_until_gone
from tests.waiting import until
from trainshed.core.lifecycle.replica_events import ReplicaLost
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local import engine, slot_handle, spawner
from trainshed.engines.local.layout import Layout
from trainshed.engines.port import EngineUnavailable


async def test_pending_program_starts_survive_a_kill_of_the_zygote_process(harness: EngineHarness) -> None:
    zygote = harness.zygote()
    os.kill(zygote, signal.SIGSTOP)
    replicas = [ReplicaId(1, index) for index in range(4)]
    uid = harness.job()
    await harness.allocate(uid, replicas)
    plans = [harness.plan(uid, "sh", "-c", "echo ran", replica=r) for r in replicas]
    await harness.engine.launch(plans)
    os.kill(zygote, signal.SIGKILL)
    for replica in replicas:
        assert (await harness.exit(uid, replica)).exit.exit_code == 0
        assert harness.texts(uid, replica) == ["ran"]


async def test_hanging_zygote_is_replaced_without_blocking_the_event_loop(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launches fill the socket of a stopped zygote (SIGSTOP, or swapped out). The event loop stays
    responsive, the zygote is replaced, every program starts once, and earlier programs continue."""
    before = await harness.python("import time; print('up'); time.sleep(60)")
    await harness.line(before, lambda text: text == "up")
    hung = harness.zygote()
    os.kill(hung, signal.SIGSTOP)
    turned, start, patience = [0], spawner.start, spawner.REQUEST_TIMEOUT

    def start_patiently() -> spawner.ZygoteHandle:
        # On a busy machine, starting another zygote takes long, although it does not hang.
        monkeypatch.setattr(spawner, "REQUEST_TIMEOUT", patience)
        turned.append(0)
        return start()

    monkeypatch.setattr(spawner, "REQUEST_TIMEOUT", 3.0)
    monkeypatch.setattr(spawner, "start", start_patiently)
    replicas = [ReplicaId(1, index) for index in range(10)]
    uid = harness.job()
    await harness.allocate(uid, replicas)
    bulk = (("BULK", "x" * 100_000),)
    plans = [harness.plan(uid, "sh", "-c", "echo ran", replica=r, environ=bulk) for r in replicas]
    launching = asyncio.ensure_future(harness.engine.launch(plans))
    while not launching.done():
        await asyncio.sleep(0.001)
        turned[-1] += 1
    # The engine waits for the zygote, but the event loop is not blocked. It may get the CPU late.
    assert turned[0] >= 20
    await launching
    for replica in replicas:
        assert (await harness.exit(uid, replica)).exit.exit_code == 0
        assert harness.texts(uid, replica) == ["ran"]
    assert harness.zygote() != hung
    with pytest.raises(ProcessLookupError):
        os.kill(hung, 0)
    assert not harness.ends(before)


async def test_hanging_zygote_is_replaced_when_a_shim_does_not_start(harness: EngineHarness) -> None:
    await harness.restart(lease=300.0)
    hung = harness.zygote()
    os.kill(hung, signal.SIGSTOP)
    uid = await harness.run("echo", "ran")
    # This happens after two thirds of a lease. A short lease could expire before a busy machine
    # starts the shim.
    for _ in range(2):
        harness.engine._reconciler._ping_all()  # pyright: ignore[reportPrivateUsage]
    assert (await harness.exit(uid)).exit.exit_code == 0
    assert harness.texts(uid) == ["ran"] and harness.zygote() != hung


async def test_program_starts_once_when_a_replaced_zygote_resumes(harness: EngineHarness) -> None:
    """The zygote is stopped, and continues at the moment of its replacement."""
    hung = harness.zygote()
    os.kill(hung, signal.SIGSTOP)
    replicas = [ReplicaId(1, index) for index in range(8)]
    uid = harness.job()
    await harness.allocate(uid, replicas)
    plans = [harness.plan(uid, "sh", "-c", "echo ran; sleep 0.2", replica=r) for r in replicas]
    await harness.engine.launch(plans)
    os.kill(hung, signal.SIGCONT)
    spawner = harness.engine._spawner  # pyright: ignore[reportPrivateUsage]
    await spawner._replace(spawner._handle)  # pyright: ignore[reportPrivateUsage] - as if it did not answer in time
    for replica in replicas:
        assert (await harness.exit(uid, replica)).exit.exit_code == 0
        assert harness.texts(uid, replica) == ["ran"]


async def test_replica_end_is_reported_even_if_the_first_check_of_its_directory_fails(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, for example. The service checks the slot again and does not forget the replica."""
    look = slot_handle.probe_slot
    refusals = iter([OSError(errno.ENOSPC, "no space left")])

    def refusing(slot: Path, incarnation: int) -> slot_handle.Finding:
        for refusal in refusals:
            raise refusal
        return look(slot, incarnation)

    monkeypatch.setattr(engine, "probe_slot", refusing)
    monkeypatch.setattr(engine, "_RETRY_INTERVAL", 0.01)
    uid = await start_sleeping_job(harness)
    os.kill(harness.shim(uid)["shim"], signal.SIGKILL)
    assert isinstance(await harness.end(uid), ReplicaLost)


async def test_stop_order_ends_the_program_even_if_the_order_cannot_be_recorded(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running program may be filling the disk. The caller retries until nothing can start any more."""
    refusals = iter([OSError(errno.ENOSPC, "no space left")])
    mark_stopped = Layout.mark_stopped

    def refusing(self: Layout, job_uid: JobUid, attempt: int) -> None:
        for refusal in refusals:
            raise refusal
        mark_stopped(self, job_uid, attempt)

    monkeypatch.setattr(Layout, "mark_stopped", refusing)
    uid = await start_sleeping_job(harness)
    with pytest.raises(EngineUnavailable, match="free disk space"):
        await harness.engine.stop(uid, 1, SECOND)
    assert (await harness.exit(uid)).exit.signal == signal.SIGTERM
    await harness.engine.stop(uid, 1, SECOND)


LOST_CAUSE = "its shim did not answer for 4 s; it was killed, and its program with it"


async def test_silent_shim_is_killed_and_its_replica_is_reported_lost(
    harness: EngineHarness, mark: str
) -> None:
    uid = await harness.run("sh", "-c", f"echo up; sleep 60; : {mark}")
    other = await start_sleeping_job(harness)
    await harness.line(uid, lambda text: text == "up")
    begin = asyncio.get_running_loop().time()
    # The short lease starts only now: a busy machine may take longer to start the programs.
    await harness.restart(lease=4.0)
    os.kill(harness.shim(uid)["shim"], signal.SIGSTOP)
    assert await harness.end(uid) == ReplicaLost(1, PRIMARY, 1, LOST_CAUSE)
    assert asyncio.get_running_loop().time() - begin >= 4
    assert not commands(mark) and not harness.ends(other)
    await harness.restart(lease=300.0)
    await harness.engine.launch([harness.plan(uid, "echo", "again", incarnation=2)])
    assert (await harness.exit(uid, incarnation=2)).exit.exit_code == 0


async def test_launch_not_started_within_its_lease_is_reported_lost(harness: EngineHarness) -> None:
    """A shim that receives the launch later detects that the service no longer waits for it."""
    await harness.restart(lease=300.0)
    (shim, _), *_ = await idle_shims(harness)
    os.kill(shim, signal.SIGSTOP)
    uid = await harness.run("echo", "first")
    # The shim has the order when the zygote has forked another one. The zygote is replaced after two polls.
    await until(lambda: len(shims(harness.zygote())) > spawner.POOL)
    for _ in range(4):
        harness.engine._reconciler._ping_all()  # pyright: ignore[reportPrivateUsage]
    assert await harness.end(uid) == ReplicaLost(1, PRIMARY, 1, "no shim came up for it within 300 s")
    os.kill(shim, signal.SIGCONT)
    await asyncio.to_thread(wait_until_gone, [shim])
    await harness.engine.launch([harness.plan(uid, "echo", "second", incarnation=2)])
    assert (await harness.exit(uid, incarnation=2)).exit.exit_code == 0
    assert harness.texts(uid) == ["second"]
