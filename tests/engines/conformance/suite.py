"""Tests for all engines, run on an engine that a `Lab` builds.

    class TestMyEngine(Conformance):
        @pytest.fixture
        def lab(self, tmp_path: Path) -> Lab:
            return MyLab(tmp_path)

Tests of undeclared `Capabilities` are skipped. The suite is a single class in one file, so that the author of
an engine can read it from top to bottom.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.engines.conformance.holder import Holder
from tests.engines.conformance.lab import LabWithNodes, OnTerm, Program
from tests.engines.conformance.stage import (
    PRIMARY,
    SECOND,
    SECOND_REPLICA,
    Stage,
    numbers,
    requests_for,
    run_with_stage,
)
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost, ReplicaStarted
from trainshed.core.streams import StreamKind, StreamSource
from trainshed.core.terminals import Terminal, TerminalRequest, Terminals
from trainshed.engines.port import (
    EngineUnavailable,
    Fault,
    LaunchRejected,
    LinesWritten,
    NodeState,
    Slot,
    SlotRequest,
)

FOREVER = Program(prints=1, runs=None)


async def at_every_step(stage: Stage, trial: Callable[[Holder, int | None], Awaitable[int]]) -> None:
    """Kill an engine's process after some calls, and further processes at each step of them. `trial`: makes
    the calls and returns the number of their steps.
    """
    build = stage.lab.elsewhere()
    if build is None:
        pytest.skip("the lab cannot make the engine in another process")
    holder = Holder(build)
    try:
        steps = await trial(holder, None)
        assert steps, "the calls do nothing"
        kills = min(stage.lab.kills or steps, steps)
        for n in range(kills):
            await trial(holder, 1 + n * steps // kills)
    finally:
        holder.close()


class Conformance:
    """The tests of the suite. A binding adds the fixture `lab`."""

    # --- slots of a gang ---

    @run_with_stage
    async def test_repeated_allocation_of_a_gang_returns_the_same_slots(self, stage: Stage) -> None:
        uid = stage.job()
        slots = await stage.allocate(uid, PRIMARY, SECOND_REPLICA)
        assert [slot.replica for slot in slots] == [PRIMARY, SECOND_REPLICA]
        assert len({(slot.address, slot.port) for slot in slots}) == 2, "each can bind its own"
        assert await stage.allocate(uid, PRIMARY, SECOND_REPLICA) == slots
        assert await stage.engine.allocations() == ((uid, 1),)
        if stage.engine.capabilities().stable_hostname:
            assert [slot.host for slot in slots] == [slot.hostname for slot in slots]

    @run_with_stage
    async def test_allocation_of_a_gang_on_a_missing_node_is_rejected(self, stage: Stage) -> None:
        uid = stage.job()
        with pytest.raises(LaunchRejected):
            await stage.allocate(uid, node="no-such-node")
        stage.forget(uid)
        assert await stage.engine.allocations() == ()

    @run_with_stage
    async def test_launch_of_a_replica_without_a_slot_is_rejected_and_starts_no_program(
        self, stage: Stage
    ) -> None:
        uid, other = stage.job(), stage.job()
        await stage.allocate(uid)
        without = [(uid, SECOND_REPLICA), (other, PRIMARY)]
        for plan in (stage.plan(job, FOREVER, replica) for job, replica in without):
            with pytest.raises(LaunchRejected):
                await stage.engine.launch([stage.plan(uid, FOREVER), plan])
            with pytest.raises(LaunchRejected):
                await stage.engine.stop_replica(plan.job_uid, 1, plan.replica, 1, 0)
        await stage.for_a_while()
        assert not stage.starts(uid), "all of them or none"
        # Other operations on an attempt without slots have no effect.
        await stage.engine.stop(other, 1, 0)
        await stage.engine.inject(other, 1, PRIMARY, 1, Fault.KILL)
        await stage.engine.release(other, 1)
        assert not stage.engine.streams.open(StreamSource(other, 1, PRIMARY), StreamKind.LOG)

    @run_with_stage
    async def test_replicas_of_a_gang_start_and_end_independently(self, stage: Stage) -> None:
        uid, _ = await stage.run_together(Program(code=3), FOREVER)
        await stage.wait_for_start(uid, SECOND_REPLICA)
        assert (await stage.wait_for_exit(uid)).exit.exit_code == 3
        assert not stage.ends(uid, SECOND_REPLICA)
        with pytest.raises(EngineUnavailable):  # Slots of live replicas are not released.
            await stage.engine.release(uid, 1)
        assert await stage.engine.allocations() == ((uid, 1),)

    # --- exits ---

    @run_with_stage
    async def test_starts_and_exits_are_reported_with_exit_code_or_signal(self, stage: Stage) -> None:
        ways = [(code, None) for code in (0, 1, 134, 137, 255)]
        ways += [(None, number) for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL)]
        programs = [Program(code=code or 0, signal=number) for code, number in ways]
        uid, replicas = await stage.run_together(*programs)
        for way, replica in zip(ways, replicas, strict=True):
            end = await stage.wait_for_exit(uid, replica)
            assert (end.exit.exit_code, end.exit.signal) == way
            assert not end.exit.oom, "a SIGKILL alone is no lack of memory"
            assert 0 < end.exit.started <= end.exit.ended and not end.exit.stopped
            # A program that started before the repeated launch may be reported again.
            start, *others = dict.fromkeys(e for e in stage.events_of(uid) if e.replica == replica)
            assert isinstance(start, ReplicaStarted) and start.at == end.exit.started
            assert others == [end]

    # --- limits ---

    @run_with_stage
    async def test_out_of_memory_is_reported(self, stage: Stage) -> None:
        uid = await stage.run(Program(eats_memory=True, runs=None), memory_limit=64 << 20)
        end = await stage.wait_for_exit(uid)
        assert end.exit.oom and not end.exit.stopped

    @run_with_stage
    async def test_watchdog_ends_a_stalled_program(self, stage: Stage) -> None:
        works = Program(ticks=0.05, runs=4, code=3)  # On a busy machine it may be late.
        uid, (idle, busy) = await stage.run_together(FOREVER, works, stall_after=3 * SECOND)
        end = (await stage.wait_for_exit(uid, idle)).exit
        assert end.stalled and not end.stopped
        end = (await stage.wait_for_exit(uid, busy)).exit
        assert (end.exit_code, end.stalled) == (3, False)

    # --- repeated launches ---

    @run_with_stage
    async def test_repeated_launch_starts_the_program_once_and_repeats_the_start_report(
        self, stage: Stage
    ) -> None:
        uid = await stage.run(FOREVER)
        await stage.wait_for_start(uid)
        await stage.wait_for_lines(uid, 1)
        await stage.engine.launch([stage.plan(uid, FOREVER)])
        await stage.until(lambda: len(stage.starts(uid)) > 1, "a repeated start report")
        await stage.restart()
        await stage.launch(stage.plan(uid, FOREVER))
        await stage.wait_for_start(uid)
        await stage.for_a_while()
        assert len(stage.lines(uid)) == 1, "it was not started twice"

    @run_with_stage
    async def test_repeated_launch_of_an_ended_program_repeats_the_end_report(self, stage: Stage) -> None:
        uid = await stage.run(Program(code=4))
        await stage.wait_for_exit(uid)
        await stage.engine.launch([stage.plan(uid, Program(code=4))])
        await stage.until(lambda: len(stage.ends(uid)) > 1, "a repeated end report")
        before = len(stage.ends(uid))
        await stage.engine.stop(uid, 1, SECOND)
        await stage.until(lambda: len(stage.ends(uid)) > before, "the end report after a stop")
        assert len(set(stage.ends(uid))) == 1

    @run_with_stage
    async def test_launch_of_an_older_incarnation_after_a_restart_in_place_starts_no_program(
        self, stage: Stage
    ) -> None:
        uid = await stage.run(Program(prints=2, code=1))
        (slot,) = await stage.allocate(uid)
        await stage.wait_for_exit(uid)
        await stage.launch(stage.plan(uid, FOREVER, incarnation=2))
        await stage.wait_for_start(uid, incarnation=2)
        await stage.wait_for_lines(uid, 3)
        assert await stage.allocate(uid) == (slot,)
        await stage.launch(stage.plan(uid, FOREVER, incarnation=1))
        await stage.for_a_while()
        assert numbers(stage.lines(uid)) == [0, 1, 2], "its log continues"

    # --- stops ---

    @run_with_stage
    async def test_stop_honors_the_grace_period(self, stage: Stage) -> None:
        leaves = Program(prints=1, runs=None, on_term=OnTerm.EXIT, term_code=5)
        stays = Program(prints=1, runs=None, on_term=OnTerm.IGNORE)
        for program, grace, expected in (
            (leaves, 30 * SECOND, (5, None)),
            (stays, SECOND // 5, (None, signal.SIGKILL)),
            (FOREVER, 30 * SECOND, (None, signal.SIGTERM)),
        ):
            uid = await stage.run(program)
            await stage.wait_for_lines(uid, 1)
            await stage.engine.stop(uid, 1, grace)
            end = await stage.wait_for_exit(uid)
            assert (end.exit.exit_code, end.exit.signal) == expected
            assert end.exit.stopped

    @run_with_stage
    async def test_replica_stopped_before_its_start_never_starts(self, stage: Stage) -> None:
        uid = stage.job()
        await stage.allocate(uid)
        await stage.engine.stop(uid, 1, 0)
        end = await stage.end(uid)
        assert isinstance(end, ReplicaLost) and end.cause == "never started"
        await stage.restart()
        stage.events.clear()
        await stage.engine.launch([stage.plan(uid, FOREVER)])
        assert await stage.end(uid) == end
        await stage.for_a_while()
        assert not stage.starts(uid) and not stage.lines(uid)

    @run_with_stage
    async def test_stop_reports_the_latest_incarnation_of_each_replica(self, stage: Stage) -> None:
        uid, again = stage.job(), SECOND_REPLICA
        await stage.allocate(uid, PRIMARY, again)
        for incarnation in (1, 2):
            plan = stage.plan(uid, Program(code=incarnation), again, incarnation=incarnation)
            await stage.launch(plan)
            await stage.wait_for_exit(uid, again, incarnation=incarnation)
        before = len(stage.events_of(uid))
        await stage.engine.stop(uid, 1, 0)
        await stage.end(uid)
        await stage.until(lambda: len(stage.ends(uid, again, incarnation=2)) > 1, "the end, again")
        ends = {e for e in stage.events_of(uid)[before:] if isinstance(e, ReplicaExited | ReplicaLost)}
        assert {(e.replica, e.incarnation) for e in ends} == {(PRIMARY, 1), (again, 2)}

    @run_with_stage
    async def test_stop_of_one_replica_does_not_affect_other_replicas(self, stage: Stage) -> None:
        uid = stage.job()
        await stage.allocate(uid, PRIMARY, SECOND_REPLICA)
        gang = (PRIMARY, SECOND_REPLICA)
        await stage.engine.launch([stage.plan(uid, FOREVER, replica) for replica in gang])
        for replica in gang:
            await stage.wait_for_lines(uid, 1, replica)
        await stage.engine.stop_replica(uid, 1, SECOND_REPLICA, 1, 30 * SECOND)
        end = await stage.wait_for_exit(uid, SECOND_REPLICA)
        assert end.exit.stopped
        await stage.engine.stop_replica(uid, 1, SECOND_REPLICA, 1, 30 * SECOND)
        await stage.until(lambda: stage.ends(uid, SECOND_REPLICA) == [end, end], "the end, again")
        assert not stage.ends(uid, PRIMARY)
        await stage.engine.launch([stage.plan(uid, Program(), SECOND_REPLICA, incarnation=2)])
        assert not (await stage.wait_for_exit(uid, SECOND_REPLICA, incarnation=2)).exit.stopped

    @run_with_stage
    async def test_incarnation_stopped_before_its_launch_never_starts(self, stage: Stage) -> None:
        uid = stage.job()
        await stage.allocate(uid)
        await stage.engine.stop_replica(uid, 1, PRIMARY, 1, 0)
        end = await stage.end(uid)
        assert isinstance(end, ReplicaLost) and end.cause == "never started"
        await stage.restart()
        stage.events.clear()
        first = stage.plan(uid, Program(prints=1))
        await stage.engine.launch([first])
        assert await stage.end(uid) == end
        await stage.launch(stage.plan(uid, Program(prints=1), incarnation=2))
        assert (await stage.wait_for_exit(uid, incarnation=2)).exit.exit_code == 0
        await stage.engine.launch([first])
        await stage.until(lambda: stage.ends(uid) == [end, end], "the end of the first, again")
        assert numbers(stage.lines(uid)) == [0], "only the second ran"

    @run_with_stage
    async def test_injected_fault_affects_only_the_requested_incarnation(self, stage: Stage) -> None:
        faults = {Fault.SEGV: signal.SIGSEGV, Fault.KILL: signal.SIGKILL, Fault.OOM: signal.SIGKILL}
        uid, replicas = await stage.run_together(*(FOREVER for _ in faults))
        for (fault, number), replica in zip(faults.items(), replicas, strict=True):
            await stage.wait_for_lines(uid, 1, replica)
            await stage.engine.inject(uid, 1, replica, 2, fault)
            await stage.engine.inject(uid, 1, replica, 1, fault)
            end = await stage.end(uid, replica)
            if isinstance(end, ReplicaExited):
                assert end.exit.signal == number and not end.exit.stopped
                assert end.exit.oom is (fault is Fault.OOM)

    # --- moves ---

    @run_with_stage
    async def test_replica_moves_after_all_its_processes_have_ended(self, stage: Stage) -> None:
        nodes = await stage.nodes()
        if len(nodes) < 2:
            pytest.skip("the engine has one node")
        uid = await stage.run(FOREVER)
        (before,) = await stage.allocate(uid)
        await stage.wait_for_lines(uid, 1)
        with pytest.raises(EngineUnavailable):
            await stage.engine.allocate(uid, 1, [moved_to(before, nodes[1])])
        await stage.retry(lambda: stage.engine.stop_replica(uid, 1, PRIMARY, 1, 0))
        await stage.end(uid)
        (moved,) = await stage.allocate(uid, node=nodes[1])
        assert (moved.node, moved.hostname) == (nodes[1], before.hostname)
        await stage.launch(stage.plan(uid, Program(prints=1), incarnation=2))
        await stage.wait_for_exit(uid, incarnation=2)
        assert numbers(stage.lines(uid)) == [0, 1], "its log continues"

    @run_with_stage
    async def test_loss_is_reported_after_the_replicas_of_the_node_are_dead(self, stage: Stage) -> None:
        """Fencing: no process of the replica starts on another node before its loss is reported, and none is
        alive after the report.
        """
        lab, nodes = stage.lab, await stage.nodes()
        if not isinstance(lab, LabWithNodes) or len(nodes) < 2:
            pytest.skip("the lab cannot take a node away")
        here, there = nodes[:2]
        uid, other = await stage.run(Program(prints=1, ticks=0.05, runs=None)), stage.job()
        (before,) = await stage.allocate(uid, node=here)
        await stage.allocate(other, node=there)
        await stage.launch(stage.plan(other, FOREVER))
        await stage.wait_for_lines(uid, 2)
        await lab.cut_off(stage.engine, here)
        await stage.wait_for_node(here, NodeState.GONE, NodeState.UNHEARD)
        if not stage.ends(uid):
            with contextlib.suppress(EngineUnavailable):
                await stage.engine.allocate(uid, 1, [moved_to(before, there)])
                assert stage.ends(uid), "its end was reported first"
        assert isinstance(await stage.end(uid), ReplicaLost)
        lines = len(stage.lines(uid))
        await stage.for_a_while()
        assert len(stage.lines(uid)) == lines, "it is dead"
        (moved,) = await stage.allocate(uid, node=there)
        assert moved.hostname == before.hostname
        await stage.launch(stage.plan(uid, FOREVER, incarnation=2))
        await stage.wait_for_start(uid, incarnation=2)
        await lab.reconnect(stage.engine, here)
        await stage.wait_for_node(here, NodeState.UP)
        await stage.for_a_while()
        assert not stage.ends(uid, incarnation=2) and not stage.ends(other)
        fresh = await stage.run(Program())
        await stage.wait_for_exit(fresh)

    # --- logs ---

    @run_with_stage
    async def test_log_has_no_gaps_or_duplicates(self, stage: Stage) -> None:
        uid = await stage.run(Program(prints=500))
        await stage.wait_for_exit(uid)
        lines = stage.lines(uid)
        assert numbers(lines) == list(range(500)), "the log is complete after the report of the end"
        assert len({line["m"] for line in lines}) == 500
        times = [line["t"] for line in lines]
        assert times == sorted(set(times)), "times ascend"
        # If a program exits before its node is connected, this arrives after the exit.
        assert any(isinstance(e, LinesWritten) and e.job_uid == uid for e in stage.events)

    @run_with_stage
    async def test_log_follower_survives_a_service_restart(self, stage: Stage) -> None:
        uid = await stage.run(Program(prints=3, ticks=0.02, runs=None))
        await stage.wait_for_lines(uid, 5)
        source, seen = StreamSource(uid, 1, PRIMARY), b""
        for restarts in (True, False):
            (part,) = stage.engine.streams.open(source, StreamKind.LOG)
            seen += part.read(len(seen), part.size() - len(seen))
            if restarts:
                await stage.restart()
                await stage.wait_for_lines(uid, 10)
        await stage.engine.stop(uid, 1, 0)
        await stage.end(uid)
        (part,) = stage.engine.streams.open(source, StreamKind.LOG)
        assert part.read(0, len(seen)) == seen, "what was read once stays"
        lines = stage.lines(uid)
        assert numbers(lines) == list(range(len(lines)))

    # --- leftovers and IDs ---

    @run_with_stage
    async def test_release_removes_everything_of_an_attempt_except_its_logs(self, stage: Stage) -> None:
        mark = f"conformance-child-{time.monotonic_ns()}"
        uid = await stage.run(Program(prints=2, runs=0.3, child=mark))
        await stage.end(uid)
        await stage.until(lambda: not stage.lab.leftovers(mark), "the program's child to be ended")
        await stage.engine.release(uid, 1)
        await stage.engine.release(uid, 1)
        stage.forget(uid)
        assert await stage.engine.allocations() == ()
        streams = stage.engine.streams
        assert StreamSource(uid, 1, PRIMARY) in streams.sources(uid)
        assert numbers(stage.lines(uid)) == [0, 1]
        streams.remove(uid)
        streams.remove(uid)
        assert not streams.sources(uid) and not stage.lines(uid)

    @run_with_stage
    async def test_attempts_of_a_job_have_separate_programs_and_logs(self, stage: Stage) -> None:
        uid = await stage.run(Program(prints=1, code=1))
        await stage.wait_for_exit(uid)
        await stage.allocate(uid, attempt=2)
        await stage.engine.launch([stage.plan(uid, Program(prints=1, code=2), attempt=2)])
        assert (await stage.wait_for_exit(uid, attempt=2)).exit.exit_code == 2
        assert numbers(stage.lines(uid)) == numbers(stage.lines(uid, attempt=2)) == [0]

    @run_with_stage
    async def test_reused_job_id_shows_no_old_data(self, stage: Stage) -> None:
        """A restored database reuses a job's ID."""
        uid = await stage.run(Program(code=7))
        await stage.wait_for_exit(uid)
        await stage.engine.release(uid, 1)
        stage.events.clear()
        await stage.allocate(uid)
        await stage.engine.launch([stage.plan(uid, Program(code=8))])
        assert (await stage.wait_for_exit(uid)).exit.exit_code == 8

    # --- the service dies ---

    @run_with_stage
    async def test_programs_survive_a_service_restart(self, stage: Stage) -> None:
        runs, ends = await stage.run(FOREVER), await stage.run(Program(runs=0.2, code=6))
        await stage.wait_for_start(runs)
        await stage.wait_for_start(ends)
        slots = await stage.allocate(runs)
        await stage.restart()
        await stage.wait_for_start(runs)
        assert (await stage.wait_for_exit(ends)).exit.exit_code == 6
        assert await stage.allocate(runs) == slots
        assert set(await stage.engine.allocations()) == {(runs, 1), (ends, 1)}
        assert len(stage.lines(runs)) <= 1
        await stage.retry(lambda: stage.engine.stop(runs, 1, 30 * SECOND))
        assert (await stage.wait_for_exit(runs)).exit.signal == signal.SIGTERM

    @run_with_stage
    async def test_service_kill_at_any_step_of_a_launch_causes_exactly_one_start(self, stage: Stage) -> None:
        """Send SIGKILL to the engine's process; this one takes over."""
        (node, *_) = await stage.nodes()

        async def start(holder: Holder, step: int | None) -> int:
            uid = stage.job()
            requests = requests_for(uid, node, PRIMARY)
            steps = await stage.killed_in(holder, step, "allocate", uid, 1, requests)
            await stage.allocate(uid)
            plan = stage.plan(uid, Program(prints=1, code=9))
            steps = max(steps, await stage.killed_in(holder, step, "launch", [plan]))
            await stage.launch(plan)
            assert (await stage.wait_for_exit(uid)).exit.exit_code == 9
            assert numbers(stage.lines(uid)) == [0], f"killed at step {step}"
            return steps

        await at_every_step(stage, start)

    @run_with_stage
    async def test_stop_completes_despite_a_service_kill_at_any_step(self, stage: Stage) -> None:
        async def stop(holder: Holder, step: int | None) -> int:
            uid = await stage.run(FOREVER)
            await stage.wait_for_lines(uid, 1)
            steps = await stage.killed_in(holder, step, "stop", uid, 1, 30 * SECOND)
            await stage.retry(lambda: stage.engine.stop(uid, 1, 30 * SECOND))
            assert (await stage.wait_for_exit(uid)).exit.signal == signal.SIGTERM
            steps = max(steps, await stage.killed_in(holder, step, "release", uid, 1))
            await stage.retry(lambda: stage.engine.release(uid, 1))
            stage.forget(uid)
            assert await stage.engine.allocations() == ()
            return steps

        await at_every_step(stage, stop)

    # --- shells ---

    @run_with_stage
    async def test_shell_opens_next_to_a_running_program(self, stage: Stage) -> None:
        if not isinstance(stage.engine, Terminals):
            pytest.skip("the engine opens no shells")
        shells = terminals_of(stage.engine)
        uid = await stage.run(FOREVER)
        await stage.wait_for_lines(uid, 1)
        request = TerminalRequest(is_terminal=False, command="echo here; exit 3")
        shell = await shells.open_terminal(uid, 1, PRIMARY, 1, request)
        assert (await read_shell(stage, shell), shell.status) == (b"here\n", 3)
        assert not stage.ends(uid)

    # --- leftovers of failed replicas ---

    @run_with_stage
    async def test_files_of_a_failed_replica_are_kept_and_readable(self, stage: Stage) -> None:
        if not stage.engine.capabilities().autopsies:
            pytest.skip("the engine does not declare `autopsies`")
        uid = stage.job()
        await stage.allocate(uid, PRIMARY, SECOND_REPLICA)
        failing = Program(prints=1, leaves="a checkpoint", code=3)
        plans = [stage.plan(uid, failing), stage.plan(uid, Program(), SECOND_REPLICA)]
        await stage.engine.launch(plans)
        for replica in (PRIMARY, SECOND_REPLICA):
            await stage.wait_for_exit(uid, replica)
        await stage.engine.release(uid, 1)
        stage.forget(uid)
        for _ in range(2):
            [kept] = terminals_of(stage.engine).autopsies(uid)
            assert (kept.attempt, kept.replica, kept.incarnation) == (1, PRIMARY, 1)
            assert (kept.exit_code, kept.signal, kept.tail) == (3, None, "line 0")
            await stage.restart()
        shells = terminals_of(stage.engine)
        request = TerminalRequest(is_terminal=False, command="cat left; exit 4")
        shell = await shells.open_autopsy(uid, 1, PRIMARY, request)
        assert await read_shell(stage, shell) == b"a checkpoint" and shell.status == 4
        assert await shells.delete_autopsy(uid, 1, PRIMARY)
        assert shells.autopsies(uid) == ()
        assert not await shells.delete_autopsy(uid, 1, PRIMARY)


async def read_shell(stage: Stage, shell: Terminal) -> bytes:
    """Read a shell's output to its end."""
    seen = b""
    async with asyncio.timeout(stage.lab.patience):
        while data := await shell.read():
            seen += data
    shell.close()
    return seen


def moved_to(slot: Slot, node: str) -> SlotRequest:
    """Return a request that moves the slot's replica to a node."""
    return SlotRequest(slot.replica, slot.hostname, node)


def terminals_of(engine: object) -> Terminals:
    """Return the engine as `Terminals`."""
    assert isinstance(engine, Terminals), "an engine that declares `autopsies` has their methods"
    return engine
