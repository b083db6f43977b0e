"""The two placement modes of a remote engine: either the service's scheduler chooses the nodes of a gang, or
the cluster chooses them. A placement mode creates and changes the records of gangs, and acquires their
allocations."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar

from trainshed.core.names import JobUid
from trainshed.engines.port import SlotRequest
from trainshed_cluster.remote.agents import Agents
from trainshed_cluster.remote.cluster import Allocation, ClusterUnavailable, Owner
from trainshed_cluster.remote.concurrency import run_all_or_cancel
from trainshed_cluster.remote.gang import Gang, GangRecord, allocation_name, include_pending
from trainshed_cluster.remote.idle_allocations import IdleAllocations
from trainshed_cluster.remote.needs import move_replicas, new_record, with_chosen_nodes

_ALLOCATION_TIMEOUT = 600.0
"""Maximum seconds to keep granted allocations while another allocation of the same attempt is pending."""


class Placement(ABC):
    """A placement mode of a remote engine."""

    #: Whether the cluster chooses the nodes.
    is_by_cluster: ClassVar[bool]

    def __init__(self, agents: Agents, idle: IdleAllocations) -> None:
        self._agents = agents
        self._idle = idle
        self._attempts = agents.attempts
        self._cluster = agents.cluster
        self._nodes = agents.nodes
        self._options = agents.options

    def new_record(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest], owner: Owner
    ) -> GangRecord:
        """Create the first record of an attempt. It contains the attempt's replicas and needs."""
        return new_record(
            job_uid,
            attempt,
            requests,
            self._nodes.by_name(),
            lease=self._options.lease,
            owner=owner,
            anywhere=self.is_by_cluster,
            apart=self._options.apart,
        )

    def move(self, gang: Gang, requests: Sequence[SlotRequest]) -> GangRecord:
        """Return the record of a gang in which the replicas of `requests` are on the requested nodes."""
        nodes, apart = self._nodes.by_name(), self._options.apart
        return move_replicas(gang, requests, nodes, anywhere=self.is_by_cluster, apart=apart)

    @abstractmethod
    def require(self, requests: Iterable[SlotRequest]) -> None:
        """Raise an error if a requested node is not available: EngineUnavailable if it may become available,
        LaunchRejected if the cluster does not list it."""

    @abstractmethod
    def requests_to_renew(
        self, gang: Gang, moving: Sequence[SlotRequest], requests: Iterable[SlotRequest]
    ) -> list[SlotRequest]:
        """Return the requests of further replicas whose allocations must be requested again because some
        replicas move. `moving`: the requests of the replicas that move. `requests`: the requests of all
        replicas."""

    @abstractmethod
    async def acquire(self, gang: Gang) -> dict[int, Allocation]:
        """Acquire allocations of a gang before its agents start. Returns the acquired allocations by number.
        Raises EngineUnavailable, ClusterRefused, ClusterUnavailable."""


class SchedulerPlacement(Placement):
    """The service's scheduler chooses the nodes. Each allocation is acquired just before its agents start."""

    is_by_cluster = False

    def require(self, requests: Iterable[SlotRequest]) -> None:
        self._nodes.require(requests)

    def requests_to_renew(
        self, gang: Gang, moving: Sequence[SlotRequest], requests: Iterable[SlotRequest]
    ) -> list[SlotRequest]:
        return include_pending(gang, moving, requests)

    async def acquire(self, gang: Gang) -> dict[int, Allocation]:
        await self._idle.adopt(gang)
        return {}


class ClusterPlacement(Placement):
    """The cluster chooses the nodes. The requested nodes are only preferences."""

    is_by_cluster = True

    def require(self, requests: Iterable[SlotRequest]) -> None:
        pass

    def requests_to_renew(
        self, gang: Gang, moving: Sequence[SlotRequest], requests: Iterable[SlotRequest]
    ) -> list[SlotRequest]:
        return []

    async def acquire(self, gang: Gang) -> dict[int, Allocation]:
        """Acquire all missing allocations, and record the nodes that the cluster has chosen."""
        acquire = self._acquire_together if self._options.apart else self._acquire_in_turn
        allocations = await acquire(gang)
        async with self._attempts.lock(gang.key):
            record = gang.record
            for index, allocation in allocations.items():
                record = with_chosen_nodes(record, index, allocation.nodes)
            if record is not gang.record:
                await self._attempts.write(gang, record)
        self._attempts.report_nodes(gang, is_given=True)
        return allocations

    async def _acquire_together(self, gang: Gang) -> dict[int, Allocation]:
        """Request the allocations of all replicas at the same time, because the cluster grants them only as a
        group."""
        allocations: dict[int, Allocation] = {}
        avoid = self._nodes.not_up()

        async def acquire(index: int) -> None:
            allocations[index] = await self._acquire(gang, index, avoid)

        await run_all_or_cancel(acquire(index) for index in gang.allocations_to_acquire())
        return allocations

    async def _acquire_in_turn(self, gang: Gang) -> dict[int, Allocation]:
        """Acquire allocations one at a time. If the cluster does not grant the next allocation within the
        time limit, release the granted allocations. Otherwise two jobs with several allocations each could
        wait for each other forever."""
        allocations: dict[int, Allocation] = {}
        avoid = self._nodes.not_up()
        for index in gang.allocations_to_acquire():
            try:
                async with asyncio.timeout(_ALLOCATION_TIMEOUT if allocations else None):
                    allocations[index] = await self._acquire(gang, index, avoid)
            except TimeoutError:
                live = {slot.allocation_index for slot in gang.live_slots()}
                for granted, allocation in allocations.items():
                    if granted not in live:
                        await self._cluster.release(allocation.name)
                raise ClusterUnavailable(
                    f"the cluster granted {len(allocations)} of {len(gang.record.needs)} allocations, "
                    f"but not the next one within {_ALLOCATION_TIMEOUT:g} s; the service has released the "
                    "granted ones and requests all of them again"
                ) from None
        return allocations

    async def _acquire(self, gang: Gang, index: int, avoid: Collection[str]) -> Allocation:
        name = allocation_name(self._options.identity, gang.record, index)
        needs = gang.record.needs[index]
        allocation = await self._cluster.acquire(name, needs, avoid=avoid)
        is_known = set(allocation.nodes) <= {need.node for need in needs}
        if len(allocation.nodes) < len(needs) and not is_known:
            # The cluster removed a node from the allocation before the service recorded the nodes. Release
            # the remaining nodes, so that the service requests all nodes again.
            await self._cluster.release(name)
            raise ClusterUnavailable(
                f"the cluster removed a node from the allocation {name}; the service requests all nodes again"
            )
        return allocation
