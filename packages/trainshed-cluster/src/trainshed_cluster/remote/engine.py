"""Implements the engine port on a cluster's nodes: an agent on each node that an attempt holds dials this
service (docs/adr/0061).

Its records (`records`) say where each replica is and which incarnation may have started. Only agents know
what runs and how it ended; they report it again on each new connection.
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
from trainshed.engines.launch.documents import BuildPlace, Revealed, identity, revealed
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
from trainshed_cluster.remote.attempts import Attempts, never_started
from trainshed_cluster.remote.cluster import Cluster, ClusterRefused, ClusterUnavailable
from trainshed_cluster.remote.gang import AGENT_MEMORY, Gang, new_record, place
from trainshed_cluster.remote.mirror import StreamCopies
from trainshed_cluster.remote.nodes import ClusterNodes
from trainshed_cluster.remote.options import RemoteOptions
from trainshed_cluster.remote.slots import SlotMaker
from trainshed_cluster.remote.terminals import Ended, RemoteTerminal, Shown

log = logging.getLogger(__name__)

_SHELL_PATIENCE = 5.0
"""Seconds that a shell may take to open."""


class RemoteEngine(NoTerminals):
    """An `Engine` over a `Cluster`. `streams`: keeps copies of what replicas write. `here`: a local engine
    that runs no job, and describes this machine for builds. The engine owns all of them. What failed replicas
    left is not kept: it goes with their nodes."""

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
        self._slots = SlotMaker(self._agents)

    def build_place(self) -> BuildPlace:
        """See `engines.launch.documents.HasBuildPlace`: packages are installed on this machine."""
        return self._here.build_place()

    # --- the port ---

    @property
    def streams(self) -> FileStreams:
        return self._streams

    def capabilities(self) -> Capabilities:
        # Nodes are assumed to be like this machine until one has reported its capabilities.
        return replace(self._agents.capabilities or self._here.capabilities(), autopsies=False)

    async def start(self) -> None:
        await self._attempts.load()
        # This service gives it back, by the records of its attempts.
        await asyncio.to_thread((self._options.directory / HELD).unlink, missing_ok=True)
        try:
            await self._cluster.start()
        except (ClusterUnavailable, ClusterRefused) as failure:
            raise EngineUnavailable(str(failure)) from failure
        await self._here.start()
        self._agents.begin()
        self._nodes.begin()
        self._slots.begin()
        await self._agents.listen()

    async def close(self) -> None:
        self._attempts.is_closed = True
        if self._options.anywhere:
            # This keeps the request's place in the cluster's queue.
            self._cluster.detach()
        left = await self._cluster.settle(await self._slots.close())
        await asyncio.to_thread(self._write_held, left)
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
                anywhere = self._options.anywhere
                if not anywhere:
                    self._nodes.require(requests)
                nodes = self._nodes.by_name()
                owner = await self._slots.owner(requests)
                gang = Gang(
                    new_record(
                        job_uid,
                        attempt,
                        requests,
                        nodes,
                        lease=self._options.lease,
                        owner=owner,
                        anywhere=anywhere,
                        apart=self._options.apart,
                    )
                )
                await self._attempts.write(gang, gang.record)
                self._attempts.gangs[key] = gang
            else:
                await self._slots.move(gang, requests)
        await self._slots.prepare(gang)
        return gang.slots()

    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        by_gang: dict[tuple[JobUid, int], tuple[Gang, list[LaunchPlan]]] = {}
        for plan in plans:
            gang, _ = self._attempts.seat(plan.job_uid, plan.attempt, plan.replica)
            by_gang.setdefault(gang.key, (gang, []))[1].append(plan)
        for gang, own in by_gang.values():
            await self._launch(gang, own)

    async def stop(
        self, job_uid: JobUid, attempt: int, grace: int, notice: StopNotice | None = None
    ) -> None:
        gang = self._attempts.gangs.get((job_uid, attempt))
        if gang is None:
            return
        if not gang.is_complete():
            await self._slots.stop_preparing(gang)
        async with self._attempts.lock(gang.key):
            record = msgspec.structs.replace(gang.record, stopped=grace)
            for seat in record.seats:
                agent = gang.agent(seat)
                if seat.slot is None or agent is None or agent.is_gone:
                    # None of its programs runs, or ever will.
                    record = record.with_seat(never_started(seat) if not seat.launched else seat)
            await self._attempts.write(gang, record)
        agents = [agent for agent in gang.agents.values() if not agent.is_gone]
        outcomes = await asyncio.gather(
            *(agent.call(messages.Stop(grace=grace, notice=notice)) for agent in agents),
            return_exceptions=True,
        )
        for seat in gang.record.seats:
            if seat.lost and seat.lost == seat.launched:
                self._attempts.report_lost(gang, seat)
            elif (
                (agent := gang.agent(seat)) is None
                or agent.is_gone
                or (seat.slot is None and not gang.is_live(seat))
            ):
                self._attempts.report_end(gang, seat)
        for outcome in outcomes:
            # With an agent that is gone its programs are gone, too.
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
        gang, seat = self._attempts.seat(job_uid, attempt, replica)
        if incarnation > seat.launched:
            await self._forbid(gang, replica, incarnation)
        agent = gang.agent(seat)
        # An agent that has not given out a slot has nothing to stop, and would reject the call.
        if agent is not None and not agent.is_gone and seat.slot is not None:
            with contextlib.suppress(AgentGone):
                await agent.call(
                    messages.StopReplica(
                        replica=replica, incarnation=incarnation, grace=grace, notice=notice
                    )
                )
                return
            seat = gang.record.seat(replica) or seat
        if incarnation > seat.launched:
            await self._forbid(gang, replica, incarnation)
            self._attempts.report(
                gang,
                ReplicaLost(
                    attempt=attempt, replica=replica, incarnation=incarnation, cause=NEVER_STARTED
                ),
            )
        elif incarnation == seat.lost:
            self._attempts.report_lost(gang, seat)
        else:
            self._attempts.report_end(gang, seat, incarnation)

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
        await asyncio.gather(*(agent.current() for agent in agents))
        if live := [str(seat.replica) for seat in gang.record.seats if gang.is_live(seat)]:
            raise EngineUnavailable(
                f"{', '.join(live)} of job {gang.record.job_uid} still run; stop the attempt and "
                "wait for their end"
            )
        await self._slots.stop_preparing(gang)
        async with self._attempts.lock(gang.key):
            if self._attempts.gangs.get(gang.key) is not gang:
                return  # Another call has released it meanwhile.
            # Forgotten first: agents that have left cannot be asked once more whether all has ended.
            await self._attempts.delete(gang)
            try:
                await self._slots.kept.let_go(gang)
            finally:
                self._attempts.forget(gang)

    async def write_log(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, lines: Sequence[str]
    ) -> None:
        """Write lines into a live replica's log as if its program had printed them. Raises
        EngineUnavailable."""
        agent = self._agent(job_uid, attempt, replica)
        if agent is None:
            raise EngineUnavailable("the replica is over")
        await agent.call(messages.WriteLog(replica=replica, lines=tuple(lines)))

    async def readmit(self, node: str) -> None:
        """See `engines.port.KeepsQuarantine`."""
        self._nodes.readmit(node)

    @property
    def read_image(self) -> Callable[[str], Image] | None:
        """See `engines.port.BringsImages`."""
        return self._options.read_image

    @property
    def memory_beside(self) -> int:
        """See `engines.port.TakesMemory`: the memory of an agent, which serves at least one replica."""
        return AGENT_MEMORY

    async def open_terminal(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        request: TerminalRequest,
    ) -> Terminal:
        agent = self._agent(job_uid, attempt, replica)
        if agent is None:
            raise TerminalRefused("the replica is over")
        stream = secrets.token_hex(8)
        opened = self._agents.hub.expect(agent.name, stream, Shown | Ended)
        try:
            async with asyncio.timeout(_SHELL_PATIENCE):
                await agent.call(
                    messages.OpenTerminal(
                        replica=replica, incarnation=incarnation, request=request, stream=stream
                    )
                )
                return RemoteTerminal(await opened)
        except BaseException as failure:
            opened.cancel()
            if not opened.cancelled() and opened.exception() is None:
                opened.result().close()  # It came all the same.
            if isinstance(failure, EngineUnavailable | OSError):
                raise TerminalRefused(f"no shell can be had there now: {failure}") from failure
            raise

    def watch(self) -> AsyncIterator[EngineEvent]:
        return self._attempts.watch()

    # --- inside ---

    def _agent(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> AgentHandle | None:
        """Return the agent that has the replica's slot; None = no agent has it, or it is gone."""
        gang = self._attempts.gangs.get((job_uid, attempt))
        seat = gang.record.seat(replica) if gang else None
        agent = gang.agent(seat) if gang and seat else None
        return None if agent is None or agent.is_gone else agent

    def _write_held(self, left: Sequence[Leftover]) -> None:
        """Write down what may still be held, for `trainshed down`."""
        if not left:
            return
        log.warning("not given back, or not certainly: %s", ", ".join(hold.name for hold in left))
        try:
            durable.write(str(self._options.directory / HELD), held.text(left))
        except OSError as error:
            log.warning("that cannot be written down: %s", error)

    async def _launch(self, gang: Gang, plans: Sequence[LaunchPlan]) -> None:
        starting = [plan for plan in plans if not await self._is_settled(gang, plan)]
        if not starting:
            return
        # All or none: those that could start would only wait for the others.
        await self._slots.prepare(gang)
        starting = self._as_owned(gang, starting)
        shown = await revealed(starting, self._options.secrets)
        copies = StreamCopies(self._streams, *gang.key)
        lines = await asyncio.to_thread(
            lambda: {plan.replica: copies.next_line(plan.replica) for plan in starting}
        )
        await self._slots.provide(gang, starting)
        by_agent: dict[str, list[Revealed]] = {}
        for shared in shown:
            seat = gang.record.seat(shared[0].replica)
            assert seat is not None
            by_agent.setdefault(place(seat.part, seat.request.node), []).append(shared)
        # A launched program is lost with its agent, even if it never began.
        for where in by_agent:
            gang.agents[where].require_staying()
        await self._note_launched(gang, starting)
        calls = [
            gang.agents[where].call(order)
            for where, some in by_agent.items()
            for order in messages.launches(some, lines)
        ]
        for where in by_agent:
            gang.agents[where].hosts = gang.hosts()
        # A replica that moved has another address, which running programs find by its unchanged name.
        # An agent that is not connected is told when it is.
        telling = (
            agent.tell_hosts(gang.hosts())
            for agent in gang.agents.values()
            if not agent.is_gone and any(seat.launched for seat in gang.seats_of(agent))
        )
        for outcome in await asyncio.gather(*telling, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, EngineUnavailable):
                raise outcome
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def _as_owned(self, gang: Gang, plans: Sequence[LaunchPlan]) -> list[LaunchPlan]:
        """Adapt plans to nodes without the service's directories, or to another user. Raises
        LaunchRejected."""
        user = gang.record.owner.user
        if user and any(plan.software.image for plan in plans):
            # An image may contain setuid programs.
            raise LaunchRejected(
                f"jobs of this project run as user {user}, and container images are open "
                "to the service's own user alone; take one of the prebuilt runtimes"
            )
        if self._options.library is not None or user:
            # Buckets are directories of the service's user on this machine: elsewhere, and by other users,
            # they are only reached by gs://.
            return [replace(plan, buckets=()) for plan in plans]
        return list(plans)

    async def _note_launched(self, gang: Gang, plans: Sequence[LaunchPlan]) -> None:
        """Write down launches, before an agent is told of them."""
        async with self._attempts.lock(gang.key):
            record = gang.record
            for plan in plans:
                seat = record.seat(plan.replica)
                assert seat is not None
                if plan.incarnation > seat.launched:
                    record = record.with_seat(
                        msgspec.structs.replace(
                            seat, launched=plan.incarnation, identity=identity(plan)
                        )
                    )
            if record is not gang.record:
                await self._attempts.write(gang, record)

    async def _forbid(self, gang: Gang, replica: ReplicaId, incarnation: int) -> None:
        """Write down that an incarnation must never start."""
        async with self._attempts.lock(gang.key):
            seat = gang.record.seat(replica)
            if seat is not None and seat.forbidden < incarnation:
                forbidden = msgspec.structs.replace(seat, forbidden=incarnation)
                await self._attempts.write(gang, gang.record.with_seat(forbidden))

    async def _is_settled(self, gang: Gang, plan: LaunchPlan) -> bool:
        """Whether an incarnation is known to have ended or never to start; if so, report that again."""
        seat = gang.record.seat(plan.replica)
        assert seat is not None
        agent = gang.agent(seat)
        is_new = plan.incarnation > seat.launched
        if plan.incarnation == seat.lost:
            self._attempts.report_lost(gang, seat)
        elif is_new and (gang.record.stopped is not None or plan.incarnation <= seat.forbidden):
            async with self._attempts.lock(gang.key):
                never = never_started(seat, plan.incarnation)
                await self._attempts.write(gang, gang.record.with_seat(never))
            self._attempts.report_lost(gang, never)
        elif not is_new and (agent is None or agent.is_gone or seat.lost > plan.incarnation):
            self._attempts.report_end(gang, seat, plan.incarnation)
        else:
            return False
        return True
