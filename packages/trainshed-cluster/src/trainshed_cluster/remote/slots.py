"""Allocates slots on a cluster's nodes. A slot is the position of a replica: its directory, address and
resources. The service acquires allocations, starts agents there, and requests the slots from the agents."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from trainshed.core.capacity import Delay, WaitReason
from trainshed.core.launch import LaunchPlan
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import (
    EngineUnavailable,
    LaunchRejected,
    Slot,
    SlotRequest,
    StartFailed,
    StillWaiting,
)
from trainshed.eventloop.background import Crew, joined
from trainshed_cluster.remote import messages
from trainshed_cluster.remote.agent_handle import AgentHandle
from trainshed_cluster.remote.agent_starter import AgentStarter
from trainshed_cluster.remote.agents import Agents
from trainshed_cluster.remote.cluster import (
    Allocation,
    AllocationName,
    ClusterRefused,
    ClusterUnavailable,
    Owner,
)
from trainshed_cluster.remote.concurrency import run_all_or_cancel
from trainshed_cluster.remote.content.library import ContentRefused, content_directories
from trainshed_cluster.remote.gang import Gang, allocation_name, finished_on, has_to_move, vacate
from trainshed_cluster.remote.idle_allocations import IdleAllocations
from trainshed_cluster.remote.placement import ClusterPlacement, Placement, SchedulerPlacement
from trainshed_cluster.remote.replica_slot import ReplicaSlot, SlotTrigger, agent_key

log = logging.getLogger(__name__)

_ALLOCATE_TIMEOUT = 5.0
"""Maximum seconds that one call of `prepare` waits. The preparation then continues, and the next call waits
for it."""
_CHECK_INTERVAL = 5.0
"""Seconds between two checks for unused allocations."""
_CONTENT_REPORT_DELAY = 2.0
"""Seconds after which a transfer of content to nodes is reported as the reason for a job's delay."""
_MAX_NODE_NAMES = 3
"""Maximum number of nodes that the report of a slow transfer lists."""


class SlotAllocator:
    """Allocates the slots (positions on nodes) of gangs' replicas. If a caller stops waiting, the preparation
    of the gang's slots continues. The next call of `prepare` waits for the same preparation."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._attempts = agents.attempts
        self._cluster = agents.cluster
        self._nodes = agents.nodes
        self._options = agents.options
        self._preparing: dict[tuple[JobUid, int], asyncio.Task[None]] = {}
        self.idle = IdleAllocations(agents)
        placement = ClusterPlacement if agents.options.anywhere else SchedulerPlacement
        self.placement: Placement = placement(agents, self.idle)
        self._starter = AgentStarter(agents, self.placement)
        self._tasks = Crew()

    def start(self) -> None:
        """Start to release unused allocations, and to free the slots of replicas on failed nodes. Call this
        after the first report of the cluster, and before agents connect."""
        self._tasks.keep(self._release_strays, "releasing allocations without an attempt")
        self._tasks.keep(self._vacate_nodes, "vacating slots on failed nodes")

    async def close(self) -> tuple[AllocationName, ...]:
        """Stop all tasks, and release the allocations of finished attempts. Returns the names of the
        allocations that the cluster did not release. The allocations of unfinished attempts continue to
        exist."""
        for task in self._preparing.values():
            task.cancel()
        await asyncio.gather(*self._preparing.values(), return_exceptions=True)
        await self.idle.close()
        await self._tasks.close()
        left = (gang for gang in self._attempts.gangs.values() if gang.is_released)
        return (*self.idle.names(), *(name for gang in left for name in self._names_of(gang)))

    async def stop_preparing(self, gang: Gang) -> None:
        if (preparing := self._preparing.get(gang.key)) is not None:
            preparing.cancel()
            await asyncio.gather(preparing, return_exceptions=True)

    async def owner(self, requests: Sequence[SlotRequest]) -> Owner:
        """Return the owner of the allocations of a gang. Raises LaunchRejected if the project has no user on
        the cluster."""
        try:
            return await self._cluster.owner(requests[0].project)
        except ClusterRefused as failure:
            raise LaunchRejected(str(failure)) from failure

    async def move(self, gang: Gang, requests: Sequence[SlotRequest]) -> None:
        """Move the replicas that are requested on another node than before. Raises EngineUnavailable if they
        cannot move now, and LaunchRejected if the cluster does not list a node."""
        await self._vacate(gang, [request.replica for request in requests if not request.is_placed])
        moving = [
            request
            for request in requests
            if request.is_placed
            and (slot := gang.record.replica_slot(request.replica))
            and has_to_move(gang, slot, request.node)
        ]
        if not moving:
            return
        self.placement.require(moving)
        movers = {request.replica for request in moving}
        if live := [str(slot.replica) for slot in gang.live_slots() if slot.replica in movers]:
            raise EngineUnavailable(f"{', '.join(live)} are still running; stop them and wait until they end")
        await self.stop_preparing(gang)
        before = gang.record
        moving += self.placement.requests_to_renew(gang, moving, requests)
        await self._attempts.write(gang, self.placement.move(gang, moving))
        for index in before.needs.keys() - gang.record.needs.keys():
            self.idle.release(self.idle.detach(gang, before, index))

    async def _vacate(self, gang: Gang, replicas: Iterable[ReplicaId]) -> None:
        """Mark the slots (positions) of these replicas as vacant, because the replicas wait for another node.
        Allocations that no replica uses any longer are released, and their agents are shut down."""
        record = vacate(gang, replicas)
        if record is gang.record:
            return
        await self.stop_preparing(gang)
        await self._attempts.write(gang, record)
        used = [slot for slot in record.replica_slots if not slot.is_vacant]
        for index in record.needs.keys() - {slot.allocation_index for slot in used}:
            self.idle.release(self.idle.detach(gang, record, index))
        unused = gang.agents.keys() - {slot.agent_key for slot in used}
        for agent in [gang.agents.pop(key) for key in unused]:
            self._tasks.begin(self._agents.dismiss(agent), "shutting down an agent")

    async def prepare(self, gang: Gang) -> None:
        """Wait for a limited time until all replicas of a gang have slots (positions on nodes). Raises
        EngineUnavailable if they are not allocated yet, and LaunchRejected or StartFailed if they can never
        be allocated."""
        if not gang.is_complete():
            gang.raise_rejection()
            preparing = self._preparing.get(gang.key)
            if preparing is None:
                preparing = self._preparing[gang.key] = joined(self._prepare(gang))
                preparing.add_done_callback(lambda done: self._end_preparing(gang, done))
            await asyncio.wait([preparing], timeout=_ALLOCATE_TIMEOUT)
            if not preparing.done():
                raise self._waiting_error(gang)
            if preparing.cancelled():
                raise EngineUnavailable(
                    "the start was cancelled, because the attempt was stopped or released"
                )
            gang.raise_rejection()
            preparing.result()

    async def provide(self, gang: Gang, plans: Sequence[LaunchPlan]) -> None:
        """Let every node fetch the content of its launch plans (environments and other directories).

        If a transfer exceeds the time limit, it continues, and the next launch waits for it. Slow transfers
        are reported as a delay. Raises EngineUnavailable, LaunchRejected.
        """
        library = self._options.library
        if library is None:
            return
        by_agent: dict[str, list[LaunchPlan]] = {}
        for plan in plans:
            slot = gang.record.replica_slot(plan.replica)
            assert slot is not None
            by_agent.setdefault(slot.agent_key, []).append(plan)
        calls: list[Awaitable[object]] = []
        for key, own in by_agent.items():
            try:
                manifest = await library.manifest(content_directories(own))
            except ContentRefused as refusal:
                raise LaunchRejected(str(refusal)) from refusal
            except OSError as failure:
                raise EngineUnavailable(
                    f"an environment or package of the programs is missing: {failure}"
                ) from failure
            agent = gang.agents[key]
            agent.granted.update(unit.path for unit in manifest.units)
            calls.append(agent.call(messages.Provide(content=manifest)))
        delay = _content_delay([gang.agents[key].node for key in by_agent])
        report = asyncio.get_running_loop().call_later(
            _CONTENT_REPORT_DELAY, self._attempts.report_delay, gang, delay
        )
        try:
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        finally:
            report.cancel()
        for outcome in outcomes:
            if isinstance(outcome, EngineUnavailable) and isinstance(outcome.__cause__, TimeoutError):
                raise StillWaiting(str(outcome)) from outcome
            if isinstance(outcome, BaseException):
                raise outcome
        self._attempts.report_delay(gang, None)

    def _names_of(self, gang: Gang) -> list[AllocationName]:
        return [allocation_name(self._options.identity, gang.record, index) for index in gang.record.needs]

    async def _release_strays(self) -> None:
        """Release allocations that belong to no attempt. A killed service left them behind, or the cluster
        granted them after their attempt had ended."""
        before: set[AllocationName] = set()
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            known = self.idle.names().union(*map(self._names_of, self._attempts.gangs.values()))
            report = self._cluster.report()
            strays = (report.agents.keys() | report.idle) - known
            for name in strays & before:
                log.warning("%s: released, because it belongs to no attempt", name)
                # If the cluster does not respond, the next round tries again.
                with contextlib.suppress(ClusterUnavailable):
                    await self._cluster.release(name)
            before = strays

    async def _vacate_nodes(self) -> None:
        """Free the slots of replicas on nodes that are not up, if no program of the replica is running. The
        replicas then wait for another node."""
        before: dict[tuple[JobUid, int], set[ReplicaId]] = {}
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            nodes = self._nodes.not_up()
            left = {
                key: finished_on(gang, nodes)
                for key, gang in self._attempts.gangs.items()
                # Skip attempts that were stopped. They are released as a whole, after the service has fetched
                # the files of failed replicas.
                if gang.record.stop_grace is None
            }
            for key in [key for key, replicas in left.items() if replicas & before.get(key, set())]:
                async with self._attempts.lock(key):
                    gang = self._attempts.gangs.get(key)
                    if gang is None or gang.record.stop_grace is not None or key in self._preparing:
                        continue
                    # Check again, because the replicas may have restarted, or the node may be up again.
                    still = finished_on(gang, self._nodes.not_up()) & before[key]
                    with contextlib.suppress(EngineUnavailable):
                        await self._vacate(gang, still)
            before = left

    def _end_preparing(self, gang: Gang, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            # Possibly no caller waits. Keep a permanent failure for the next call, which would otherwise
            # start the preparation again.
            log.info("job %s: slots are not ready: %s", gang.record.job_uid, failure)
            if isinstance(failure, LaunchRejected | StartFailed):
                gang.rejection = failure
        if self._preparing.get(gang.key) is task:
            del self._preparing[gang.key]

    def _waiting_error(self, gang: Gang) -> EngineUnavailable:
        """Return the exception for a gang whose slots are not ready yet. If the reason is known, it was
        already reported."""
        if gang.delay is not None:
            return StillWaiting(gang.delay.message)
        return EngineUnavailable(
            "the cluster has not granted all nodes, or their agents have not started yet"
        )

    async def _prepare(self, gang: Gang) -> None:
        """Acquire all allocations of a gang, start missing agents, and let the agents allocate the replicas'
        slots (directories and addresses)."""
        try:
            allocations = await self.placement.acquire(gang)
            await self._record_slots(gang, await self._ensure_agents(gang, allocations))
        except ClusterRefused as failure:
            raise LaunchRejected(str(failure)) from failure
        except ClusterUnavailable as failure:
            raise EngineUnavailable(str(failure)) from failure
        if gang.failed_starts:
            gang.failed_starts.clear()
            self._attempts.report_delay(gang, None)

    async def _ensure_agents(self, gang: Gang, allocations: Mapping[int, Allocation]) -> list[AgentHandle]:
        """Start the missing agents of a gang, and return an agent for each node with a replica.
        `allocations`: allocations that are already acquired, by number."""
        agents: list[AgentHandle] = []
        missing: list[tuple[int, str]] = []
        # Skip nodes whose replicas all wait for another node, because these nodes need no agent.
        for index, node in dict.fromkeys(
            (slot.allocation_index, slot.node) for slot in gang.record.replica_slots if not slot.is_vacant
        ):
            if gang.needs_agent(index, node):
                missing.append((index, node))
            else:
                agents.append(gang.agents[agent_key(index, node)])
        if not missing:
            return agents
        await self._starter.require_startable(gang, missing)
        fresh = await self._starter.new_agents(gang, missing)
        try:
            await run_all_or_cancel(
                self._starter.start_agents(
                    gang,
                    index,
                    allocations.get(index),
                    [agent for agent in fresh if agent.allocation_index == index],
                )
                for index in dict.fromkeys(index for index, _ in missing)
            )
        finally:
            for agent in fresh:
                if agent.is_starting:
                    # The cluster did not receive the request to start this agent. Revoke the credential of
                    # the agent, which will never connect.
                    self._agents.give_up(agent)
        return [*agents, *fresh]

    async def _record_slots(self, gang: Gang, agents: Sequence[AgentHandle]) -> None:
        """Request the missing slots (directories and addresses of replicas) from the agents, and record the
        slots. Raises EngineUnavailable if an agent cannot allocate them."""
        answers = await asyncio.gather(
            *(self._request_slots(gang, agent) for agent in agents), return_exceptions=True
        )
        slots = {slot.replica: slot for own in answers if isinstance(own, list) for slot in own}
        if slots:
            async with self._attempts.lock(gang.key):
                record = gang.record
                for before in record.replica_slots:
                    slot = slots.get(before.replica)
                    if slot is not None and slot.node == before.node:
                        _require_port(gang, before, slot)
                        after = gang.fire(before, SlotTrigger.ALLOCATED, slot=slot, port=slot.port)
                        record = record.with_replica_slot(after)
                await self._attempts.write(gang, record)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def _request_slots(self, gang: Gang, agent: AgentHandle) -> list[Slot]:
        """Let an agent allocate slots (directories and addresses) for those of its replicas that have none,
        and return the new slots."""
        missing = {entry.replica for entry in gang.replica_slots_of(agent) if entry.slot is None}
        await agent.wait_connected()
        if not missing:
            return []
        requests = tuple(replace(entry.request, port=entry.port) for entry in gang.replica_slots_of(agent))
        answer = await agent.call(messages.Allocate(requests=requests))
        if not isinstance(answer, messages.Slots):
            raise EngineUnavailable(f"the agent on node {agent.node} allocated no slots")
        return [replace(slot, node=agent.node) for slot in answer.slots if slot.replica in missing]


def _content_delay(nodes: Sequence[str]) -> Delay:
    """Return the delay to report while content is sent to these nodes."""
    more = f" and {len(nodes) - _MAX_NODE_NAMES} more" if len(nodes) > _MAX_NODE_NAMES else ""
    where = f"{', '.join(nodes[:_MAX_NODE_NAMES])}{more}"
    return Delay(WaitReason.CONTENT, f"Content of the programs is being sent to {where}")


def _require_port(gang: Gang, replica_slot: ReplicaSlot, slot: Slot) -> None:
    """Raise StartFailed if running programs would connect to an outdated port of the replica. Programs can
    resolve the replica's new address by its hostname, but they receive its port only when they start."""
    if not replica_slot.port or replica_slot.port == slot.port:
        return
    if any(other is not replica_slot for other in gang.live_slots()):
        raise StartFailed(
            f"port {replica_slot.port} of node {slot.node} is in use by another program, but the running "
            f"replicas expect {replica_slot.replica} there; a new attempt assigns new ports to all replicas"
        )
