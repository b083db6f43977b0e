"""Manages the agents of a cluster's nodes: authenticates them, processes their reports, and detects dead
agents. This module is long because these three tasks share their state."""

import asyncio
import contextlib
import logging
import time
from pathlib import Path

import msgspec

from trainshed.core.failure.evidence import Cause
from trainshed.core.lifecycle.records import StopNotice
from trainshed.core.lifecycle.replica_events import ReplicaEvent, ReplicaExited
from trainshed.core.units import Nanos
from trainshed.engines.port import (
    Capabilities,
    EngineUnavailable,
    LaunchRejected,
    LinesWritten,
    MetricsWritten,
    NodeState,
)
from trainshed.engines.streams import FileStreams
from trainshed.eventloop.background import Crew
from trainshed.replica import protocol
from trainshed.replica.system import durable
from trainshed.telemetry.lines import about
from trainshed_cluster.remote import messages
from trainshed_cluster.remote.agent_handle import AgentHandle, Connection
from trainshed_cluster.remote.attempts import Attempts
from trainshed_cluster.remote.channel import ChannelClosed
from trainshed_cluster.remote.clocks import Reading, skew_message
from trainshed_cluster.remote.cluster import (
    AgentsMayLive,
    AllocationEnd,
    AllocationName,
    Cluster,
    ClusterReport,
    ClusterUnavailable,
)
from trainshed_cluster.remote.credentials import Issuer
from trainshed_cluster.remote.failed_starts import add_failed_start, is_node_at_fault
from trainshed_cluster.remote.gang import Gang, allocation_name
from trainshed_cluster.remote.hub import Hub
from trainshed_cluster.remote.lease import beat_interval, death_timeout
from trainshed_cluster.remote.messages import News, Order
from trainshed_cluster.remote.mirror import StreamCopies, StreamGap
from trainshed_cluster.remote.nodes import NO_AGENT, ClusterNodes
from trainshed_cluster.remote.options import RemoteOptions
from trainshed_cluster.remote.replica_slot import Ended, ReplicaSlot, SlotTrigger, agent_key

log = logging.getLogger(__name__)

_CHECK_INTERVAL = 0.5
"""Seconds between two checks for disconnected agents."""
_REPORT_MARGIN = 1.0
"""Minimum seconds between an agent's disconnection and the start of a query of the cluster. Results of
earlier queries do not show whether the agent has ended."""
_END_TIMEOUT = 30.0
"""Maximum seconds to wait until the cluster reports why an allocation ended."""
_LOAD_TIMEOUT = 10.0
"""Maximum seconds between an agent's start on the cluster and the start of its lease, which limits its time
without contact to the service."""
_SHUTDOWN_TIMEOUT = 10.0
"""Seconds that an agent has to remove its files before the service releases its allocation."""
_CLOCK_SOURCE = "clock"
"""Used instead of an agent's name in reports of trouble with a node's clock, because all agents on the node
have the same clock."""
_PORT_FILE = "port"
"""File in the engine's directory. It contains the port at which agents connect to the service."""


class Agents:
    """All agents of a service."""

    def __init__(
        self,
        attempts: Attempts,
        cluster: Cluster,
        nodes: ClusterNodes,
        streams: FileStreams,
        options: RemoteOptions,
    ) -> None:
        #: The capabilities in the last report of any agent; None = no agent has reported.
        self.capabilities: Capabilities | None = None
        self.hub: Hub[Order, News] = Hub(
            Issuer.open(options.directory / "authority"),
            host=options.listening.host,
            port=options.listening.port or _last_port(options.directory),
            received=News,
            sockets=options.listening.sockets,
            is_admitted=self.is_admitted,
            serve=self.serve,
            has_preamble=self.has_preamble,
            content=self.send_content if options.library else None,
            dialed_host=options.listening.dialed_host,
        )
        self.attempts = attempts
        self.cluster = cluster
        self.nodes = nodes
        self._streams = streams
        self.options = options
        #: Every agent that may connect to the service, by the name in its certificate.
        self._by_name: dict[str, AgentHandle] = {}
        #: Monotonic time of the last connection of an agent, by container image of the job (None = no image
        #: of the job) and node.
        self._last_connected: dict[str | None, dict[str, float]] = {}
        #: Results of `Cluster.allocation_end` in the current round of `_check_agents`; None = the cause is
        #: unknown.
        self._ends: dict[AllocationName, AllocationEnd | None] = {}
        self._tasks = Crew()

    def start(self) -> None:
        """Admit the agents of the attempts in the stored records, and start to check for dead agents."""
        for gang in self.attempts.gangs.values():
            # A slot is vacant if its replica waits for another node. Agents that have only vacant slots stay
            # rejected, because their allocations were released.
            keys = {slot.agent_key for slot in gang.record.replica_slots if not slot.is_vacant}
            for key in keys & gang.record.agents.keys():
                index, node = key.split("/", 1)
                self.add(gang, int(index), node, gang.record.agents[key])
        self._tasks.keep(self._check_agents, "checking agents")

    async def listen(self) -> None:
        """Open the port to which agents connect. After a restart of the service, the port is the same as
        before, so that running agents find it. Raises EngineUnavailable if the port cannot be opened."""
        try:
            await self.hub.start()
            file = str(self.options.directory / _PORT_FILE)
            await asyncio.to_thread(durable.write, file, str(self.hub.port))
        except OSError as error:
            raise EngineUnavailable(
                f"cannot open the port for agents ({error}); free the port, or set another one if no job runs"
            ) from error

    async def close(self) -> None:
        """Close all connections to agents. The agents continue to run."""
        await self._tasks.close()
        await self.hub.close()

    # --- called by the hub, the server to which agents connect ---

    def is_admitted(self, name: str) -> bool:
        """Return whether an agent of that name may connect now."""
        return name in self._by_name

    def has_preamble(self, name: str, line: bytes) -> bool:
        """Return whether `line` is the first line with which a replica of that agent identifies itself on a
        connection to the buckets."""
        agent = self._by_name.get(name)
        gang = self._gang(agent)
        if agent is None or gang is None:
            return False
        return any(
            line == protocol.preamble(replica_slot.identity, is_secure, notice)
            for replica_slot in gang.replica_slots_of(agent)
            if replica_slot.identity
            for is_secure in (False, True)
            for notice in (None, *StopNotice)
        )

    async def serve(self, connection: Connection) -> None:
        """Process an agent's messages until its connection ends."""
        agent = self._by_name.get(connection.peer)
        if agent is None or agent.is_idle:
            return
        try:
            await self._receive_news(agent, connection)
        except ChannelClosed as end:
            if not agent.is_gone and not self.attempts.is_closed:
                _log(agent).warning("agent on node %s: the connection ended: %s", agent.node, end)
        except (StreamGap, OSError) as error:
            # The service may be unable to write, for example because its disk is full. The agent sends the
            # bytes again on its next connection.
            _log(agent).warning("agent on node %s: cannot store its streams: %s", agent.node, error)
        finally:
            agent.disconnect(connection)
            if agent.is_idle and not agent.is_connected:
                # An idle agent belongs to no gang. Nothing else would detect its end, so revoke its
                # credential now.
                self.give_up(agent)

    async def send_content(self, name: str, path: str, writer: asyncio.StreamWriter) -> None:
        """Send an agent a content unit (a directory such as an environment), if the agent may fetch it."""
        agent, library = self._by_name.get(name), self.options.library
        if agent is None or library is None:
            writer.close()
            return
        await library.send(path, writer, granted=agent.granted)

    # --- the set of agents ---

    def add(self, gang: Gang, index: int, node: str, start: str) -> AgentHandle:
        """Create the handle of an agent, which may connect from now on. `start`: the random suffix of the
        agent's name."""
        allocation = allocation_name(self.options.identity, gang.record, index)
        agent = AgentHandle(
            f"{allocation}/{node}/{start}",
            gang.record.job_uid,
            gang.record.attempt,
            index,
            node,
            lease=gang.record.lease,
        )
        gang.agents[agent_key(index, node)] = self._by_name[agent.name] = agent
        return agent

    async def dismiss(self, agent: AgentHandle) -> None:
        """If an agent is connected, let it remove its files and exit. Then revoke its credential."""
        if agent.is_connected:
            with contextlib.suppress(EngineUnavailable, LaunchRejected, TimeoutError):
                async with asyncio.timeout(_SHUTDOWN_TIMEOUT):
                    await agent.call(messages.Shutdown())
        self.give_up(agent)

    def give_up_start(self, gang: Gang, agent: AgentHandle, why: str) -> None:
        """Record that the start of an agent failed: the agent ended before it connected."""
        where = agent_key(agent.allocation_index, agent.node)
        gang.failed_starts[where] = add_failed_start(gang.failed_starts.get(where), why)
        self.give_up(agent)

    def is_node_at_fault(self, node: str, image: str | None) -> bool:
        """Return whether the node caused the failed starts of agents (see `failed_starts`). `image`: the
        job's container image in which the agents run; None = they run in no image of the job."""
        return is_node_at_fault(node, self._last_connected.get(image, {}))

    def give_up(self, agent: AgentHandle) -> None:
        """Revoke an agent's credential and close its connections."""
        agent.give_up()
        self.nodes.report_trouble(agent.node, agent.name, None)
        self._by_name.pop(agent.name, None)
        self.hub.drop(agent.name)

    # --- reports of agents ---

    def _gang(self, agent: AgentHandle | None) -> Gang | None:
        """Return the gang of an agent, or None if the agent is idle."""
        if agent is None or agent.is_idle:
            return None
        return self.attempts.gangs.get((agent.job_uid, agent.attempt))

    async def sizes(self, gang: Gang, agent: AgentHandle) -> dict[str, dict[str, int]]:
        """Return how many bytes of each stream of the agent's replicas the service already has."""
        copies = StreamCopies(self._streams, *gang.key)
        replicas = [replica_slot.replica for replica_slot in gang.replica_slots_of(agent)]
        return await asyncio.to_thread(copies.sizes, replicas)

    async def _receive_news(self, agent: AgentHandle, connection: Connection) -> None:
        gang = self._gang(agent)
        if gang is None:
            return
        hello = await connection.receive()
        if not isinstance(hello, messages.Hello) or hello.version != messages.VERSION:
            agent.fail("its agent has another version; use the same version for the service and the agents")
            return
        if hello.failure or hello.capabilities is None:
            why = hello.failure or "its agent reported no capabilities"
            self.nodes.report_trouble(agent.node, NO_AGENT, why)
            agent.fail(why)
            return
        self.nodes.report_trouble(agent.node, NO_AGENT, None)
        agent.capabilities = self.capabilities = hello.capabilities
        self._last_connected.setdefault(gang.image_of(agent.allocation_index, agent.node), {})[agent.node] = (
            time.monotonic()
        )
        copies = StreamCopies(self._streams, *gang.key)
        await connection.send(messages.Welcome(await self.sizes(gang, agent)))
        agent.connect(connection)
        self._tasks.begin(self._repeat_orders(gang, agent), "repeating orders to an agent")
        while True:
            news = await connection.receive()
            agent.last_heard = time.monotonic()
            if (now := self._gang(agent)) is not gang:
                if now is None:
                    if isinstance(news, messages.Answer):
                        agent.deliver_answer(news)
                    elif isinstance(news, messages.Beat):
                        # Acknowledge heartbeats of an idle agent, too, because this renews the agent's lease,
                        # the time after which an agent without contact ends.
                        agent.acknowledge(news.number)
                    continue
                gang, copies = now, StreamCopies(self._streams, *now.key)
            match news:
                case messages.Appended():
                    # Ignore the streams of replicas that have moved to another node. The agent still has
                    # their files and sends the bytes again.
                    if news.replica in {slot.replica for slot in gang.replica_slots_of(agent)}:
                        await asyncio.to_thread(copies.append, news)
                case messages.Answer() | messages.Slots():
                    agent.deliver_answer(news)
                case _:
                    self._handle_news(gang, agent, news)

    async def _repeat_orders(self, gang: Gang, agent: AgentHandle) -> None:
        """Repeat the orders that the agent may have missed while it was disconnected."""
        with contextlib.suppress(EngineUnavailable):
            if any(replica_slot.launched for replica_slot in gang.replica_slots_of(agent)):
                await agent.send_hosts(gang.hosts())
            if (grace := gang.record.stop_grace) is not None:
                await agent.call(messages.Stop(grace=grace))

    def _handle_news(self, gang: Gang, agent: AgentHandle, news: News) -> None:
        uid, attempt = agent.job_uid, agent.attempt
        match news:
            case messages.Lines(replica, lines):
                self.attempts.emit(LinesWritten(uid, attempt, replica, lines))
            case messages.Metrics(replica):
                self.attempts.emit(MetricsWritten(uid, attempt, replica))
            case messages.Started(event) | messages.Noted(event):
                if self._is_own_event(gang, agent, event):
                    self.attempts.report(gang, self._reading(news.clock).of(event))
            case messages.Exited(event) | messages.Lost(event):
                if self._is_own_event(gang, agent, event):
                    self._handle_end(gang, agent, self._reading(news.clock).of(event))
            case messages.Current():
                agent.mark_current()
            case messages.Ending():
                agent.is_ending = True
            case messages.Beat(number):
                agent.acknowledge(number)
                self._update_skew(agent, self._reading(news.clock))
            case _:
                raise ChannelClosed(f"the agent sent an unexpected message: {type(news).__name__}")

    def _handle_end(self, gang: Gang, agent: AgentHandle, end: Ended) -> None:
        gang.record_end(end)
        if agent.is_ending and isinstance(end, ReplicaExited) and end.exit.stopped:
            self._tasks.begin(self._report_end_cause(gang, agent, end), "reporting the cause of an end")
        else:
            self.attempts.report(gang, end)

    async def _report_end_cause(self, gang: Gang, agent: AgentHandle, end: ReplicaExited) -> None:
        """Report the end of a program that an agent stopped because of a signal. The agent does not know the
        cause of the signal, so ask the cluster."""
        name = allocation_name(self.options.identity, gang.record, agent.allocation_index)
        if why := await self.cluster.pending_end(name):
            end = msgspec.structs.replace(end, loss=why.loss, cause=why.why)
            gang.record_end(end)
        self.attempts.report(gang, end)

    def _reading(self, clock: Nanos | None) -> Reading:
        """Return the time of the agent's clock in a message, together with the current time of the service's
        clock."""
        return Reading(clock, round(self.options.now() * 1e9))

    def _update_skew(self, agent: AgentHandle, reading: Reading) -> None:
        """Report a node's clock as wrong or as right again. The service's time limits do not depend on that
        clock."""
        skew = (reading.theirs - reading.ours) / 1e9 if reading.theirs else 0.0
        # Ignore small changes, because the delay of messages varies.
        if agent.skew is None or abs(skew - agent.skew) >= 1:
            agent.skew = skew
            wrong = skew_message(skew)
            what = wrong and f"{wrong}: times in its logs and curves are wrong by that much"
            self.nodes.report_trouble(agent.node, _CLOCK_SOURCE, what)

    def _is_own_event(self, gang: Gang, agent: AgentHandle, event: ReplicaEvent) -> bool:
        """Return whether an event is about one of the agent's own replicas."""
        own = {replica_slot.replica for replica_slot in gang.replica_slots_of(agent)}
        return event.attempt == agent.attempt and event.replica in own

    # --- dead agents ---

    async def _check_agents(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            now = time.monotonic()
            agents = tuple(self._by_name.values())
            last_heard = {agent.node for agent in agents if agent.is_connected}
            nodes = {agent.node for agent in agents}
            self._ends.clear()
            for agent in agents:
                if agent.is_connected and now - agent.last_heard > 2 * beat_interval(agent.lease):
                    agent.disconnect_silent()
                if agent.disconnected_at is not None and (end := await self._death_of(agent, now)):
                    # If several nodes are silent at once, the fault is probably on the service's side, so no
                    # node is quarantined.
                    is_alone = end.loss is Cause.AGENT_LOST and (last_heard or nodes == {agent.node})
                    if is_alone and self._is_cut_off(agent, now):
                        why = (
                            f"its agent did not respond for {agent.lease:g} s, although the "
                            "cluster reports the node as up; check the network between it and this service"
                        )
                        self.nodes.quarantine(agent.node, why, agent.lease)
                    await self.lose(agent, end, has_started=True)

    async def _death_of(self, agent: AgentHandle, now: float) -> AllocationEnd | None:
        """Return why a disconnected agent counts as dead; None = the agent may still run."""
        assert agent.disconnected_at is not None
        if agent.is_starting:
            return None
        silent = now - agent.disconnected_at
        longest = death_timeout(agent.lease) + (0 if agent.has_connected else _LOAD_TIMEOUT)
        is_over = now - agent.last_heard > longest
        report = self.cluster.report()
        node = next((reported for reported in report.nodes if reported.node.name == agent.node), None)
        # If the cluster does not respond, the state of its nodes is unknown.
        known = not any(reported.node.unreached for reported in report.nodes)
        is_down = known and (node is None or node.state is NodeState.GONE)
        is_settled = report.queried_at >= agent.disconnected_at + _REPORT_MARGIN
        is_given_up = is_down and is_settled and not (node and node.is_awaited)
        if is_given_up and (is_over or self.options.down_is_lost):
            why = f" ({node.cause})" if node and node.cause else ""
            return AllocationEnd(Cause.NODE_FAILED, f"node {agent.node} is gone{why}")
        if is_over and (suspended := self._suspension_of(agent, report)):
            return AllocationEnd(
                Cause.CLUSTER_PREEMPTED,
                f"{suspended}, and node {agent.node} has not responded for {agent.lease:g} s",
            )
        if is_over:
            return AllocationEnd(
                Cause.AGENT_LOST,
                f"node {agent.node} has not responded for {agent.lease:g} s; its agent has ended "
                "its programs by then",
            )
        if is_down or not known or not is_settled:
            # Do not count the agent as dead: the node may be disconnected while its programs run. The
            # cluster's report about their allocations does not prove their end.
            return None
        return await self._end_of_agent(agent, report, silent)

    def _suspension_of(self, agent: AgentHandle, report: ClusterReport) -> str | None:
        """Return why the cluster has suspended the processes of an agent's allocation; None = it has not
        suspended them."""
        gang = self._gang(agent)
        if gang is None:
            return None
        return report.suspensions.get(
            allocation_name(self.options.identity, gang.record, agent.allocation_index)
        )

    async def _end_of_agent(
        self, agent: AgentHandle, report: ClusterReport, silent: float
    ) -> AllocationEnd | None:
        """Return why an agent on an existing node has ended; None = the agent has not ended, or the cause is
        not known yet."""
        gang = self._gang(agent)
        if gang is None:
            return None
        name = allocation_name(self.options.identity, gang.record, agent.allocation_index)
        if name not in report.agents:
            return await self._end_of_allocation(gang, agent, name, silent)
        if agent.node not in report.agents[name]:
            return _agent_ended(agent)
        return None

    async def _end_of_allocation(
        self, gang: Gang, agent: AgentHandle, name: AllocationName, silent: float
    ) -> AllocationEnd | None:
        """Return why an agent's allocation has ended; None = the cause is not certain yet. `silent`: seconds
        since the agent's disconnection."""
        try:
            # Query only once per round for all agents of the allocation.
            if name not in self._ends:
                self._ends[name] = await self.cluster.allocation_end(name)
            end = self._ends[name]
        except AgentsMayLive as unsure:
            if any(map(gang.is_live, gang.replica_slots_of(agent))):
                return None
            return AllocationEnd(Cause.AGENT_LOST, str(unsure))
        except ClusterUnavailable as failure:
            if silent < _END_TIMEOUT:
                return None
            _log(agent).warning("the cause of an allocation's end is unknown: %s", failure)
            end = None
        if end is None:
            return _agent_ended(agent)
        return AllocationEnd(end.loss, f"{end.why}, and its programs on node {agent.node} with it")

    def _is_cut_off(self, agent: AgentHandle, now: float) -> bool:
        """Return whether the cluster reports the node of a dead agent as up, although the agent could not
        reach the service. Another agent there could not reach the service either."""
        assert agent.disconnected_at is not None
        report = self.cluster.report()
        is_up = any(
            reported.node.name == agent.node and reported.state is not NodeState.GONE
            for reported in report.nodes
        )
        never_connected = agent.capabilities is None and now - agent.disconnected_at >= agent.lease
        return is_up and (agent.has_timed_out or never_connected)

    async def lose(self, agent: AgentHandle, end: AllocationEnd, *, has_started: bool = False) -> None:
        """Count an agent as lost, together with all its replicas. `has_started`: whether the cluster had
        started the agent."""
        gang = self._gang(agent)
        if gang is None:
            self.give_up(agent)
            return
        _log(agent).warning("agent on node %s: lost: %s", agent.node, end.why)
        async with self.attempts.lock(gang.key):
            if self._gang(agent) is not gang:
                self.give_up(agent)
                return  # Nothing to record: the attempt was released in the meantime.
            record, lost = gang.record, list[ReplicaSlot]()
            for before in gang.replica_slots_of(agent):
                after = gang.fire(before, SlotTrigger.AGENT_LOST, cause=end.why, loss=end.loss)
                if not before.launched and record.stop_grace is not None:
                    after = gang.fire(before, SlotTrigger.REJECTED, launched=1)
                if after is not before:
                    lost.append(after)
            for slot in lost:
                record = record.with_replica_slot(slot)
            await self.attempts.write(gang, record)
            has_slots = any(slot.slot for slot in gang.replica_slots_of(agent))
            if has_slots or not has_started or end.loss is Cause.NODE_FAILED:
                self.give_up(agent)
            else:
                self.give_up_start(gang, agent, end.why)
        for slot in lost:
            self.attempts.report_lost(gang, slot)


def _last_port(directory: Path) -> int:
    """Return the port of the last service process, to which agents of running jobs connect; 0 = none is
    stored."""
    try:
        return int((directory / _PORT_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _agent_ended(agent: AgentHandle) -> AllocationEnd:
    return AllocationEnd(
        Cause.AGENT_LOST, f"its agent on node {agent.node} has ended, and its programs with it"
    )


def _log(agent: AgentHandle) -> logging.LoggerAdapter[logging.Logger]:
    return about(log, agent.job_uid, attempt=agent.attempt, replica=None)
