"""Wraps a cluster that may be unavailable when the service starts. Until the cluster responds, the wrapper
forwards no calls to it, and reports a single node that is GONE, with the reason."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Sequence

from trainshed.core.capacity import Node
from trainshed.core.held import Leftover
from trainshed.engines.port import NodeState
from trainshed.eventloop.background import Crew
from trainshed_cluster.remote.cluster import (
    Allocation,
    AllocationEnd,
    AllocationName,
    Cluster,
    ClusterRefused,
    ClusterReport,
    ClusterUnavailable,
    NodeNeed,
    NodeReport,
    Owner,
)

log = logging.getLogger(__name__)

_START_TIMEOUT = 10.0
"""Maximum seconds for which the start of the service waits for the cluster."""
_RETRY_INTERVAL = 5.0
"""Seconds between two attempts to reach an unavailable cluster."""


class RetryingCluster:
    """A `Cluster` that forwards calls to the wrapped cluster, after that cluster has responded once. `kind`:
    name of the wrapped cluster in messages."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self._cluster = cluster
        self._kind = kind
        #: Why the cluster has not responded yet; None = it has responded.
        self._unreached: str | None = "it has not responded yet"
        self._tasks = Crew()
        self._reports: asyncio.Queue[ClusterReport | None] = asyncio.Queue()

    async def start(self) -> None:
        """Start the cluster. If it does not respond, retries in the background. Raises ClusterRefused if
        retries are useless."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_START_TIMEOUT):
                    await self._reach()
        except BaseException:
            await self._cluster.close()
            raise
        if self._unreached:
            log.warning(
                "cluster %s does not respond; jobs wait until it does: %s", self._kind, self._unreached
            )
        self._tasks.begin(self._follow(), f"watching cluster {self._kind}")

    async def close(self) -> None:
        await self._tasks.close()
        await self._cluster.close()
        self._reports.put_nowait(None)

    def report(self) -> ClusterReport:
        if self._unreached is None:
            return self._cluster.report()
        node = Node(self._kind, 0, 0, unreached=self._unreached)
        cause = f"cluster {self._kind} does not respond: {self._unreached}"
        return ClusterReport((NodeReport(node, NodeState.GONE, cause),), {}, 0.0)

    async def watch(self) -> AsyncIterator[ClusterReport]:
        while (report := await self._reports.get()) is not None:
            yield report

    def detach(self) -> None:
        self._cluster.detach()

    async def owner(self, project: str) -> Owner:
        return await self._cluster.owner(project)

    async def acquire(
        self, name: AllocationName, needs: Sequence[NodeNeed], *, avoid: Collection[str] | None = None
    ) -> Allocation:
        return await self._answering().acquire(name, needs, avoid=avoid)

    async def start_agent(self, allocation: Allocation, node: str, argv: Sequence[str], stdin: bytes) -> None:
        await self._answering().start_agent(allocation, node, argv, stdin)

    async def allocation_end(self, name: AllocationName) -> AllocationEnd | None:
        return None if self._unreached else await self._cluster.allocation_end(name)

    async def pending_end(self, name: AllocationName) -> AllocationEnd | None:
        return None if self._unreached else await self._cluster.pending_end(name)

    async def require_reachable(self, name: AllocationName) -> None:
        await self._answering().require_reachable(name)

    async def release(self, name: AllocationName) -> None:
        await self._answering().release(name)

    async def wait_durable(self, names: Collection[AllocationName]) -> tuple[Leftover, ...]:
        return await self._cluster.wait_durable(names)

    def _answering(self) -> Cluster:
        """Return the wrapped cluster. Raises ClusterUnavailable if it has not responded yet."""
        if self._unreached:
            raise ClusterUnavailable(f"cluster {self._kind} does not respond: {self._unreached}")
        return self._cluster

    async def _reach(self) -> None:
        """Try once to start the cluster. If that fails, store the reason in `_unreached`."""
        try:
            await self._cluster.start()
        except ClusterUnavailable as failure:
            self._unreached = str(failure)
        else:
            self._unreached = None

    async def _follow(self) -> None:
        """Forward the reports of the cluster after it has responded."""
        was_away = bool(self._unreached)
        while why := self._unreached:
            await asyncio.sleep(_RETRY_INTERVAL)
            try:
                await self._reach()
            except ClusterRefused as refusal:
                # Retry even after a permanent failure, because an administrator may fix the cause, for
                # example grant a missing permission. Jobs wait until then.
                self._unreached = str(refusal)
            if self._unreached not in (None, why):
                self._reports.put_nowait(self.report())
        if was_away:
            log.info("cluster %s responds again", self._kind)
            self._reports.put_nowait(self.report())
        async for report in self._cluster.watch():
            self._reports.put_nowait(report)
