"""The conformance suite on the remote engine, over nodes that are processes of this machine."""

import asyncio
import errno
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.e2e.processes import new_mark
from tests.engines.conformance.lab import Lab, OnTerm, Program
from tests.engines.conformance.stage import PRIMARY, SECOND, SECOND_REPLICA, Stage, hostname, run_with_stage
from tests.engines.conformance.suite import FOREVER, Conformance, terminals_of
from tests.engines.remote_lab import LEASE, RemoteLab, new_engine
from tests.isolation import needs_mounts
from tests.ports import free_port
from trainshed.core.failure.evidence import Cause
from trainshed.core.lifecycle.replica_events import ReplicaLost, ReplicaStarted
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.terminals import TerminalRefused, TerminalRequest
from trainshed.engines.port import (
    NodeChanged,
    NodesChosen,
    NodeState,
    ReplicaReport,
    Slot,
    SlotRequest,
    StartFailed,
    StartWaits,
)
from trainshed_cluster.remote import engine
from trainshed_cluster.remote.cluster import AllocationName
from trainshed_cluster.remote.engine import RemoteEngine
from trainshed_cluster.remote.lease import beat_interval, death_timeout
from trainshed_cluster.remote.mirror import StreamCopies


@needs_mounts
class TestRemote(Conformance):
    @pytest.fixture
    def lab(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lab]:
        # On a busy machine an agent may be silent for seconds, like an agent of a stopped service.
        names = ("disconnected_node", "lease_expiry", "past_the_lease", "lost_node")
        is_short = any(part in request.node.name for part in names)
        with patch.object(engine, "_SHELL_TIMEOUT", 60.0):
            yield RemoteLab(tmp_path, free_port(), lease=LEASE if is_short else 10 * LEASE)

    @run_with_stage
    async def test_replica_on_a_silent_node_is_not_started_elsewhere(self, stage: Stage) -> None:
        """spec/invariants#one-incarnation. The agent is alive but disconnected when the cluster reports the
        node as unreachable.
        """
        lab = lab_of(stage)
        uid = await stage.run(FOREVER)
        await stage.wait_for_lines(uid, 1)
        [slot] = await stage.allocate(uid)
        lab.miss_pings(slot.node, missed=True)
        await stage.wait_for_node(slot.node, NodeState.UNHEARD)
        # No agent is connected to this service, which has just read the cluster's state.
        await stage.restart()
        await asyncio.sleep(LEASE / 2)
        assert not stage.ends(uid)
        lab.miss_pings(slot.node, missed=False)
        await stage.wait_for_start(uid)
        assert len(stage.lines(uid)) == 1

    @run_with_stage
    async def test_wait_reason_of_the_cluster_is_reported(self, stage: Stage) -> None:
        lab, uid = lab_of(stage), stage.job()
        [node, *_] = await stage.nodes()

        def delays() -> list[str | None]:
            waits = [e for e in stage.events if isinstance(e, StartWaits) and e.job_uid == uid]
            return [event.delay and event.delay.message for event in waits]

        lab.cluster.mark(node, "withheld", True)
        allocating = asyncio.ensure_future(stage.allocate(uid, node=node))
        await stage.until(lambda: delays() == [f"{node} withheld"], "the reason of the wait")
        lab.cluster.mark(node, "withheld", False)
        assert await allocating
        await stage.until(lambda: delays()[1:] == [None], "the end of the wait")

    @run_with_stage
    async def test_allocation_that_no_attempt_uses_is_released(self, stage: Stage) -> None:
        """A replica had moved away, and the service was killed before it released the node."""
        lab = lab_of(stage)
        uid = await stage.run(FOREVER)
        await stage.wait_for_start(uid)
        [own] = lab.cluster.allocations()
        left = AllocationName("labs", uid, 1, 7)
        await lab.allocate_as_earlier_version(left)
        await stage.until(lambda: list(lab.cluster.allocations()) == [own], "the end of the other allocation")
        assert not stage.ends(uid)

    @run_with_stage
    async def test_disconnected_node_gets_no_new_agent(self, stage: Stage) -> None:
        """The cluster reports the node up, so the lost replica would start there again. The node's state is
        reported before the loss, so that its reader knows.
        """
        lab, uid = lab_of(stage), await stage.run(FOREVER)
        [slot] = await stage.allocate(uid)
        await stage.wait_for_start(uid)
        await stage.launch(stage.plan(uid, FOREVER))  # It is not reconnecting at the moment.
        lab.freeze(slot.node, frozen=True)
        try:
            await stage.end(uid)
        finally:
            lab.freeze(slot.node, frozen=False)
        # Once each: on a busy machine an agent that was silent for a second reports starts again.
        changes = dict.fromkeys(
            event.state if isinstance(event, NodeChanged) else type(event.event)
            for event in stage.events
            if isinstance(event, NodeChanged) or (isinstance(event, ReplicaReport) and event.job_uid == uid)
        )
        assert list(changes) == [ReplicaStarted, NodeState.QUARANTINED, ReplicaLost]
        [cause] = [event.cause for event in stage.events if isinstance(event, NodeChanged)]
        why = "its agent did not respond for 4 s, although the cluster reports the node as up"
        assert why in str(cause)
        assert isinstance(stage.engine, RemoteEngine)
        await stage.engine.readmit(slot.node)
        await stage.wait_for_node(slot.node, NodeState.UP)

    @run_with_stage
    async def test_replica_of_a_killed_agent_restarts_on_its_node(self, stage: Stage) -> None:
        """The agent is killed like an administrator's cancel of the cluster's job. The node is healthy."""
        lab = lab_of(stage)
        uid = await stage.run(Program(prints=1, runs=None))
        before = await stage.allocate(uid)
        await stage.wait_for_lines(uid, 1)
        lab.end_agents(before[0].node)
        assert isinstance(await stage.end(uid), ReplicaLost)
        await stage.launch(stage.plan(uid, FOREVER, incarnation=2))
        await stage.wait_for_start(uid, incarnation=2)
        assert await stage.allocate(uid) == before
        await stage.until(lambda: len(lab.agents_directories()) == 1, "the end of what it left")
        lab.end_agents(before[0].node)
        await stage.end(uid, incarnation=2)
        await stage.engine.stop(uid, 1, SECOND)
        await stage.engine.release(uid, 1)
        stage.forget(uid)

    @run_with_stage
    async def test_replica_ended_at_lease_expiry_is_reported_lost_once(self, stage: Stage) -> None:
        """spec/failures#losses-on-a-cluster. The service reconnects while the agent waits for the last of its
        programs. Launches then wait for the next agent, and no start fails. The cluster's state is reported
        with the end.
        """
        lab = lab_of(stage)
        slow = Program(prints=1, runs=None, on_term=OnTerm.IGNORE)
        uid, (_, second) = await stage.run_together(slow, FOREVER)
        await stage.wait_for_lines(uid, 1)
        [slot, _] = await stage.allocate(uid, PRIMARY, second)
        lab.freeze(slot.node, frozen=True)
        lab.cluster.mark(slot.node, "evicting", True)
        await asyncio.sleep(LEASE)
        lab.freeze(slot.node, frozen=False)
        end = await stage.wait_for_exit(uid, second)
        assert end.exit.stopped
        assert (end.loss, end.cause) == (Cause.POD_EVICTED, f"{slot.node} is being emptied")
        lab.cluster.mark(slot.node, "evicting", False)
        await stage.launch(stage.plan(uid, FOREVER, second, incarnation=2))
        await stage.wait_for_start(uid, second, incarnation=2)
        assert (await stage.wait_for_exit(uid)).exit.stopped
        assert not stage.ends(uid, second, incarnation=2)

    @run_with_stage
    async def test_programs_of_a_frozen_agent_end_at_lease_expiry(self, stage: Stage) -> None:
        """spec/invariants#one-incarnation. The service relies on it without a connection to the agent."""
        lab, mark = lab_of(stage), new_mark()
        program = Program(prints=1, runs=None, on_term=OnTerm.IGNORE, child=mark)
        uid = await stage.run(program)
        await stage.wait_for_lines(uid, 1)
        [slot] = await stage.allocate(uid)
        assert lab.leftovers(mark)
        lab.freeze(slot.node, frozen=True)
        try:
            assert isinstance(await stage.end(uid), ReplicaLost)
            assert not lab.leftovers(mark), "it runs on, and another one may be started"
        finally:
            lab.freeze(slot.node, frozen=False)

    @run_with_stage
    async def test_suspension_past_the_lease_is_reported_and_does_not_blame_the_node(
        self, stage: Stage
    ) -> None:
        """spec/failures#losses-on-a-cluster, like `scontrol suspend`."""
        lab, uid = lab_of(stage), await stage.run(FOREVER)
        [slot] = await stage.allocate(uid)
        await stage.wait_for_start(uid)
        lab.cluster.mark(slot.node, "suspended", True)
        lab.freeze(slot.node, frozen=True)
        try:
            end = await stage.end(uid)
        finally:
            lab.freeze(slot.node, frozen=False)
        assert isinstance(end, ReplicaLost)
        assert end.loss is Cause.CLUSTER_PREEMPTED
        last_heard = f"{slot.node} is suspended, and node {slot.node} has not responded for {LEASE:g} s"
        assert end.cause == last_heard
        assert not any(isinstance(event, NodeChanged) for event in stage.events)

    @run_with_stage
    async def test_replica_waiting_for_a_node_does_not_block_restarts_of_other_replicas(
        self, stage: Stage
    ) -> None:
        """spec/failures#maintenance. Its node is lost, and no other node is free. Its
        allocation is released.
        """
        lab, (here, there) = lab_of(stage), await stage.nodes()
        uid, both = await stage.run_together(FOREVER, FOREVER, nodes=(here, there))
        for replica in both:
            await stage.wait_for_start(uid, replica)
        [allocation] = lab.cluster.allocations()
        lab.cluster.mark(there, "withheld", True)
        lab.cluster.mark(there, "stepless", True)
        lab.end_agents(there)
        await stage.end(uid, SECOND_REPLICA)
        await stage.engine.stop_replica(uid, 1, PRIMARY, 1, 0)
        await stage.end(uid)
        waiting = [
            SlotRequest(PRIMARY, hostname(uid, PRIMARY), here),
            SlotRequest(SECOND_REPLICA, hostname(uid, SECOND_REPLICA), there, is_placed=False),
        ]
        slots = await stage.engine.allocate(uid, 1, waiting)
        assert [slot.node for slot in slots] == [here, there]
        await stage.engine.launch([stage.plan(uid, FOREVER, incarnation=2)])
        await stage.wait_for_start(uid, incarnation=2)
        # Capacity is available again: it continues on its node.
        lab.cluster.mark(there, "withheld", False)
        lab.cluster.mark(there, "stepless", False)
        await stage.allocate(uid, PRIMARY, SECOND_REPLICA, nodes=(here, there))
        await stage.launch(stage.plan(uid, FOREVER, SECOND_REPLICA, incarnation=2))
        await stage.wait_for_start(uid, SECOND_REPLICA, incarnation=2)
        assert not stage.ends(uid, incarnation=2)
        # Its new node is not requested again, although one allocation had both.
        lab.cluster.mark(there, "withheld", True)
        await lab.cluster.release(AllocationName.parse(allocation))
        await stage.end(uid, incarnation=2)
        await stage.launch(stage.plan(uid, FOREVER, incarnation=3))
        await stage.wait_for_start(uid, incarnation=3)

    @run_with_stage
    async def test_node_removed_from_an_allocation_is_requested_again(self, stage: Stage) -> None:
        """As in Slurm after a short outage of a node (`salloc --no-kill`)."""
        cluster, (here, there) = lab_of(stage).cluster, await stage.nodes()
        uid, both = await stage.run_together(FOREVER, FOREVER, nodes=(here, there))
        await stage.wait_for_start(uid, SECOND_REPLICA)
        [allocation] = cluster.allocations()
        cluster.mark(f"{allocation}@{there}", "taken", is_set=True)
        lab_of(stage).end_agents(there)
        await stage.end(uid, SECOND_REPLICA)
        await stage.allocate(uid, *both, nodes=(here, there))
        await stage.launch(stage.plan(uid, FOREVER, SECOND_REPLICA, incarnation=2))
        await stage.wait_for_start(uid, SECOND_REPLICA, incarnation=2)
        assert len(cluster.allocations()) == 2 and not stage.ends(uid)

    @run_with_stage
    async def test_moved_replica_keeps_its_port_or_does_not_start(self, stage: Stage) -> None:
        """The running peers received the old port once and connect to it. The replica keeps a port whose old
        connections are closing, but not a port of another program."""
        here, there = await stage.nodes()
        uid, before = await job_with_finished_second(stage, here)
        where = before.address, before.port
        with socket.create_server(where) as server, socket.create_connection(where) as client:
            server.accept()[0].close()
            client.recv(1)
        *_, after = await stage.allocate(uid, SECOND_REPLICA, node=there)
        assert (after.node, after.address, after.port) == (there, *where)
        uid, before = await job_with_finished_second(stage, here)
        cause = f"port {before.port} of node {there} is in use by another program"
        where = before.address, before.port
        with socket.create_server(where), pytest.raises(StartFailed, match=cause):
            await stage.allocate(uid, SECOND_REPLICA, node=there)

    @run_with_stage
    async def test_agent_retries_slowly_while_the_service_cannot_store_data(self, stage: Stage) -> None:
        """The service's disk is full. The agent's state arrives when space is available."""
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with patch.object(StreamCopies, "append", side_effect=full) as refusing:
            uid = await stage.run(FOREVER)
            await stage.until(lambda: refusing.call_count > 1, "that it is called again")
            before = refusing.call_count
            await asyncio.sleep(2)
        assert refusing.call_count < before + 8
        await stage.wait_for_lines(uid, 1)

    @run_with_stage
    async def test_restarted_service_remembers_a_replica_end_on_an_earlier_node(self, stage: Stage) -> None:
        """The agent of the earlier node has exited, and the agent of the new node has no record of the end.
        The attempt ends completely."""
        lab = lab_of(stage)
        here, there = await stage.nodes()
        uid, before = await job_with_finished_second(stage, here)
        with socket.create_server((before.address, before.port)), pytest.raises(StartFailed):
            await stage.allocate(uid, SECOND_REPLICA, node=there)
        await stage.restart()
        await stage.end_all()
        await stage.until(lambda: not lab.cluster.allocations(), "the release of all allocations")


def lab_of(stage: Stage) -> RemoteLab:
    assert isinstance(stage.lab, RemoteLab)
    return stage.lab


async def job_with_finished_second(stage: Stage, node: str) -> tuple[JobUid, Slot]:
    """A job with two replicas there. The second has ended twice, with the same slot."""
    uid = stage.job()
    _, slot = await stage.allocate(uid, PRIMARY, SECOND_REPLICA, node=node)
    await stage.engine.launch([stage.plan(uid, FOREVER)])
    await stage.wait_for_start(uid)
    for life in (1, 2):
        await stage.engine.launch([stage.plan(uid, FOREVER, SECOND_REPLICA, incarnation=life)])
        await stage.wait_for_start(uid, SECOND_REPLICA, incarnation=life)
        await stage.engine.stop_replica(uid, 1, SECOND_REPLICA, life, 0)
        await stage.end(uid, SECOND_REPLICA, incarnation=life)
    return uid, slot


@needs_mounts
def test_replica_on_a_disconnected_node_is_reported_lost_when_its_lease_expires(tmp_path: Path) -> None:
    """spec/invariants#one-incarnation. A node without power looks like a disconnected one, whose programs
    live until their agent has waited for the whole lease.
    """

    async def body(_: object, stage: Stage) -> None:
        lab = lab_of(stage)
        uid = await stage.run(Program(prints=1, runs=None))
        await stage.wait_for_lines(uid, 1)
        [slot] = await stage.allocate(uid)
        await stage.launch(stage.plan(uid, FOREVER))  # It is reachable now.
        cut = time.monotonic()
        await lab.cut_off(stage.engine, slot.node)
        try:
            await stage.wait_for_node(slot.node, NodeState.GONE)
            end = await stage.end(uid)
        finally:
            await lab.reconnect(stage.engine, slot.node)
        # It may have sent its last message just before.
        assert time.monotonic() - cut > death_timeout(LEASE) - 4 * beat_interval(LEASE)
        assert isinstance(end, ReplicaLost)
        assert (end.loss, end.cause) == (Cause.NODE_FAILED, f"node {slot.node} is gone")

    run_with_stage(body)(None, RemoteLab(tmp_path, free_port(), down_is_lost=False))


@needs_mounts
def test_silent_node_does_not_delay_stops_on_other_nodes(tmp_path: Path) -> None:
    async def body(_: object, stage: Stage) -> None:
        here, there = await stage.nodes()
        uid, both = await stage.run_together(FOREVER, FOREVER, nodes=(here, there))
        for replica in both:
            await stage.wait_for_start(uid, replica)
        lab_of(stage).freeze(here, frozen=True)
        stopping = asyncio.ensure_future(stage.engine.stop(uid, 1, 0))
        try:
            # Its connection is only closed after twenty.
            async with asyncio.timeout(15):
                await stage.end(uid, SECOND_REPLICA)
        finally:
            lab_of(stage).freeze(here, frozen=False)
        await stopping

    run_with_stage(body)(None, RemoteLab(tmp_path, free_port(), lease=100 * LEASE))


@needs_mounts
def test_shell_connection_that_an_agent_rejects_fails_without_retries(tmp_path: Path) -> None:
    """The rejection must not look like a port without a listener, to which connections are retried."""

    async def body(_: object, stage: Stage) -> None:
        uid = await stage.run(FOREVER)
        await stage.wait_for_start(uid)
        shells = terminals_of(stage.engine)
        with patch.object(engine.secrets, "token_hex", return_value="one"):
            # A second waiting stream is rejected.
            for _try in range(2):
                with pytest.raises(TerminalRefused):
                    await shells.open_terminal(uid, 1, PRIMARY, 2, TerminalRequest())
                await asyncio.sleep(0)

    run_with_stage(body)(None, RemoteLab(tmp_path, free_port()))


@needs_mounts
@pytest.mark.soak
def test_attempt_keeps_its_lease_after_a_restart_with_a_shorter_lease_setting(tmp_path: Path) -> None:
    """spec/invariants#one-incarnation. The next service has a shorter lease. Programs on a lost node may live
    for the lease that they received.
    """
    port, longer = free_port(), LEASE + 4

    async def body(_: object, stage: Stage) -> None:
        lab = lab_of(stage)
        uid = await stage.run(FOREVER)
        await stage.wait_for_lines(uid, 1)
        [slot] = await stage.allocate(uid)
        await stage.close()
        lab.freeze(slot.node, frozen=True)
        stage.engine = new_engine(tmp_path, port, down_is_lost=False)
        began = time.monotonic()
        await stage.open()
        end = await stage.end(uid)
        lab.freeze(slot.node, frozen=False)
        assert isinstance(end, ReplicaLost) and end.loss is Cause.AGENT_LOST
        assert time.monotonic() - began > death_timeout(longer)

    run_with_stage(body)(None, RemoteLab(tmp_path, port, down_is_lost=False, lease=longer))


@needs_mounts
def test_cluster_that_chooses_nodes_gets_a_node_count_and_reports_the_chosen_nodes(tmp_path: Path) -> None:
    """`[engines.slurm] queue = "slurm"`."""

    async def body(_: object, stage: Stage) -> None:
        wish, chosen = await stage.nodes()

        def chosen_nodes() -> list[tuple[tuple[ReplicaId, str], ...]]:
            return [event.nodes for event in stage.events if isinstance(event, NodesChosen)]

        uid = stage.job()
        [slot] = await stage.allocate(uid, node=wish)
        assert slot.node == chosen
        # A caller without the latest state names the request, others the node. Both have the same meaning.
        assert await stage.allocate(uid, node=wish) == (slot,)
        assert await stage.allocate(uid, node=chosen) == (slot,)
        assert chosen_nodes() == [((PRIMARY, chosen),)]
        await stage.engine.launch([stage.plan(uid, FOREVER)])
        await stage.wait_for_start(uid)
        await stage.restart()
        await stage.wait_for_start(uid)
        assert chosen_nodes() == [((PRIMARY, chosen),)]
        assert await stage.allocate(uid, node=wish) == (slot,)

    run_with_stage(body)(None, RemoteLab(tmp_path, free_port(), anywhere=True, lease=10 * LEASE))
