"""A cluster that need not answer when the service starts: until it does, it is one entry of the nodes that is
GONE, with the reason, and nothing is requested from it."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Sequence

from trainshed.core.capacity import Node
from trainshed.core.held import Leftover
from trainshed.engines.port import NodeState
from trainshed.eventloop.background import Crew
from trainshed_cluster.remote.cluster import (
    Cluster,
    ClusterRefused,
    ClusterReport,
    ClusterUnavailable,
    Hold,
    HoldEnd,
    HoldName,
    NodeNeed,
    NodeReport,
    Owner,
)

log = logging.getLogger(__name__)

_START_SECONDS = 10.0
"""Seconds that a start waits for the cluster."""
_AGAIN_SECONDS = 5.0
"""Seconds between two tries to reach a cluster that did not answer."""


class AwaitedCluster:
    """A `Cluster` over another one. `kind`: what messages call it."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self._cluster = cluster
        self._kind = kind
        #: Why it has not answered yet; None = it has.
        self._unreached: str | None = "it has not answered yet"
        self._tasks = Crew()
        self._reports: asyncio.Queue[ClusterReport | None] = asyncio.Queue()

    async def start(self) -> None:
        """Start it; if it does not answer now, that is tried again. Raises ClusterRefused if it can never be
        queried."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_START_SECONDS):
                    await self._reach()
        except BaseException:
            await self._cluster.close()
            raise
        if self._unreached:
            log.warning(
                "cluster %s does not answer; jobs wait until it does: %s",
                self._kind,
                self._unreached,
            )
        self._tasks.begin(self._follow(), f"following cluster {self._kind}")

    async def close(self) -> None:
        await self._tasks.close()
        await self._cluster.close()
        self._reports.put_nowait(None)

    def report(self) -> ClusterReport:
        if self._unreached is None:
            return self._cluster.report()
        node = Node(self._kind, 0, 0, unreached=self._unreached)
        cause = f"cluster {self._kind} does not answer: {self._unreached}"
        return ClusterReport((NodeReport(node, NodeState.GONE, cause),), {}, 0.0)

    async def watch(self) -> AsyncIterator[ClusterReport]:
        while (report := await self._reports.get()) is not None:
            yield report

    def detach(self) -> None:
        self._cluster.detach()

    async def owner(self, project: str) -> Owner:
        return await self._cluster.owner(project)

    async def acquire(
        self, name: HoldName, needs: Sequence[NodeNeed], *, avoid: Collection[str] | None = None
    ) -> Hold:
        return await self._answering().acquire(name, needs, avoid=avoid)

    async def start_agent(self, hold: Hold, node: str, argv: Sequence[str], stdin: bytes) -> None:
        await self._answering().start_agent(hold, node, argv, stdin)

    async def ended(self, name: HoldName) -> HoldEnd | None:
        return None if self._unreached else await self._cluster.ended(name)

    async def ending(self, name: HoldName) -> HoldEnd | None:
        return None if self._unreached else await self._cluster.ending(name)

    async def require_answer(self, name: HoldName) -> None:
        await self._answering().require_answer(name)

    async def give_back(self, name: HoldName) -> None:
        await self._answering().give_back(name)

    async def settle(self, names: Collection[HoldName]) -> tuple[Leftover, ...]:
        return await self._cluster.settle(names)

    def _answering(self) -> Cluster:
        """Return the cluster. Raises ClusterUnavailable if it does not answer."""
        if self._unreached:
            raise ClusterUnavailable(f"cluster {self._kind} does not answer: {self._unreached}")
        return self._cluster

    async def _reach(self) -> None:
        """Try once to start it; a failure is noted in `_unreached`."""
        try:
            await self._cluster.start()
        except ClusterUnavailable as failure:
            self._unreached = str(failure)
        else:
            self._unreached = None

    async def _follow(self) -> None:
        """Follow its reports once it answers."""
        was_away = bool(self._unreached)
        while why := self._unreached:
            await asyncio.sleep(_AGAIN_SECONDS)
            try:
                await self._reach()
            except ClusterRefused as refusal:
                # It may be mended there, as rights that are missing, and jobs wait as for an answer.
                self._unreached = str(refusal)
            if self._unreached not in (None, why):
                self._reports.put_nowait(self.report())
        if was_away:
            log.info("cluster %s answers", self._kind)
            self._reports.put_nowait(self.report())
        async for report in self._cluster.watch():
            self._reports.put_nowait(report)
