"""Manages the agents of a cluster's nodes: who may connect, what each reports, and when one counts as dead.

In one file though it is long: each of these changes what the two others go by."""

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
from trainshed_cluster.remote.attempts import Attempts, never_started
from trainshed_cluster.remote.channel import ChannelClosed
from trainshed_cluster.remote.clocks import Reading, told_skew
from trainshed_cluster.remote.cluster import (
    Cluster,
    ClusterReport,
    ClusterUnavailable,
    HoldEnd,
    HoldName,
    MayLive,
)
from trainshed_cluster.remote.credentials import Issuer
from trainshed_cluster.remote.gang import (
    Ended,
    Gang,
    Seat,
    hold_name,
    is_the_nodes,
    place,
    with_another,
)
from trainshed_cluster.remote.hub import Hub
from trainshed_cluster.remote.lease import beat, longest_silence
from trainshed_cluster.remote.messages import News, Order
from trainshed_cluster.remote.mirror import StreamCopies, TornStream
from trainshed_cluster.remote.nodes import NO_AGENT, ClusterNodes
from trainshed_cluster.remote.options import RemoteOptions

log = logging.getLogger(__name__)

_TICK = 0.5
"""Seconds between two looks at which agents are silent."""
_SETTLED = 1.0
"""Seconds by which a look at the cluster must be younger than an agent's silence, to tell about it."""
_UNDECIDED = 30.0
"""Seconds of silence for which it is waited to be told who ended an agent's hold."""
_LOADING = 10.0
"""Seconds that an agent may take from its start until it counts its lease."""
_LEAVING = 10.0
"""Seconds that an agent has to clean up, before its node is given back."""
_CLOCK = "clock"
"""What says that a node's clock is wrong, in the place of an agent: the next one there has the same clock."""
_PORT = "port"
"""File in the engine's directory: the port that agents were told last."""


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
        #: The capabilities that an agent reported last; None = none has.
        self.capabilities: Capabilities | None = None
        self.hub: Hub[Order, News] = Hub(
            Issuer.open(options.directory / "authority"),
            host=options.listening.host,
            port=options.listening.port or _last_port(options.directory),
            received=News,
            sockets=options.listening.sockets,
            admits=self.admits,
            serve=self.serve,
            has_preamble=self.has_preamble,
            content=self.send_content if options.library else None,
            dialled=options.listening.dialled,
        )
        self.attempts = attempts
        self.cluster = cluster
        self.nodes = nodes
        self._streams = streams
        self.options = options
        #: Every agent that may connect, by the name in its certificate.
        self._by_name: dict[str, AgentHandle] = {}
        #: When agents in a job's container image (None = none) last connected, by image and node, in
        #: monotonic seconds.
        self._came: dict[str | None, dict[str, float]] = {}
        #: How the holds ended that this round of `_look_round` has found gone; None = unknown.
        self._ends: dict[HoldName, HoldEnd | None] = {}
        self._tasks = Crew()

    def begin(self) -> None:
        """Admit the agents of attempts that were written down."""
        for gang in self.attempts.gangs.values():
            seats = (seat for seat in gang.record.seats if not seat.is_vacant)
            # The credentials of other places ended with their holds.
            places = {place(seat.part, seat.request.node) for seat in seats}
            for where in places & gang.record.agents.keys():
                part, node = where.split("/", 1)
                self.add(gang, int(part), node, gang.record.agents[where])
        self._tasks.keep(self._look_round, "looking after agents")

    async def listen(self) -> None:
        """Listen where running agents will dial again. Raises EngineUnavailable."""
        try:
            await self.hub.start()
            file = str(self.options.directory / _PORT)
            await asyncio.to_thread(durable.write, file, str(self.hub.port))
        except OSError as error:
            raise EngineUnavailable(
                f"agents cannot be listened to ({error}); free the port, or name another one if no job runs"
            ) from error

    async def close(self) -> None:
        """Close all connections; the agents run on."""
        await self._tasks.close()
        await self.hub.close()

    # --- whom the hub admits ---

    def admits(self, name: str) -> bool:
        """Whether an agent of that name may connect now."""
        return name in self._by_name

    def has_preamble(self, name: str, line: bytes) -> bool:
        """Whether a replica of that agent begins its connections to the buckets with this line."""
        agent = self._by_name.get(name)
        gang = self._gang(agent)
        if agent is None or gang is None:
            return False
        return any(
            line == protocol.preamble(seat.identity, is_secure, notice)
            for seat in gang.seats_of(agent)
            if seat.identity
            for is_secure in (False, True)
            for notice in (None, *StopNotice)
        )

    async def serve(self, connection: Connection) -> None:
        """Hear an agent out, until its connection ends."""
        agent = self._by_name.get(connection.peer)
        if agent is None or agent.is_resting:
            return
        try:
            await self._hear(agent, connection)
        except ChannelClosed as end:
            if not agent.is_gone and not self.attempts.is_closed:
                _log(agent).warning("agent on node %s: the connection ended: %s", agent.node, end)
        except (TornStream, OSError) as error:
            # A full disk, say: the agent keeps what it has, and begins again.
            _log(agent).warning("agent on node %s: streams not taken: %s", agent.node, error)
        finally:
            agent.disconnect(connection)
            if agent.is_resting and not agent.is_connected:
                # Nobody would look after it.
                self.give_up(agent)

    async def send_content(self, name: str, path: str, writer: asyncio.StreamWriter) -> None:
        """Send an agent content that it may fetch; called by the hub."""
        agent, library = self._by_name.get(name), self.options.library
        if agent is None or library is None:
            writer.close()
            return
        await library.send(path, writer, granted=agent.granted)

    # --- those there are ---

    def add(self, gang: Gang, part: int, node: str, start: str) -> AgentHandle:
        """Admit an agent from now on. `start`: tells it from earlier ones in its place."""
        hold = hold_name(self.options.identity, gang.record, part)
        agent = AgentHandle(
            f"{hold}/{node}/{start}",
            gang.record.job_uid,
            gang.record.attempt,
            part,
            node,
            lease=gang.record.lease,
        )
        gang.agents[place(part, node)] = self._by_name[agent.name] = agent
        return agent

    async def dismiss(self, agent: AgentHandle) -> None:
        """Have an agent clean up and end, if it can be asked to."""
        if agent.is_connected:
            with contextlib.suppress(EngineUnavailable, LaunchRejected, TimeoutError):
                async with asyncio.timeout(_LEAVING):
                    await agent.call(messages.Leave())
        self.give_up(agent)

    def give_up_start(self, gang: Gang, agent: AgentHandle, why: str) -> None:
        """Give up an agent that ended before it connected."""
        where = place(agent.part, agent.node)
        gang.failed_starts[where] = with_another(gang.failed_starts.get(where), why)
        self.give_up(agent)

    def is_the_nodes(self, node: str, image: str | None) -> bool:
        """Whether it is the node's fault that agents in an image (None = none of a job's) do not connect."""
        return is_the_nodes(node, self._came.get(image, {}))

    def give_up(self, agent: AgentHandle) -> None:
        """Revoke an agent's credential."""
        agent.give_up()
        self.nodes.tell_trouble(agent.node, agent.name, None)
        self._by_name.pop(agent.name, None)
        self.hub.drop(agent.name)

    # --- what they tell ---

    def _gang(self, agent: AgentHandle | None) -> Gang | None:
        """Return the gang that an agent works for; None = it rests."""
        if agent is None or agent.is_resting:
            return None
        return self.attempts.gangs.get((agent.job_uid, agent.attempt))

    async def sizes(self, gang: Gang, agent: AgentHandle) -> dict[str, dict[str, int]]:
        """Return how much the service has of the streams of an agent's replicas."""
        copies = StreamCopies(self._streams, *gang.key)
        replicas = [seat.replica for seat in gang.seats_of(agent)]
        return await asyncio.to_thread(copies.sizes, replicas)

    async def _hear(self, agent: AgentHandle, connection: Connection) -> None:
        gang = self._gang(agent)
        if gang is None:
            return
        hello = await connection.receive()
        if not isinstance(hello, messages.Hello) or hello.version != messages.VERSION:
            agent.fail("its agent is of another version; start the service and the agents alike")
            return
        if hello.failure or hello.capabilities is None:
            why = hello.failure or "its agent cannot say what it can do"
            self.nodes.tell_trouble(agent.node, NO_AGENT, why)
            agent.fail(why)
            return
        self.nodes.tell_trouble(agent.node, NO_AGENT, None)
        agent.capabilities = self.capabilities = hello.capabilities
        self._came.setdefault(gang.image_of(agent.part, agent.node), {})[agent.node] = (
            time.monotonic()
        )
        copies = StreamCopies(self._streams, *gang.key)
        await connection.send(messages.Welcome(await self.sizes(gang, agent)))
        agent.connect(connection)
        self._tasks.begin(self._remind(gang, agent), "reminding an agent")
        while True:
            news = await connection.receive()
            agent.heard = time.monotonic()
            if (now := self._gang(agent)) is not gang:
                if now is None:
                    if isinstance(news, messages.Answer):
                        agent.answered(news)
                    elif isinstance(news, messages.Beat):
                        # It waits as long as it hears from this service.
                        agent.acknowledge(news.number)
                    continue
                gang, copies = now, StreamCopies(self._streams, *now.key)
            match news:
                case messages.Appended():
                    # The files of a replica that has left the node are there still, and come once more.
                    if any(seat.replica == news.replica for seat in gang.seats_of(agent)):
                        await asyncio.to_thread(copies.append, news)
                case messages.Answer() | messages.Slots():
                    agent.answered(news)
                case _:
                    self._learn(gang, agent, news)

    async def _remind(self, gang: Gang, agent: AgentHandle) -> None:
        """Repeat the orders that were given while the agent was disconnected."""
        with contextlib.suppress(EngineUnavailable):
            if any(seat.launched for seat in gang.seats_of(agent)):
                await agent.tell_hosts(gang.hosts())
            if (grace := gang.record.stopped) is not None:
                await agent.call(messages.Stop(grace=grace))

    def _learn(self, gang: Gang, agent: AgentHandle, news: News) -> None:
        uid, attempt = agent.job_uid, agent.attempt
        match news:
            case messages.Lines(replica, lines):
                self.attempts.emit(LinesWritten(uid, attempt, replica, lines))
            case messages.Metrics(replica):
                self.attempts.emit(MetricsWritten(uid, attempt, replica))
            case messages.Started(event) | messages.Noted(event):
                if self._is_of(gang, agent, event):
                    self.attempts.report(gang, self._reading(news.clock).of(event))
            case messages.Exited(event) | messages.Lost(event):
                if self._is_of(gang, agent, event):
                    self._learn_end(gang, agent, self._reading(news.clock).of(event))
            case messages.Current():
                agent.caught_up()
            case messages.Ending():
                agent.is_ending = True
            case messages.Beat(number):
                agent.acknowledge(number)
                self._see_clock(agent, self._reading(news.clock))
            case _:
                raise ChannelClosed(f"{type(news).__name__} was not expected")

    def _learn_end(self, gang: Gang, agent: AgentHandle, end: Ended) -> None:
        _note(gang, end)
        if agent.is_ending and isinstance(end, ReplicaExited) and end.exit.stopped:
            self._tasks.begin(self._explain(gang, agent, end), "explaining an end")
        else:
            self.attempts.report(gang, end)

    async def _explain(self, gang: Gang, agent: AgentHandle, end: ReplicaExited) -> None:
        """Report the end of a program that an agent stopped because it was asked to end, with the reason of
        that, which the agent does not know."""
        name = hold_name(self.options.identity, gang.record, agent.part)
        if why := await self.cluster.ending(name):
            end = msgspec.structs.replace(end, loss=why.loss, cause=why.why)
            _note(gang, end)
        self.attempts.report(gang, end)

    def _reading(self, clock: Nanos | None) -> Reading:
        """Return an agent's clock, as it was just told, beside the service's."""
        return Reading(clock, round(self.options.now() * 1e9))

    def _see_clock(self, agent: AgentHandle, reading: Reading) -> None:
        """Have it told if a node's clock is wrong. Limits and moments do not depend on it."""
        skew = (reading.theirs - reading.ours) / 1e9 if reading.theirs else 0.0
        # Messages take their time, which varies.
        if agent.skew is None or abs(skew - agent.skew) >= 1:
            agent.skew = skew
            wrong = told_skew(skew)
            what = wrong and f"{wrong}: times in logs and curves from there are off by that"
            self.nodes.tell_trouble(agent.node, _CLOCK, what)

    def _is_of(self, gang: Gang, agent: AgentHandle, event: ReplicaEvent) -> bool:
        """Whether an event is about one of the agent's own replicas."""
        own = {seat.replica for seat in gang.seats_of(agent)}
        return event.attempt == agent.attempt and event.replica in own

    # --- what is lost ---

    async def _look_round(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            now = time.monotonic()
            agents = tuple(self._by_name.values())
            heard = {agent.node for agent in agents if agent.is_connected}
            nodes = {agent.node for agent in agents}
            self._ends.clear()
            for agent in agents:
                if agent.is_connected and now - agent.heard > 2 * beat(agent.lease):
                    agent.cut()
                if agent.silent_since is not None and (end := await self._gone(agent, now)):
                    # If nothing is heard from any of several nodes, the fault is probably on this side.
                    is_alone = end.loss is Cause.AGENT_LOST and (heard or nodes == {agent.node})
                    if is_alone and self._is_cut_off(agent, now):
                        why = (
                            f"nothing was heard from there for {agent.lease:g} s, though the "
                            "cluster says that it is up; look at the network between it and this service"
                        )
                        self.nodes.quarantine(agent.node, why, agent.lease)
                    await self.lose(agent, end, has_started=True)

    async def _gone(self, agent: AgentHandle, now: float) -> HoldEnd | None:
        """Return why a silent agent counts as dead, and how its replicas were lost; None = it does not
        yet."""
        assert agent.silent_since is not None
        if agent.is_starting:
            return None
        silent = now - agent.silent_since
        longest = longest_silence(agent.lease) + (0 if agent.has_connected else _LOADING)
        is_over = now - agent.heard > longest
        report = self.cluster.report()
        node = next(
            (reported for reported in report.nodes if reported.node.name == agent.node), None
        )
        # If the cluster does not answer, nothing is known of its nodes.
        known = not any(reported.node.unreached for reported in report.nodes)
        is_down = known and (node is None or node.state is NodeState.GONE)
        is_settled = report.looked >= agent.silent_since + _SETTLED
        is_given_up = is_down and is_settled and not (node and node.is_awaited)
        if is_given_up and (is_over or self.options.down_is_lost):
            why = f" ({node.cause})" if node and node.cause else ""
            return HoldEnd(Cause.NODE_FAILED, f"node {agent.node} is gone{why}")
        if is_over and (suspended := self._suspended(agent, report)):
            return HoldEnd(
                Cause.CLUSTER_PREEMPTED,
                f"{suspended}, and node {agent.node} has not been heard of for {agent.lease:g} s",
            )
        if is_over:
            return HoldEnd(
                Cause.AGENT_LOST,
                f"node {agent.node} has not been heard of for {agent.lease:g} s; its agent has ended "
                "its programs by then",
            )
        if is_down or not known or not is_settled:
            # The node may be cut off and the programs live, whatever the cluster says of their holds.
            return None
        return await self._left(agent, report, silent)

    def _suspended(self, agent: AgentHandle, report: ClusterReport) -> str | None:
        """Return why the processes of an agent's hold stand still; None = the cluster lets them run."""
        gang = self._gang(agent)
        if gang is None:
            return None
        return report.suspended.get(hold_name(self.options.identity, gang.record, agent.part))

    async def _left(
        self, agent: AgentHandle, report: ClusterReport, silent: float
    ) -> HoldEnd | None:
        """Return how an agent on an existing node has ended; None = it has not, or that is not known yet."""
        gang = self._gang(agent)
        if gang is None:
            return None
        name = hold_name(self.options.identity, gang.record, agent.part)
        if name not in report.agents:
            return await self._end_of_hold(gang, agent, name, silent)
        if agent.node not in report.agents[name]:
            return _agent_ended(agent)
        return None

    async def _end_of_hold(
        self, gang: Gang, agent: AgentHandle, name: HoldName, silent: float
    ) -> HoldEnd | None:
        """Return how the hold of an agent ended that has been silent for `silent` seconds; None = not certain
        yet."""
        try:
            if name not in self._ends:  # Asked once a round, however many agents the hold had.
                self._ends[name] = await self.cluster.ended(name)
            end = self._ends[name]
        except MayLive as unsure:
            if any(gang.is_live(seat) for seat in gang.seats_of(agent)):
                return None
            return HoldEnd(Cause.AGENT_LOST, str(unsure))
        except ClusterUnavailable as failure:
            if silent < _UNDECIDED:
                return None
            _log(agent).warning("it is not known how a hold ended: %s", failure)
            end = None
        if end is None:
            return _agent_ended(agent)
        return HoldEnd(end.loss, f"{end.why}, and its programs on node {agent.node} with it")

    def _is_cut_off(self, agent: AgentHandle, now: float) -> bool:
        """Whether a dead agent could not reach the service from a node that the cluster says is up, so that
        another agent there could not either."""
        assert agent.silent_since is not None
        report = self.cluster.report()
        is_up = any(
            reported.node.name == agent.node and reported.state is not NodeState.GONE
            for reported in report.nodes
        )
        never_came = agent.capabilities is None and now - agent.silent_since >= agent.lease
        return is_up and (agent.is_unheard or never_came)

    async def lose(self, agent: AgentHandle, end: HoldEnd, *, has_started: bool = False) -> None:
        """Count an agent as lost with all its replicas. `has_started`: the cluster had started it."""
        gang = self._gang(agent)
        if gang is None:
            self.give_up(agent)
            return
        _log(agent).warning("agent on node %s: lost: %s", agent.node, end.why)
        async with self.attempts.lock(gang.key):
            if self._gang(agent) is not gang:
                self.give_up(agent)
                return  # The attempt was released meanwhile.
            record, lost = gang.record, list[Seat]()
            for seat in gang.seats_of(agent):
                if gang.is_live(seat):
                    lost.append(
                        msgspec.structs.replace(
                            seat, lost=seat.launched, cause=end.why, loss=end.loss
                        )
                    )
                elif not seat.launched and record.stopped is not None:
                    lost.append(never_started(seat))
            for seat in lost:
                record = record.with_seat(seat)
            await self.attempts.write(gang, record)
            has_slots = any(seat.slot for seat in gang.seats_of(agent))
            if has_slots or not has_started or end.loss is Cause.NODE_FAILED:
                self.give_up(agent)
            else:
                self.give_up_start(gang, agent, end.why)
        for seat in lost:
            self.attempts.report_lost(gang, seat)


def _last_port(directory: Path) -> int:
    """Return the port that agents of running jobs will dial; 0 = none yet."""
    try:
        return int((directory / _PORT).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _note(gang: Gang, end: Ended) -> None:
    known = gang.ends.get(end.replica)
    if known is None or known.incarnation <= end.incarnation:
        gang.ends[end.replica] = end


def _agent_ended(agent: AgentHandle) -> HoldEnd:
    return HoldEnd(
        Cause.AGENT_LOST, f"its agent on node {agent.node} has ended, and its programs with it"
    )


def _log(agent: AgentHandle) -> logging.LoggerAdapter[logging.Logger]:
    return about(log, agent.job_uid, attempt=agent.attempt, replica=None)
