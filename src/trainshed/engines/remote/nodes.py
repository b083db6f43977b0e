"""The nodes of a cluster as they are told to the scheduler: what the cluster says of them, and which of them
are left alone because they were found unfit."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterable
from dataclasses import replace

from trainshed.core.capacity import DelayCause
from trainshed.engines.port import (
    CapacityChanged,
    EngineUnavailable,
    LaunchRejected,
    Node,
    NodeChanged,
    NodeState,
    SlotRequest,
)
from trainshed.engines.remote.attempts import Attempts
from trainshed.engines.remote.cluster import Cluster, ClusterReport, NodeReport, is_of
from trainshed.engines.remote.gang import Gang, hold_name
from trainshed.engines.remote.options import RemoteOptions
from trainshed.engines.remote.quarantine import Quarantine
from trainshed.eventloop.background import Crew

log = logging.getLogger(__name__)

QUARANTINE = "quarantine.json"
"""File in the engine's directory: nodes that were found unfit."""
_LONGEST_WAIT = 60.0
"""Seconds after which the clock is looked at again: it may have been set."""


class ClusterNodes:
    """What a cluster's nodes have, and how they stand."""

    def __init__(self, attempts: Attempts, cluster: Cluster, options: RemoteOptions) -> None:
        self.capacity: tuple[Node, ...] = ()
        self._attempts = attempts
        self._cluster = cluster
        self._options = options
        self._states: dict[str, NodeState] = {}
        self._quarantine = Quarantine(options.directory / QUARANTINE, options.quarantine)
        self._quarantining = asyncio.Lock()
        #: A node was quarantined.
        self._quarantined = asyncio.Event()
        self._tasks = Crew()

    async def load(self) -> None:
        """What was found of nodes before. Raises EngineUnavailable."""
        try:
            await asyncio.to_thread(self._quarantine.load)
        except (OSError, ValueError) as error:
            raise EngineUnavailable(f"it is not known which nodes are unfit: {error}") from error

    def begin(self) -> None:
        """The cluster has been looked at for the first time."""
        self._take(self._cluster.report(), told=False)
        self._tasks.keep(self._follow, "hearing the cluster")
        self._tasks.keep(self._end_quarantines, "taking back nodes that were unfit")

    async def close(self) -> None:
        await self._tasks.close()

    def by_name(self) -> dict[str, Node]:
        """The nodes there are."""
        return {node.name: node for node in self.capacity}

    def require(self, requests: Iterable[SlotRequest], *, refuse: bool) -> None:
        """Raises LaunchRejected if a node is none of the cluster's, and EngineUnavailable if it is gone."""
        for request in requests:
            if silent := next(
                (one for one in self.capacity if _stands_for(one, request.node)), None
            ):
                raise EngineUnavailable(
                    f"cluster {silent.name} does not answer: {silent.unreached}"
                )
            if refuse and request.node not in self._states:
                raise LaunchRejected(
                    f"there is no node {request.node!r}; this cluster's are "
                    f"{', '.join(sorted(self._states)[:10]) or 'not known'}"
                )
            if self._states.get(request.node) is NodeState.GONE:
                raise EngineUnavailable(
                    f"node {request.node} does not answer; name another one, or wait until it is back"
                )

    def not_up(self) -> list[str]:
        """Those that take no work now."""
        return [name for name, state in self._states.items() if state is not NodeState.UP]

    async def readmit(self, node: str) -> None:
        """Let a node that was found unfit take work again. Raises EngineUnavailable."""
        async with self._quarantining:
            if self._quarantine.remove(node):
                await self._save_quarantine()

    async def leave_alone(self, node: str, cause: str, seconds: float | None = None) -> None:
        """Start nothing more there, for so many seconds; None = as long as on a node that is unfit. What runs
        there leaves. Raises EngineUnavailable."""
        log.warning("node %s: left alone: %s", node, cause)
        async with self._quarantining:
            self._quarantine.add(node, cause, self._options.now(), seconds=seconds)
            self._quarantined.set()
            await self._save_quarantine()

    async def _follow(self) -> None:
        async for report in self._cluster.watch():
            self._take(report, told=True)

    def _take(self, report: ClusterReport, *, told: bool) -> None:
        capacity = tuple(one.node for one in report.nodes)
        if capacity != self.capacity:
            self.capacity = capacity
            if told:
                self._attempts.emit(CapacityChanged(capacity))
        states = {one.node.name: self._judged(one) for one in report.nodes}
        for name, one in states.items():
            if self._states.get(name, NodeState.UP) is not one.state:
                self._attempts.emit(NodeChanged(name, one.state, one.cause))
        for name in self._states.keys() - states.keys():
            self._attempts.emit(
                NodeChanged(name, NodeState.GONE, "the cluster does not list it any more")
            )
        self._states = {name: one.state for name, one in states.items()}
        for gang in self._attempts.gangs.values():
            self._tell_delay(gang, report)

    def _tell_delay(self, gang: Gang, report: ClusterReport) -> None:
        """That the cluster has it wait, or no longer."""
        names = (hold_name(self._options.identity, gang.record, part) for part in gang.record.parts)
        delay = next((report.delays[name] for name in names if name in report.delays), None)
        if delay is not None or (gang.delay and gang.delay.cause is DelayCause.CLUSTER):
            self._attempts.report_delay(gang, delay)

    def _judged(self, one: NodeReport) -> NodeReport:
        """What the cluster says of a node, and what was found there."""
        cause = self._quarantine.cause(one.node.name)
        if one.state is NodeState.UP and cause:
            return replace(one, state=NodeState.DRAINING, cause=f"{one.node.name} is {cause}")
        return one

    async def _end_quarantines(self) -> None:
        while True:
            self._quarantined.clear()
            soonest = self._quarantine.soonest()
            left = soonest - self._options.now() if soonest else math.inf
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(max(left, 0), _LONGEST_WAIT)):
                    await self._quarantined.wait()
            async with self._quarantining:
                if over := self._quarantine.end(self._options.now()):
                    log.info("nodes taken back: %s", ", ".join(over))
                    with contextlib.suppress(
                        EngineUnavailable
                    ):  # They are over after a restart, too.
                        await self._save_quarantine()

    async def _save_quarantine(self) -> None:
        """Tell what it is now, and write it down. Raises EngineUnavailable."""
        self._take(self._cluster.report(), told=True)
        try:
            await asyncio.to_thread(self._quarantine.save)
        except OSError as error:
            raise EngineUnavailable(
                f"it cannot be written down which nodes are unfit ({error}); make room and try again"
            ) from error


def _stands_for(one: Node, node: str) -> bool:
    """Whether it is in the place of a cluster, of which the node is."""
    return bool(one.unreached) and is_of(node, one.name)
