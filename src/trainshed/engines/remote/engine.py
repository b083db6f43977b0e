"""The engine port over a cluster's nodes: an agent on each node that an attempt holds, which dials this
service (docs/adr/0061).

What it writes down (`records`) says which replica is where and which incarnation may have started; what runs,
and how it ended, only agents know, who tell it again after each new connection.
"""

import asyncio
import contextlib
import logging
import secrets
import sys
import time
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.events import ReplicaEvent, ReplicaLost
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.terminals import TerminalRequest
from trainshed.engines.launch.documents import BuildPlace, Revealed, identity, revealed
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.port import (
    Capabilities,
    CapacityChanged,
    EngineEvent,
    EngineUnavailable,
    Fault,
    LaunchRejected,
    LinesWritten,
    MetricsWritten,
    Node,
    NodeChanged,
    NodeState,
    ReplicaReport,
    SecretSource,
    Slot,
    SlotRequest,
)
from trainshed.engines.remote import messages
from trainshed.engines.remote.agent_handle import AgentGone, AgentHandle, Connection
from trainshed.engines.remote.channel import ChannelClosed
from trainshed.engines.remote.cluster import (
    Cluster,
    ClusterRefused,
    ClusterReport,
    ClusterUnavailable,
    Hold,
)
from trainshed.engines.remote.content.library import Library, Refused, named_by
from trainshed.engines.remote.content.manifest import Manifest
from trainshed.engines.remote.gang import Gang, hold_name, moved, new_record
from trainshed.engines.remote.hub import Hub, introductions
from trainshed.engines.remote.messages import AgentDocument, News, Order
from trainshed.engines.remote.mirror import StreamCopies, TornStream
from trainshed.engines.remote.records import GangRecord, Records, Seat, place
from trainshed.engines.remote.terminals import RemoteTerminal
from trainshed.engines.streams import FileStreams
from trainshed.engines.terminals import NoTerminals, Terminal, TerminalRefused
from trainshed.eventloop.background import Crew, joined
from trainshed.replica.protocol import NEVER_STARTED
from trainshed.replica.system import durable
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

PORT = "port"
"""File in the engine's directory: the port that agents were told last."""
_PATIENCE = 5.0
"""Seconds that one `allocate` waits; the next one goes on waiting for the same."""
_TICK = 0.5
"""Seconds between two looks at which agents are silent."""
_SETTLED = 1.0
"""Seconds by which a look at the cluster must be younger than an agent's silence, to tell about it."""
_STARTS = 3
"""Agents that are started on a node until one stays."""
_MARGIN = 5.0
"""Seconds after its lease until an agent counts as dead: its programs take their time to die."""
_LEAVING = 10.0
"""Seconds that an agent has to clean up, before its node is given back."""
_VALID = 400 * 86400.0
"""Seconds for which a credential is valid at most; it ends with its hold anyway."""

_AT_FIRST = Capabilities(
    enforced_memory=True,
    oom_verdict=True,
    process_namespace=False,
    stable_hostname=False,
    addresses="literal",
    durable=True,
    terminals=True,
)
"""What is told where nothing is known of any machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """What an operator, and the service, may choose."""

    #: Tells this service from others that use the cluster.
    identity: str
    #: Where the engine's own files lie.
    directory: Path
    #: Seconds without a word of the service after which an agent ends its programs.
    lease: float
    #: What every agent is told; its credential, job, node and address are filled in.
    agent: Callable[..., AgentDocument]
    #: From an agent's document to the command that starts it, and what that is given on its standard input.
    command: Callable[[bytes], tuple[Sequence[str], bytes]]
    #: What launch plans refer to; None = they may name none.
    secrets: SecretSource | None = None
    #: The service's directories are seen on nodes, at the same paths.
    shares_files: bool = True
    #: Seconds since the epoch.
    now: Callable[[], float] = time.time
    #: What nodes are sent that do not see the service's files; None = they see them.
    library: Library | None = None


def module_command(document: bytes) -> tuple[Sequence[str], bytes]:
    """For nodes that see this Python and this package where they are here."""
    return (sys.executable, "-m", "trainshed.engines.remote.agent"), document


class RemoteEngine(NoTerminals):
    """`streams`: where copies of what replicas write are kept. `new_hub`: makes the hub, which is told by
    this engine whom it admits. `here`: a local engine that runs no job; it knows what this machine is to
    builds. The engine owns all of them."""

    def __init__(
        self,
        cluster: Cluster,
        streams: FileStreams,
        options: RemoteOptions,
        new_hub: "Callable[[RemoteEngine], Hub[Order, News]]",
        *,
        here: LocalEngine | None = None,
    ) -> None:
        self._cluster = cluster
        self._streams = streams
        self._options = options
        self._records = Records(options.directory / "attempts")
        self._hub = new_hub(self)
        self._here = here
        self._gangs: dict[tuple[JobUid, int], Gang] = {}
        #: By the name in its certificate: every agent that may connect.
        self._agents: dict[str, AgentHandle] = {}
        self._preparing: dict[tuple[JobUid, int], asyncio.Task[None]] = {}
        self._locks: dict[tuple[JobUid, int], asyncio.Lock] = {}
        self._nodes: dict[str, NodeState] = {}
        self._capacity: tuple[Node, ...] = ()
        self._capabilities = _AT_FIRST
        self._events: deque[EngineEvent] = deque()
        self._wake = asyncio.Event()
        self._tasks = Crew()
        self._writing: set[asyncio.Task[None]] = set()
        self._closed = False

    def build_place(self) -> BuildPlace:
        """As `engines.launch.documents.HasBuildPlace` says: packages are installed on this machine."""
        if self._here is None:
            raise EngineUnavailable("packages are not installed by this engine")
        return self._here.build_place()

    # --- the port ---

    @property
    def streams(self) -> FileStreams:
        return self._streams

    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def start(self) -> None:
        for record in await asyncio.to_thread(lambda: list(self._records.load())):
            gang = self._gangs[record.job_uid, record.attempt] = Gang(record)
            for where, start in record.agents.items():
                part, node = where.split("/", 1)
                self._add_agent(gang, int(part), node, start)
            for seat in record.seats:
                if seat.lost and seat.lost == seat.launched:
                    self._report_lost(gang, seat)
        try:
            await self._cluster.start()
        except ClusterUnavailable as failure:
            raise EngineUnavailable(str(failure)) from failure
        if self._here is not None:
            await self._here.start()
            # Nodes are like this machine, until one has told of itself.
            self._capabilities = self._here.capabilities()
        self._take(self._cluster.report(), told=False)
        await self._listen()
        self._tasks.keep(self._follow, "hearing the cluster")
        self._tasks.keep(self._look_round, "looking after agents")

    async def close(self) -> None:
        self._closed = True
        for task in self._preparing.values():
            task.cancel()
        await asyncio.gather(*self._preparing.values(), return_exceptions=True)
        await self._tasks.close()
        await asyncio.gather(*self._writing, return_exceptions=True)
        await self._hub.close()
        await self._cluster.close()
        if self._here is not None:
            await self._here.close()
        self._wake.set()

    async def capacity(self) -> tuple[Node, ...]:
        return self._capacity

    async def allocate(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        key = job_uid, attempt
        async with self._lock(key):
            gang = self._gangs.get(key)
            if gang is None:
                self._require_nodes(requests, refuse=True)
                gang = Gang(new_record(job_uid, attempt, requests, self._by_name()))
                await self._write(gang, gang.record)
                self._gangs[key] = gang
            else:
                await self._move(gang, requests)
        await self._prepared(gang)
        return gang.slots()

    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        for key in dict.fromkeys((plan.job_uid, plan.attempt) for plan in plans):
            gang = self._gangs.get(key)
            own = [plan for plan in plans if (plan.job_uid, plan.attempt) == key]
            for plan in own:
                seat = gang.record.seat(plan.replica) if gang else None
                if gang is None or seat is None or seat.slot is None:
                    raise LaunchRejected(
                        f"{plan.replica} of job {plan.job_uid}, attempt {plan.attempt}, has no slot; "
                        "allocate first"
                    )
            assert gang is not None
            await self._launch(gang, own)

    async def stop(self, job_uid: JobUid, attempt: int, grace: int) -> None:
        gang = self._gangs.get((job_uid, attempt))
        if gang is None:
            return
        if (preparing := self._preparing.get(gang.key)) is not None and not gang.is_complete():
            preparing.cancel()
            await asyncio.gather(preparing, return_exceptions=True)
        async with self._lock(gang.key):
            record = msgspec.structs.replace(gang.record, stopped=grace)
            for seat in record.seats:
                agent = gang.agent(seat)
                if seat.slot is None or agent is None or agent.is_gone:
                    # Nothing of it runs, and nothing more will.
                    record = record.with_seat(_never(seat) if not seat.launched else seat)
            await self._write(gang, record)
        failures: list[EngineUnavailable] = []
        for agent in tuple(gang.agents.values()):
            if not agent.is_gone:
                try:
                    await agent.call(lambda number: messages.Stop(number=number, grace=grace))
                except AgentGone:
                    pass  # With all that it had, as is told below.
                except EngineUnavailable as failure:
                    failures.append(failure)
        for seat in gang.record.seats:
            if seat.lost and seat.lost == seat.launched:
                self._report_lost(gang, seat)
            elif (agent := gang.agent(seat)) is None or agent.is_gone:
                self._report_end(gang, seat)
        if failures:
            raise failures[0]

    async def stop_replica(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, grace: int
    ) -> None:
        gang, seat = self._seat(job_uid, attempt, replica)
        if incarnation > seat.launched:
            async with self._lock(gang.key):
                seat = gang.record.seat(replica) or seat
                forbidden = msgspec.structs.replace(seat, forbidden=incarnation)
                await self._write(gang, gang.record.with_seat(forbidden))
        agent = gang.agent(seat)
        if agent is not None and not agent.is_gone:
            with contextlib.suppress(AgentGone):
                await agent.call(
                    lambda number: messages.StopReplica(
                        number=number, replica=replica, incarnation=incarnation, grace=grace
                    )
                )
                return
            seat = gang.record.seat(replica) or seat
        if incarnation > seat.launched:
            self._report(gang, ReplicaLost(attempt, replica, incarnation, NEVER_STARTED))
        elif incarnation == seat.lost:
            self._report_lost(gang, seat)
        else:
            self._report_end(gang, seat, incarnation)

    async def inject(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        fault: Fault,
    ) -> None:
        gang = self._gangs.get((job_uid, attempt))
        seat = gang.record.seat(replica) if gang else None
        if gang is None or seat is None or (agent := gang.agent(seat)) is None or agent.is_gone:
            return
        await agent.call(
            lambda number: messages.Inject(
                number=number, replica=replica, incarnation=incarnation, fault=fault
            )
        )

    async def drop_reducers(
        self, job_uid: JobUid, attempt: int, reducers: Collection[ReplicaId]
    ) -> None:
        gang = self._gangs.get((job_uid, attempt))
        if gang is None:
            return
        lost = [f"{slot.host}:{slot.port}" for slot in gang.slots() if slot.replica in reducers]
        async with self._lock(gang.key):
            dropped = tuple(dict.fromkeys((*gang.record.dropped, *lost)))
            await self._write(gang, msgspec.structs.replace(gang.record, dropped=dropped))
        for agent in tuple(gang.agents.values()):
            if not agent.is_gone and dropped:
                await agent.call(
                    lambda number: messages.DropReducers(number=number, places=dropped)
                )

    async def allocations(self) -> tuple[tuple[JobUid, int], ...]:
        return tuple(self._gangs)

    async def release(self, job_uid: JobUid, attempt: int) -> None:
        gang = self._gangs.get((job_uid, attempt))
        if gang is None:
            return
        if not gang.record.released:
            await self._require_over(gang)
        if (preparing := self._preparing.get(gang.key)) is not None:
            preparing.cancel()
            await asyncio.gather(preparing, return_exceptions=True)
        async with self._lock(gang.key):
            if gang.is_released:
                return
            # From here on nobody has to ask agents any more whether all is over.
            await self._write(gang, msgspec.structs.replace(gang.record, released=True))
            await asyncio.gather(*(self._dismiss(agent) for agent in gang.agents.values()))
            for part in gang.record.parts:
                await self._give_back(gang.record, part)
            await asyncio.to_thread(self._records.delete, job_uid, attempt)
            gang.is_released = True
            self._gangs.pop(gang.key, None)
        self._locks.pop(gang.key, None)

    async def _require_over(self, gang: Gang) -> None:
        """Raises EngineUnavailable: a program lives, or may."""
        agents = [agent for agent in gang.agents.values() if not agent.is_gone]
        await asyncio.gather(*(agent.current() for agent in agents))
        if live := [str(seat.replica) for seat in gang.record.seats if gang.is_live(seat)]:
            raise EngineUnavailable(
                f"{', '.join(live)} of job {gang.record.job_uid} still run; stop the attempt and "
                "wait for their end"
            )

    async def write_log(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, lines: Sequence[str]
    ) -> None:
        """Write lines into a live replica's log as if its program had printed them. Raises
        EngineUnavailable."""
        gang = self._gangs.get((job_uid, attempt))
        seat = gang.record.seat(replica) if gang else None
        agent = gang.agent(seat) if gang and seat else None
        if agent is None or agent.is_gone:
            raise EngineUnavailable("the replica is over")
        await agent.call(
            lambda number: messages.WriteLog(number=number, replica=replica, lines=tuple(lines))
        )

    async def open_terminal(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        request: TerminalRequest,
    ) -> Terminal:
        gang = self._gangs.get((job_uid, attempt))
        seat = gang.record.seat(replica) if gang else None
        agent = gang.agent(seat) if gang and seat else None
        if agent is None or agent.is_gone:
            raise TerminalRefused("the replica is over")
        stream = secrets.token_hex(8)
        opened = self._hub.expect(agent.name, stream)
        try:
            async with asyncio.timeout(_PATIENCE):
                await agent.call(
                    lambda number: messages.OpenTerminal(
                        number=number,
                        replica=replica,
                        incarnation=incarnation,
                        request=request,
                        stream=stream,
                    )
                )
                return RemoteTerminal(await opened)
        except (EngineUnavailable, OSError, TimeoutError) as failure:
            opened.cancel()
            raise TerminalRefused(f"no shell can be had there now: {failure}") from failure

    async def watch(self) -> AsyncIterator[EngineEvent]:
        while not self._closed:
            while self._events:
                yield self._events.popleft()
            self._wake.clear()
            await self._wake.wait()

    # --- whom the hub admits ---

    def admits(self, name: str) -> bool:
        """Whether an agent of that name may connect now."""
        return name in self._agents

    def may_introduce(self, name: str, line: bytes) -> bool:
        """Whether a program of that agent may introduce itself to the buckets by this line."""
        agent = self._agents.get(name)
        if agent is None:
            return False
        gang = self._gangs[agent.job_uid, agent.attempt]
        return any(
            line in introductions(seat.identity) for seat in gang.seats_of(agent) if seat.identity
        )

    async def serve(self, connection: Connection) -> None:
        """Hear an agent out, until its connection ends."""
        agent = self._agents.get(connection.peer)
        if agent is None:
            return
        gang = self._gangs[agent.job_uid, agent.attempt]
        try:
            await self._hear(agent, gang, connection)
        except ChannelClosed as end:
            if not agent.is_gone and not self._closed:
                _log(agent).warning("agent on node %s: the connection ended: %s", agent.node, end)
        except (TornStream, OSError) as error:
            # A full disk, say: the agent keeps what it has, and begins again.
            _log(agent).warning("agent on node %s: streams not taken: %s", agent.node, error)
        finally:
            agent.disconnect(connection)

    # --- agents ---

    async def _hear(self, agent: AgentHandle, gang: Gang, connection: Connection) -> None:
        hello = await connection.receive()
        if not isinstance(hello, messages.Hello) or hello.version != messages.VERSION:
            agent.fail("its agent is of another version; start the service and the agents alike")
            return
        if hello.failure or hello.capabilities is None:
            agent.fail(hello.failure or "its agent cannot say what it can do")
            return
        agent.capabilities = self._capabilities = hello.capabilities
        copies = StreamCopies(self._streams, agent.job_uid, agent.attempt)
        mine = [seat.replica for seat in gang.seats_of(agent)]
        sizes = await asyncio.to_thread(copies.sizes, mine)
        await connection.send(messages.Welcome(sizes))
        agent.connect(connection)
        self._tasks.begin(self._remind(gang, agent), "reminding an agent")
        while True:
            news = await connection.receive()
            agent.heard = time.monotonic()
            match news:
                case messages.Appended():
                    if all(seat.replica != news.replica for seat in gang.seats_of(agent)):
                        raise TornStream(f"{news.replica} is not on node {agent.node}")
                    await asyncio.to_thread(copies.append, news)
                case messages.Answer() | messages.Slots():
                    agent.answered(news)
                case _:
                    self._learn(gang, agent, news)

    async def _remind(self, gang: Gang, agent: AgentHandle) -> None:
        """Of what was ordered while it was not connected."""
        with contextlib.suppress(EngineUnavailable):
            if gang.record.dropped:
                await agent.call(
                    lambda number: messages.DropReducers(number=number, places=gang.record.dropped)
                )
            if (grace := gang.record.stopped) is not None:
                await agent.call(lambda number: messages.Stop(number=number, grace=grace))

    def _learn(self, gang: Gang, agent: AgentHandle, news: News) -> None:
        uid, attempt = agent.job_uid, agent.attempt
        match news:
            case messages.Lines(replica, lines):
                self._emit(LinesWritten(uid, attempt, replica, lines))
            case messages.Metrics(replica):
                self._emit(MetricsWritten(uid, attempt, replica))
            case messages.Started(event) | messages.Noted(event):
                if self._is_of(gang, agent, event):
                    self._report(gang, event)
            case messages.Exited(event) | messages.Lost(event):
                if self._is_of(gang, agent, event):
                    known = gang.ends.get(event.replica)
                    if known is None or known.incarnation <= event.incarnation:
                        gang.ends[event.replica] = event
                    self._report(gang, event)
            case messages.Current():
                agent.caught_up()
            case messages.Beat():
                pass
            case _:
                raise ChannelClosed(f"{type(news).__name__} was not expected")

    def _is_of(self, gang: Gang, agent: AgentHandle, event: ReplicaEvent) -> bool:
        """Nobody speaks for others' replicas."""
        seats = {seat.replica: seat for seat in gang.seats_of(agent)}
        seat = seats.get(event.replica)
        return event.attempt == agent.attempt and seat is not None

    def _add_agent(self, gang: Gang, part: int, node: str, start: str) -> AgentHandle:
        hold = hold_name(self._options.identity, gang.record, part)
        agent = AgentHandle(
            f"{hold}/{node}/{start}", gang.record.job_uid, gang.record.attempt, part, node
        )
        gang.agents[place(part, node)] = self._agents[agent.name] = agent
        return agent

    async def _dismiss(self, agent: AgentHandle) -> None:
        """Have it clean up and end, if it can be asked to."""
        if agent.is_connected:
            with contextlib.suppress(EngineUnavailable, LaunchRejected, TimeoutError):
                async with asyncio.timeout(_LEAVING):
                    await agent.call(lambda number: messages.Leave(number=number))
        self._give_up(agent)

    def _give_up(self, agent: AgentHandle) -> None:
        agent.give_up()
        self._agents.pop(agent.name, None)
        self._hub.drop(agent.name)

    # --- slots ---

    def _require_nodes(self, requests: Iterable[SlotRequest], *, refuse: bool) -> None:
        """Raises LaunchRejected if a node is none of the cluster's, and EngineUnavailable if it is gone."""
        for request in requests:
            if refuse and request.node not in self._nodes:
                raise LaunchRejected(
                    f"there is no node {request.node!r}; this cluster's are "
                    f"{', '.join(sorted(self._nodes)[:10]) or 'not known'}"
                )
            if self._nodes.get(request.node) is NodeState.GONE:
                raise EngineUnavailable(
                    f"node {request.node} does not answer; name another one, or wait until it is back"
                )

    async def _move(self, gang: Gang, requests: Sequence[SlotRequest]) -> None:
        moving = [
            request
            for request in requests
            if (seat := gang.record.seat(request.replica)) and seat.request.node != request.node
        ]
        if not moving:
            return
        self._require_nodes(moving, refuse=True)
        seats = [gang.record.seat(request.replica) for request in moving]
        if live := [str(seat.replica) for seat in seats if seat and gang.is_live(seat)]:
            raise EngineUnavailable(
                f"{', '.join(live)} still run where they are; stop them and wait for their end"
            )
        if (preparing := self._preparing.get(gang.key)) is not None:
            preparing.cancel()
            await asyncio.gather(preparing, return_exceptions=True)
        before = gang.record
        await self._write(gang, moved(before, moving, self._by_name()))
        for part in before.parts.keys() - gang.record.parts.keys():
            left = [agent for agent in gang.agents.values() if agent.part == part]
            for agent in left:
                gang.agents.pop(place(part, agent.node))
                self._tasks.begin(self._dismiss(agent), "letting an agent go")
            self._tasks.begin(self._give_back_later(before, part), "giving nodes back")

    async def _listen(self) -> None:
        """Where agents that run already will call again. Raises EngineUnavailable."""
        try:
            await self._hub.start()
            file = str(self._options.directory / PORT)
            await asyncio.to_thread(durable.write, file, str(self._hub.port))
        except OSError as error:
            raise EngineUnavailable(
                f"agents cannot be listened to ({error}); free the port, or name another one if no job runs"
            ) from error

    async def _prepared(self, gang: Gang) -> None:
        """Wait for all slots, for a while. Raises EngineUnavailable, LaunchRejected."""
        if gang.is_complete():
            return
        task = self._preparing.get(gang.key)
        if task is None:
            task = self._preparing[gang.key] = joined(self._prepare(gang))
            task.add_done_callback(lambda done: self._no_longer(gang.key, done))
        done, _ = await asyncio.wait([task], timeout=_PATIENCE)
        if not done:
            raise EngineUnavailable(self._waiting(gang))
        if task.cancelled():
            raise EngineUnavailable("the attempt was stopped, or given back")
        task.result()

    def _no_longer(self, key: tuple[JobUid, int], task: asyncio.Task[None]) -> None:
        if self._preparing.get(key) is task:
            del self._preparing[key]

    def _waiting(self, gang: Gang) -> str:
        reasons = [
            self._cluster.waits_for(hold_name(self._options.identity, gang.record, part))
            for part in gang.record.parts
        ]
        known = "; ".join(dict.fromkeys(filter(None, reasons)))
        return f"the cluster has not given all nodes yet{f': {known}' if known else ''}"

    async def _prepare(self, gang: Gang) -> None:
        """Hold every part, start an agent wherever one is missing, and have it give out its slots."""
        for tries_left in reversed(range(_STARTS)):
            try:
                holds = await self._hold(gang.record)
                await self._start_agents(gang, holds)
                break
            except ClusterRefused as failure:
                raise LaunchRejected(str(failure)) from failure
            except ClusterUnavailable as failure:
                raise EngineUnavailable(str(failure)) from failure
            except AgentGone:
                # Started by an earlier service that was killed over it, or ended by somebody.
                if not tries_left:
                    raise

    async def _hold(self, record: GangRecord) -> dict[int, Hold]:
        """By part."""
        return {
            part: await self._cluster.acquire(hold_name(self._options.identity, record, part), some)
            for part, some in record.parts.items()
        }

    async def _start_agents(self, gang: Gang, holds: Mapping[int, Hold]) -> None:
        starting: list[asyncio.Task[None]] = []
        for part, some in gang.record.parts.items():
            for need in some:
                agent = gang.agents.get(place(part, need.node))
                if agent is None or agent.is_gone or agent.failure:
                    agent = await self._new_agent(gang, part, need.node)
                    starting.append(joined(self._start_agent(agent, holds[part])))
        await asyncio.gather(*starting)
        await asyncio.gather(
            *(self._get_slots(gang, agent) for agent in tuple(gang.agents.values()))
        )

    async def _new_agent(self, gang: Gang, part: int, node: str) -> AgentHandle:
        """In the place of one that is gone; what that one had begun is lost by now."""
        async with self._lock(gang.key):
            where = place(part, node)
            start = secrets.token_hex(4)
            agents = gang.record.agents | {where: start}
            await self._write(gang, msgspec.structs.replace(gang.record, agents=agents))
            return self._add_agent(gang, part, node, start)

    async def _provide(self, gang: Gang, plans: Sequence[LaunchPlan]) -> None:
        """Have everything on every node that the plans need there. What takes longer than a call may goes on,
        and the next launch waits for the same. Raises EngineUnavailable, LaunchRejected."""
        library = self._options.library
        if library is None:
            return
        by_agent: dict[str, list[LaunchPlan]] = {}
        for plan in plans:
            seat = gang.record.seat(plan.replica)
            assert seat is not None
            by_agent.setdefault(place(seat.part, seat.request.node), []).append(plan)
        calls: list[Awaitable[object]] = []
        for where, own in by_agent.items():
            try:
                manifest = await library.manifest(named_by(own))
            except Refused as refusal:
                raise LaunchRejected(str(refusal)) from refusal
            except OSError as failure:
                raise EngineUnavailable(f"what programs need is not there: {failure}") from failure
            agent = gang.agents[where]
            agent.granted |= {unit.path for unit in manifest.units}
            calls.append(agent.call(partial(_provide_call, manifest)))
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def send_content(self, name: str, path: str, writer: asyncio.StreamWriter) -> None:
        """For the hub: what the agent of that name may have."""
        agent, library = self._agents.get(name), self._options.library
        if agent is None or library is None:
            writer.close()
            return
        await library.send(path, writer, granted=agent.granted)

    async def _start_agent(self, agent: AgentHandle, hold: Hold) -> None:
        report = next(one for one in self._cluster.report().nodes if one.node.name == agent.node)
        credential = self._hub.issue(agent.name, self._options.now() + _VALID)
        document = self._options.agent(
            credential=credential,
            job_uid=agent.job_uid,
            attempt=agent.attempt,
            node=agent.node,
            address=report.address,
            lease=self._options.lease,
        )
        argv, given = self._options.command(messages.write_document(document))
        agent.is_starting = True
        try:
            await self._cluster.start_agent(hold, agent.node, argv, given)
        finally:
            agent.is_starting = False
            if not agent.is_connected:
                agent.silent_since = time.monotonic()

    async def _get_slots(self, gang: Gang, agent: AgentHandle) -> None:
        seats = [seat for seat in gang.seats_of(agent) if seat.slot is None]
        await agent.connected()
        if not seats:
            return
        requests = tuple(seat.request for seat in gang.seats_of(agent))
        answer = await agent.call(
            lambda number: messages.Allocate(number=number, requests=requests)
        )
        if not isinstance(answer, messages.Slots):
            raise EngineUnavailable(f"the agent on node {agent.node} gave no slots")
        given = {slot.replica: replace(slot, node=agent.node) for slot in answer.slots}
        async with self._lock(gang.key):
            record = gang.record
            for seat in seats:
                now = record.seat(seat.replica)
                if now is not None and now.part == agent.part:
                    record = record.with_seat(
                        msgspec.structs.replace(now, slot=given[seat.replica])
                    )
            await self._write(gang, record)

    async def _give_back(self, record: GangRecord, part: int) -> None:
        try:
            await self._cluster.give_back(hold_name(self._options.identity, record, part))
        except ClusterUnavailable as failure:
            raise EngineUnavailable(str(failure)) from failure

    async def _give_back_later(self, record: GangRecord, part: int) -> None:
        while True:
            try:
                await self._give_back(record, part)
            except EngineUnavailable:
                await asyncio.sleep(_PATIENCE)
            else:
                return

    # --- starts ---

    async def _launch(self, gang: Gang, plans: Sequence[LaunchPlan]) -> None:
        starting = [plan for plan in plans if not await self._is_settled(gang, plan)]
        if not starting:
            return
        # All or none: what could start now would only wait for the others.
        await self._prepared(gang)
        if not self._options.shares_files:
            # Buckets are directories of this machine: there they are reached by gs:// alone.
            starting = [replace(plan, buckets=()) for plan in starting]
        shown = await revealed(starting, self._options.secrets)
        copies = StreamCopies(self._streams, *gang.key)
        lines = await asyncio.to_thread(
            lambda: {plan.replica: copies.next_line(plan.replica) for plan in starting}
        )
        await self._provide(gang, starting)
        async with self._lock(gang.key):
            record = gang.record
            for plan in starting:
                seat = record.seat(plan.replica)
                assert seat is not None
                if plan.incarnation > seat.launched:
                    record = record.with_seat(
                        msgspec.structs.replace(
                            seat, launched=plan.incarnation, identity=identity(plan)
                        )
                    )
            if record is not gang.record:
                await self._write(gang, record)
        by_agent: dict[str, list[Revealed]] = {}
        for one in shown:
            seat = gang.record.seat(one[0].replica)
            assert seat is not None
            by_agent.setdefault(place(seat.part, seat.request.node), []).append(one)
        calls = [
            gang.agents[where].call(partial(_launch_call, some, lines))
            for where, some in by_agent.items()
        ]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _is_settled(self, gang: Gang, plan: LaunchPlan) -> bool:
        """Whether an incarnation is known to be over, or never to start; then that is reported."""
        seat = gang.record.seat(plan.replica)
        assert seat is not None
        agent = gang.agent(seat)
        is_new = plan.incarnation > seat.launched
        if plan.incarnation == seat.lost:
            self._report_lost(gang, seat)
        elif is_new and (gang.record.stopped is not None or plan.incarnation <= seat.forbidden):
            async with self._lock(gang.key):
                never = _never(seat, plan.incarnation)
                await self._write(gang, gang.record.with_seat(never))
            self._report_lost(gang, never)
        elif not is_new and (agent is None or agent.is_gone or seat.lost > plan.incarnation):
            self._report_end(gang, seat, plan.incarnation)
        else:
            return False
        return True

    # --- what is lost ---

    async def _look_round(self) -> None:
        beat = 0.0
        while True:
            await asyncio.sleep(_TICK)
            now = time.monotonic()
            if now >= beat:
                beat = now + self._options.lease / 4
                for agent in tuple(self._agents.values()):
                    agent.post_alive()
            for agent in tuple(self._agents.values()):
                if agent.is_connected and now - agent.heard > self._options.lease / 2:
                    agent.cut()
                if agent.silent_since is not None and (cause := self._gone(agent, now)):
                    await self._lose(agent, cause)

    def _gone(self, agent: AgentHandle, now: float) -> str:
        """Why an agent that is silent counts as dead; "" = it does not yet."""
        assert agent.silent_since is not None
        if agent.is_starting:
            return ""
        silent = now - agent.silent_since
        if silent > self._options.lease + _MARGIN:
            return (
                f"node {agent.node} has not been heard of for {self._options.lease:g} s; its agent has ended "
                "its programs by then"
            )
        report = self._cluster.report()
        if report.looked < agent.silent_since + _SETTLED:
            return ""
        node = next((one for one in report.nodes if one.node.name == agent.node), None)
        if node is None or node.state is NodeState.GONE:
            why = f" ({node.cause})" if node and node.cause else ""
            return f"node {agent.node} is gone{why}"
        gang = self._gangs[agent.job_uid, agent.attempt]
        name = hold_name(self._options.identity, gang.record, agent.part)
        if agent.node not in report.agents.get(name, frozenset()):
            return f"its agent on node {agent.node} has ended, and its programs with it"
        return ""

    async def _lose(self, agent: AgentHandle, cause: str) -> None:
        gang = self._gangs[agent.job_uid, agent.attempt]
        _log(agent).warning("agent on node %s: lost: %s", agent.node, cause)
        async with self._lock(gang.key):
            record, lost = gang.record, list[Seat]()
            for seat in gang.seats_of(agent):
                if gang.is_live(seat):
                    lost.append(msgspec.structs.replace(seat, lost=seat.launched, cause=cause))
                elif not seat.launched and record.stopped is not None:
                    lost.append(_never(seat))
            for seat in lost:
                record = record.with_seat(seat)
            await self._write(gang, record)
            self._give_up(agent)
        for seat in lost:
            self._report_lost(gang, seat)

    # --- the cluster ---

    async def _follow(self) -> None:
        async for report in self._cluster.watch():
            self._take(report, told=True)

    def _take(self, report: ClusterReport, *, told: bool) -> None:
        capacity = tuple(one.node for one in report.nodes)
        if capacity != self._capacity:
            self._capacity = capacity
            if told:
                self._emit(CapacityChanged(capacity))
        states = {one.node.name: one for one in report.nodes}
        for name, one in states.items():
            if self._nodes.get(name, NodeState.UP) is not one.state:
                self._emit(NodeChanged(name, one.state, one.cause))
        for name in self._nodes.keys() - states.keys():
            self._emit(NodeChanged(name, NodeState.GONE, "the cluster does not list it any more"))
        self._nodes = {name: one.state for name, one in states.items()}

    # --- inside ---

    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self._capacity}

    def _lock(self, key: tuple[JobUid, int]) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    def _seat(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> tuple[Gang, Seat]:
        gang = self._gangs.get((job_uid, attempt))
        seat = gang.record.seat(replica) if gang else None
        if gang is None or seat is None:
            raise LaunchRejected(
                f"{replica} of job {job_uid}, attempt {attempt}, has no slot; allocate first"
            )
        return gang, seat

    async def _write(self, gang: Gang, record: GangRecord) -> None:
        # Whoever gives up waiting for it does not undo it: the next one has to come after it.
        writing = joined(asyncio.to_thread(self._records.write, record))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        try:
            await asyncio.shield(writing)
        except OSError as error:
            raise EngineUnavailable(
                f"the slots of job {record.job_uid} cannot be written down ({error}); make room and try again"
            ) from error
        gang.record = record

    def _report_lost(self, gang: Gang, seat: Seat) -> None:
        self._report(
            gang,
            ReplicaLost(gang.record.attempt, seat.replica, seat.lost, seat.cause or NEVER_STARTED),
        )

    def _report_end(self, gang: Gang, seat: Seat, incarnation: int = 0) -> None:
        """Say again how an incarnation ended that nobody else can tell of; 0 = the one that was last."""
        incarnation = incarnation or seat.launched
        end = gang.ends.get(seat.replica)
        if end is not None and end.incarnation == incarnation:
            self._report(gang, end)
        elif incarnation:
            cause = f"superseded by incarnation {seat.launched}"
            self._report(gang, ReplicaLost(gang.record.attempt, seat.replica, incarnation, cause))

    def _report(self, gang: Gang, event: ReplicaEvent) -> None:
        self._emit(ReplicaReport(gang.record.job_uid, event))

    def _emit(self, event: EngineEvent) -> None:
        self._events.append(event)
        self._wake.set()


def _provide_call(content: Manifest, number: int) -> messages.Provide:
    return messages.Provide(number=number, content=content)


def _launch_call(
    some: Sequence[Revealed], lines: dict[ReplicaId, int], number: int
) -> messages.Launch:
    return messages.Launch(
        number=number,
        plans=tuple(plan for plan, _ in some),
        masked=tuple(masked for _, masked in some),
        lines=tuple(lines[plan.replica] for plan, _ in some),
    )


def _never(seat: Seat, incarnation: int = 1) -> Seat:
    """As what was stopped before it started."""
    return msgspec.structs.replace(
        seat, launched=incarnation, lost=incarnation, cause=NEVER_STARTED
    )


def _log(agent: AgentHandle) -> logging.LoggerAdapter[logging.Logger]:
    return about(log, agent.job_uid, attempt=agent.attempt, replica=None)
