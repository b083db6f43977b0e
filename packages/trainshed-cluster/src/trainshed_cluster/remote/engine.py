"""Implements the engine port on the nodes of a cluster. On each node of an attempt, an agent connects to this
service (docs/adr/0061).

The records (`Attempts`) contain the node of each replica, and which of its runs (incarnations) may have
started. Only agents observe programs and their ends. On each new connection, agents report again which
programs have started and ended.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
from msgspec.structs import replace

from trainshed.core import held
from trainshed.core.capacity import Node
from trainshed.core.held import HELD, Leftover
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.records import StopNotice
from trainshed.core.lifecycle.replica_events import ReplicaLost
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.runtime import Image
from trainshed.core.terminals import NoTerminals, Terminal, TerminalRefused, TerminalRequest
from trainshed.engines.launch.documents import BuildPlace, Revealed, identity, reveal_secrets
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.port import (
    Capabilities,
    EngineEvent,
    EngineUnavailable,
    Fault,
    LaunchRejected,
    Slot,
    SlotRequest,
)
from trainshed.engines.streams import FileStreams
from trainshed.replica.protocol import NEVER_STARTED
from trainshed.replica.system import durable
from trainshed_cluster.remote import messages
from trainshed_cluster.remote.agent_handle import AgentGone, AgentHandle
from trainshed_cluster.remote.agents import Agents
from trainshed_cluster.remote.attempts import Attempts
from trainshed_cluster.remote.cluster import Cluster, ClusterRefused, ClusterUnavailable
from trainshed_cluster.remote.gang import Gang
from trainshed_cluster.remote.mirror import StreamCopies
from trainshed_cluster.remote.needs import AGENT_MEMORY
from trainshed_cluster.remote.nodes import ClusterNodes
from trainshed_cluster.remote.options import RemoteOptions
from trainshed_cluster.remote.replica_slot import SlotTrigger
from trainshed_cluster.remote.slots import SlotAllocator
from trainshed_cluster.remote.terminals import Ended, RemoteTerminal, Shown

log = logging.getLogger(__name__)

_SHELL_TIMEOUT = 5.0
"""Time limit in seconds for opening a shell."""


class RemoteEngine(NoTerminals):
    """An `Engine` on the nodes of a `Cluster`. When the engine is closed, it also closes its arguments. The
    files of failed replicas are deleted together with their nodes' allocations.

    Args:
        cluster: The cluster that runs the agents.
        streams: Stores copies of the replicas' output.
        options: The options of the engine.
        here: A local engine that runs no jobs and describes this machine for builds.
    """

    def __init__(
        self, cluster: Cluster, streams: FileStreams, options: RemoteOptions, here: LocalEngine
    ) -> None:
        self._cluster = cluster
        self._streams = streams
        self._options = options
        self._here = here
        self._attempts = Attempts(options.directory / "attempts")
        self._nodes = ClusterNodes(self._attempts, cluster, options)
        self._agents = Agents(self._attempts, cluster, self._nodes, streams, options)
        self._slots = SlotAllocator(self._agents)

    def build_place(self) -> BuildPlace:
        """Return the place where the service installs packages: this machine, not a node
        (`engines.launch.documents.HasBuildPlace`)."""
        return self._here.build_place()

    # --- the port ---

    @property
    def streams(self) -> FileStreams:
        return self._streams

    def capabilities(self) -> Capabilities:
        # Until an agent has reported the capabilities of its node, assume that nodes have this machine's
        # capabilities.
        return replace(self._agents.capabilities or self._here.capabilities(), autopsies=False)

    async def start(self) -> None:
        await self._attempts.load()
        # `HELD` lists allocations for `trainshed down` to release. From now on, this service releases them.
        await asyncio.to_thread((self._options.directory / HELD).unlink, missing_ok=True)
        try:
            await self._cluster.start()
        except (ClusterUnavailable, ClusterRefused) as failure:
            raise EngineUnavailable(str(failure)) from failure
        await self._here.start()
        self._agents.start()
        self._nodes.start()
        self._slots.start()
        await self._agents.listen()

    async def close(self) -> None:
        self._attempts.is_closed = True
        if self._options.anywhere:
            # Pending requests keep their positions in the cluster's queue.
            self._cluster.detach()
        left = await self._cluster.wait_durable(await self._slots.close())
        await asyncio.to_thread(self._record_leftovers, left)
        await self._nodes.close()
        await self._agents.close()
        await self._attempts.close()
        await self._cluster.close()
        await self._here.close()

    async def capacity(self) -> tuple[Node, ...]:
        return self._nodes.capacity

    async def allocate(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        key = job_uid, attempt
        async with self._attempts.lock(key):
            gang = self._attempts.gangs.get(key)
            if gang is None:
                placement = self._slots.placement
                placement.require(requests)
                owner = await self._slots.owner(requests)
                gang = Gang(placement.new_record(job_uid, attempt, requests, owner))
                await self._attempts.write(gang, gang.record)
                self._attempts.gangs[key] = gang
            else:
                await self._slots.move(gang, requests)
        await self._slots.prepare(gang)
        return gang.slots()

    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        by_gang: dict[tuple[JobUid, int], tuple[Gang, list[LaunchPlan]]] = {}
        for plan in plans:
            gang, _ = self._attempts.replica_slot(plan.job_uid, plan.attempt, plan.replica)
            by_gang.setdefault(gang.key, (gang, []))[1].append(plan)
        for gang, own in by_gang.values():
            await self._launch(gang, own)

    async def stop(self, job_uid: JobUid, attempt: int, grace: int, notice: StopNotice | None = None) -> None:
        gang = self._attempts.gangs.get((job_uid, attempt))
        if gang is None:
            return
        if not gang.is_complete():
            await self._slots.stop_preparing(gang)
        async with self._attempts.lock(gang.key):
            record = msgspec.structs.replace(gang.record, stop_grace=grace)
            for replica_slot in record.replica_slots:
                agent = gang.agent(replica_slot)
                is_unreachable = replica_slot.slot is None or agent is None or agent.is_gone
                if is_unreachable and not replica_slot.launched:
                    rejected = gang.fire(replica_slot, SlotTrigger.REJECTED, launched=1)
                    record = record.with_replica_slot(rejected)
            await self._attempts.write(gang, record)
        agents = [agent for agent in gang.agents.values() if not agent.is_gone]
        outcomes = await asyncio.gather(
            *(agent.call(messages.Stop(grace=grace, notice=notice)) for agent in agents),
            return_exceptions=True,
        )
        for replica_slot in gang.record.replica_slots:
            if replica_slot.lost and replica_slot.lost == replica_slot.launched:
                self._attempts.report_lost(gang, replica_slot)
            elif (
                (agent := gang.agent(replica_slot)) is None
                or agent.is_gone
                or (replica_slot.slot is None and not gang.is_live(replica_slot))
            ):
                self._attempts.report_end(gang, replica_slot)
        for outcome in outcomes:
            # Ignore AgentGone: if an agent is lost, its programs are lost as well and need not be stopped.
            if isinstance(outcome, BaseException) and not isinstance(outcome, AgentGone):
                raise outcome

    async def stop_replica(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        grace: int,
        *,
        notice: StopNotice | None = None,
    ) -> None:
        gang, replica_slot = self._attempts.replica_slot(job_uid, attempt, replica)
        if incarnation > replica_slot.launched:
            await self._forbid(gang, replica, incarnation)
        agent = gang.agent(replica_slot)
        # An agent that has not allocated the replica's slot (its directory and address) would reject the
        # order.
        if agent is not None and not agent.is_gone and replica_slot.slot is not None:
            with contextlib.suppress(AgentGone):
                await agent.call(
                    messages.StopReplica(replica=replica, incarnation=incarnation, grace=grace, notice=notice)
                )
                return
            replica_slot = gang.record.replica_slot(replica) or replica_slot
        if incarnation > replica_slot.launched:
            await self._forbid(gang, replica, incarnation)
            self._attempts.report(
                gang,
                ReplicaLost(attempt=attempt, replica=replica, incarnation=incarnation, cause=NEVER_STARTED),
            )
        elif incarnation == replica_slot.lost:
            self._attempts.report_lost(gang, replica_slot)
        else:
            self._attempts.report_end(gang, replica_slot, incarnation)

    async def inject(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, fault: Fault
    ) -> None:
        agent = self._agent(job_uid, attempt, replica)
        if agent is None:
            return
        await agent.call(messages.Inject(replica=replica, incarnation=incarnation, fault=fault))

    async def allocations(self) -> tuple[tuple[JobUid, int], ...]:
        return tuple(self._attempts.gangs)

    async def release(self, job_uid: JobUid, attempt: int) -> None:
        gang = self._attempts.gangs.get((job_uid, attempt))
        if gang is None:
            return
        gang.is_released = True
        agents = [agent for agent in gang.agents.values() if not agent.is_gone]
        await asyncio.gather(*(agent.wait_current() for agent in agents))
        if live := [str(slot.replica) for slot in gang.live_slots()]:
            raise EngineUnavailable(
                f"{', '.join(live)} of job {gang.record.job_uid} still run; stop the attempt and "
                "wait until they end"
            )
        await self._slots.stop_preparing(gang)
        async with self._attempts.lock(gang.key):
            if self._attempts.gangs.get(gang.key) is not gang:
                # Do nothing: a concurrent call has released the attempt.
                return
            # Delete the record before the agents shut down. A record without agents would be useless: no
            # agent could report the ends of programs again.
            await self._attempts.delete(gang)
            try:
                await self._slots.idle.retire(gang)
            finally:
                self._attempts.forget(gang)

    async def write_log(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, lines: Sequence[str]
    ) -> None:
        """Append lines to the log of a running replica as if its program had printed them. Raises
        EngineUnavailable if the replica has ended."""
        agent = self._agent(job_uid, attempt, replica)
        if agent is None:
            raise EngineUnavailable(f"cannot write to the log of {replica}, because the replica has ended")
        await agent.call(messages.WriteLog(replica=replica, lines=tuple(lines)))

    async def readmit(self, node: str) -> None:
        """Release a node from quarantine before its time (`engines.port.KeepsQuarantine`)."""
        self._nodes.readmit(node)

    @property
    def read_image(self) -> Callable[[str], Image] | None:
        """The function that reads the configuration of a job's container image; None = the cluster does not
        pull jobs' images (`engines.port.BringsImages`)."""
        return self._options.read_image

    @property
    def memory_beside(self) -> int:
        """Maximum memory of the engine's own processes per replica, in bytes (`engines.port.TakesMemory`). It
        is the memory of one agent, because in the worst case each agent serves only one replica."""
        return AGENT_MEMORY

    async def open_terminal(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, request: TerminalRequest
    ) -> Terminal:
        agent = self._agent(job_uid, attempt, replica)
        if agent is None:
            raise TerminalRefused("the replica has ended")
        stream = secrets.token_hex(8)
        opened = self._agents.hub.expect(agent.name, stream, Shown | Ended)
        try:
            async with asyncio.timeout(_SHELL_TIMEOUT):
                await agent.call(
                    messages.OpenTerminal(
                        replica=replica, incarnation=incarnation, request=request, stream=stream
                    )
                )
                return RemoteTerminal(await opened)
        except BaseException as failure:
            opened.cancel()
            if not opened.cancelled() and opened.exception() is None:
                opened.result().close()  # Close the stream, which was opened despite the failure.
            if isinstance(failure, EngineUnavailable | OSError):
                raise TerminalRefused(f"cannot open a shell in the replica now: {failure}") from failure
            raise

    def watch(self) -> AsyncIterator[EngineEvent]:
        return self._attempts.watch()

    # --- internals ---

    def _agent(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> AgentHandle | None:
        """Return the agent that runs the replica in its slot; None = the replica has no agent, or the agent
        is gone."""
        gang = self._attempts.gangs.get((job_uid, attempt))
        replica_slot = gang.record.replica_slot(replica) if gang else None
        agent = gang.agent(replica_slot) if gang and replica_slot else None
        return None if agent is None or agent.is_gone else agent

    def _record_leftovers(self, left: Sequence[Leftover]) -> None:
        """Store the allocations that may still exist when this service has ended, so that `trainshed down`
        can release them."""
        if not left:
            return
        log.warning("possibly not released: %s", ", ".join(allocation.name for allocation in left))
        try:
            durable.write(str(self._options.directory / HELD), held.text(left))
        except OSError as error:
            log.warning("cannot record these allocations: %s", error)

    async def _launch(self, gang: Gang, plans: Sequence[LaunchPlan]) -> None:
        starting = [plan for plan in plans if not await self._is_settled(gang, plan)]
        if not starting:
            return
        # Prepare the positions (slots) of all replicas on the nodes before any program starts. A program that
        # started earlier would only wait for its peers.
        await self._slots.prepare(gang)
        starting = self._adapt_plans(gang, starting)
        shown = await reveal_secrets(starting, self._options.secrets)
        copies = StreamCopies(self._streams, *gang.key)
        lines = await asyncio.to_thread(
            lambda: {plan.replica: copies.next_line(plan.replica) for plan in starting}
        )
        await self._slots.provide(gang, starting)
        by_agent: dict[str, list[Revealed]] = {}
        for shared in shown:
            slot = gang.record.replica_slot(shared[0].replica)
            assert slot is not None
            by_agent.setdefault(slot.agent_key, []).append(shared)
        # If an agent ends after the launch is recorded, the program counts as lost even if it never started.
        # Therefore first check that no agent is ending.
        for key in by_agent:
            gang.agents[key].require_not_ending()
        await self._record_launches(gang, starting)
        calls = [
            gang.agents[key].call(order)
            for key, own in by_agent.items()
            for order in messages.launches(own, lines)
        ]
        for key in by_agent:
            gang.agents[key].hosts = gang.hosts()
        # A replica that moved has a new address, so send all addresses to the agents. Peers resolve the new
        # address by the same hostname. Disconnected agents receive the addresses on their next connection.
        updates = (
            agent.send_hosts(gang.hosts())
            for agent in gang.agents.values()
            if not agent.is_gone and any(slot.launched for slot in gang.replica_slots_of(agent))
        )
        for outcome in await asyncio.gather(*updates, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, EngineUnavailable):
                raise outcome
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def _adapt_plans(self, gang: Gang, plans: Sequence[LaunchPlan]) -> list[LaunchPlan]:
        """Return copies of launch plans, for the nodes and the user of the gang. The copies have no
        references to directories that do not exist on the nodes or that this user cannot access. Raises
        LaunchRejected if a program cannot run on the nodes as this user."""
        user = gang.record.owner.user
        if user and any(plan.software.image for plan in plans):
            # The files of an image must not be readable for other users, because an image may contain setuid
            # programs.
            raise LaunchRejected(
                f"jobs of this project run as user {user}, but container images are only available "
                "to the service's own user; use one of the prebuilt runtimes"
            )
        if self._options.library is not None or user:
            # In launch plans, buckets are directories of the service's user on this machine. Other machines
            # and users can only use gs:// URLs.
            return [replace(plan, buckets=()) for plan in plans]
        return list(plans)

    async def _record_launches(self, gang: Gang, plans: Sequence[LaunchPlan]) -> None:
        """Record that runs of replicas (incarnations) are launched, before the agents receive the orders."""
        async with self._attempts.lock(gang.key):
            record = gang.record
            for plan in plans:
                replica_slot = record.replica_slot(plan.replica)
                assert replica_slot is not None
                if plan.incarnation > replica_slot.launched:
                    launched = gang.fire(
                        replica_slot, SlotTrigger.LAUNCHED, launched=plan.incarnation, identity=identity(plan)
                    )
                    record = record.with_replica_slot(launched)
            if record is not gang.record:
                await self._attempts.write(gang, record)

    async def _forbid(self, gang: Gang, replica: ReplicaId, incarnation: int) -> None:
        """Record that one run of a replica (`incarnation`) must never start, even if a launch of it arrives
        later."""
        async with self._attempts.lock(gang.key):
            replica_slot = gang.record.replica_slot(replica)
            if replica_slot is not None and replica_slot.forbidden < incarnation:
                forbidden = msgspec.structs.replace(replica_slot, forbidden=incarnation)
                await self._attempts.write(gang, gang.record.with_replica_slot(forbidden))

    async def _is_settled(self, gang: Gang, plan: LaunchPlan) -> bool:
        """Return whether the planned run of a replica (its incarnation) has already ended or will never
        start. In both cases, report its end again."""
        replica_slot = gang.record.replica_slot(plan.replica)
        assert replica_slot is not None
        agent = gang.agent(replica_slot)
        is_new = plan.incarnation > replica_slot.launched
        if plan.incarnation == replica_slot.lost:
            self._attempts.report_lost(gang, replica_slot)
        elif is_new and (gang.record.stop_grace is not None or plan.incarnation <= replica_slot.forbidden):
            async with self._attempts.lock(gang.key):
                rejected = gang.fire(replica_slot, SlotTrigger.REJECTED, launched=plan.incarnation)
                await self._attempts.write(gang, gang.record.with_replica_slot(rejected))
            self._attempts.report_lost(gang, rejected)
        elif not is_new and (agent is None or agent.is_gone or replica_slot.lost > plan.incarnation):
            self._attempts.report_end(gang, replica_slot, plan.incarnation)
        else:
            return False
        return True
