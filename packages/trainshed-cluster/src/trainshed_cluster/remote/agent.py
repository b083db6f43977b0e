"""The agent of an attempt on a node. It owns a local engine, whose files are in a directory of the node, and
a connection to the service (docs/adr/0061).

If the connection is lost, programs continue and keep their output. The agent repeats its reports on the next
connection. After a whole lease (a setting, in seconds) without contact, the agent ends its programs, because
the service may have moved the replicas to other nodes.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, assert_never

from msgspec.structs import replace

from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.records import StopNotice
from trainshed.core.lifecycle.replica_events import (
    ReplicaEvent,
    ReplicaExited,
    ReplicaLost,
    ReplicaNoted,
    ReplicaStarted,
)
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.terminals import TerminalRefused
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.machine import NAME as THIS_NODE
from trainshed.engines.port import (
    CapacityChanged,
    EngineEvent,
    EngineUnavailable,
    LaunchRejected,
    LevelUnavailable,
    LinesWritten,
    MetricsWritten,
    NodeChanged,
    NodesChosen,
    ReplicaReport,
    StartWaits,
)
from trainshed.eventloop.background import Crew, begin, keep
from trainshed.replica.protocol import NEVER_STARTED
from trainshed.replica.supervisor.deadline import Deadline
from trainshed.replica.system import kernel
from trainshed_cluster.remote import messages
from trainshed_cluster.remote.channel import Channel, ChannelClosed
from trainshed_cluster.remote.content.cache import NodeCache
from trainshed_cluster.remote.dialer import Dialer
from trainshed_cluster.remote.greeting import CONTENT, NotAdmitted
from trainshed_cluster.remote.lease import LAST_GRACE, Lease, beat_interval, remaining_grace
from trainshed_cluster.remote.messages import AgentDocument, News, Order
from trainshed_cluster.remote.mirror import StreamSender
from trainshed_cluster.remote.news import PendingNews, SeenNews
from trainshed_cluster.remote.terminals import Resized, Typed, forward_shell

_CLUSTER_PREFIX: Final = "KUBERNETES_"
"""Prefix of the variables that Kubernetes sets in a Pod for clients of its API. Programs do not receive them.
"""
_OWN_VARIABLES: Final = ("HOSTNAME",)


def with_own_image(plan: LaunchPlan) -> LaunchPlan:
    """Return a copy of a launch plan for a program in the container image in which this process runs.

    The image provides the variables and the working directory that the plan does not set. A plan for a
    program in no such image is returned unchanged. Raises FileNotFoundError if the working directory does not
    exist.
    """
    image = plan.software.image
    if image is None or image.directory:
        return plan
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_CLUSTER_PREFIX) and name not in _OWN_VARIABLES
    }
    environ = own | dict(plan.environ)
    image = replace(image, workdir=image.workdir or str(Path.cwd()))
    return replace(plan, environ=tuple(environ.items()), software=replace(plan.software, image=image))


log = logging.getLogger(__name__)

_MIN_RETRY_INTERVAL, _MAX_RETRY_INTERVAL = 0.05, 2.0
"""Minimum and maximum seconds between two attempts to connect to the service."""
_MIRROR_INTERVAL = 2.0
"""Seconds between two checks of files whose changes cause no events, such as the file with a replica's
resource usage."""
_LAST_NEWS_TIMEOUT = 5.0
"""Maximum seconds to wait until the agent has sent the ends of programs to the service."""
_ENDING_MESSAGE = (
    "the agent is ending, because its lease expired or the service released it; its programs "
    "restart elsewhere once they count as lost"
)
_STARTING_ORDERS = messages.Allocate | messages.Launch | messages.Adopt
"""Orders that start a program or prepare its start."""

Connection = Channel[News, Order]


class Agent:
    """The agent's side of an attempt.

    Args:
        engine: A local engine over the agent's own directory, not started yet.
        deadline: The time at which the agent's programs end, in a file that they share; None = no deadline.
    """

    def __init__(
        self,
        document: AgentDocument,
        engine: LocalEngine,
        dialer: Dialer[News, Order],
        deadline: Deadline | None = None,
    ) -> None:
        self._document = document
        self._job_uid = document.job_uid
        self._attempt = document.attempt
        self._engine = engine
        self._dialer = dialer
        self._sender = StreamSender(engine.streams, document.job_uid, document.attempt)
        self._seen_news = SeenNews()
        #: News that was not sent to the service yet on the current connection.
        self._pending_news = PendingNews()
        #: Held while news is sent. `_turn` counts how often this agent has changed to another attempt.
        self._send_lock = asyncio.Lock()
        self._turn = 0
        self._shells = Crew()
        #: Tasks that execute the service's orders, from all connections.
        self._orders = Crew()
        self._cache = _cache(document)
        #: The agent currently belongs to no attempt. It waits until an attempt adopts it.
        self._is_resting = False
        #: The reason why no program can run here; None = programs can run.
        self._failure: str | None = None
        self._deadline = deadline
        self._lease = Lease(document.lease, _now(), self._show_lease)
        self._exit_requested = asyncio.Event()
        #: Set when the local engine has reported an event.
        self._news_seen = asyncio.Event()
        #: The agent is ending all programs, and starts no further programs.
        self._is_ending = False
        #: The service has revoked this agent. Replacements of its programs may already run elsewhere.
        self._is_revoked = False
        #: The agent ended because it had no contact with the service for a whole lease. The agent's process
        #: must then release the allocation.
        self.is_lease_expired = False

    async def run(self) -> None:
        """Run until the service shuts the agent down, or until the lease ends: the agent had no contact with
        the service for too long."""
        try:
            await self._engine.start()
        except (EngineUnavailable, LevelUnavailable, OSError) as failure:
            self._failure = str(failure)
        tasks = [
            keep(self._watch, "watching the local engine"),
            keep(self._poll_streams, "polling streams"),
            keep(self._stay_connected, "connecting to the service"),
        ]
        exit_waiter = begin(self._exit_requested.wait(), "waiting for the exit")
        try:
            while not self._exit_requested.is_set():
                left = self._lease.until - _now()
                if left <= 0:
                    log.error("the service does not respond and the lease has expired: ending all programs")
                    self.is_lease_expired = True
                    break
                await asyncio.wait([exit_waiter], timeout=left)
            self._is_ending = True
            # If the service requested the exit, do not report that this agent is ending. The service already
            # knows it.
            if not self._exit_requested.is_set():
                self._pending_news.add(None, messages.Ending())
            grace = remaining_grace(self._lease.until, _now())
            await self._end_programs(0.0 if self._is_revoked else grace)
        finally:
            for task in (*tasks, exit_waiter):
                task.cancel()
            await asyncio.gather(exit_waiter, *tasks, return_exceptions=True)
            await self._orders.wait()
            await self._shells.close()
            await self._engine.close()

    async def terminate(self) -> None:
        """End the programs, report their ends, and exit. Called on a signal that is not from the service."""
        if self._is_ending:
            return
        self._is_ending = True
        if not self._is_resting:
            log.warning("received a signal: programs have %g s", self._document.grace)
            self._pending_news.add(None, messages.Ending())
            await self._stop_programs(self._document.grace, StopNotice.PREEMPTED)
        self._exit_requested.set()

    def _show_lease(self, until: float) -> None:
        if self._deadline is not None:
            self._deadline.set(until + LAST_GRACE)

    # --- connections ---

    async def _stay_connected(self) -> None:
        pause = _MIN_RETRY_INTERVAL
        while True:
            began = time.monotonic()
            try:
                with contextlib.closing(await self._dialer.dial()) as connection:
                    await self._serve_connection(connection)
            except NotAdmitted:
                # The replicas of this agent have ended, or have moved to other nodes. End all programs, so
                # that no replica runs twice.
                log.warning("the service does not expect this agent anymore: ending all programs")
                self._is_revoked = True
                self._exit_requested.set()
                return
            except OSError as error:
                log.warning("cannot connect to the service: %s", error)
            # If a connection ends soon after its start, the wait before the next attempt still grows, because
            # the service may be unable to process this agent's messages.
            if time.monotonic() - began > _MAX_RETRY_INTERVAL:
                pause = _MIN_RETRY_INTERVAL
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_RETRY_INTERVAL)

    async def _serve_connection(self, connection: Connection) -> None:
        capabilities = self._engine.capabilities() if self._failure is None else None
        hello = messages.Hello(version=messages.VERSION, capabilities=capabilities, failure=self._failure)
        sent_at = _now()
        await connection.send(hello)
        welcome = await connection.receive()
        if not isinstance(welcome, messages.Welcome):
            raise ChannelClosed(
                f"the first message of the service is {type(welcome).__name__} instead of Welcome"
            )
        if self._is_resting:
            # The service recorded that an attempt adopts this agent, but was killed before this agent
            # received the order. Exit, because this agent does not know the attempt.
            self._exit_requested.set()
            raise ChannelClosed(
                "the service was interrupted while it assigned this agent to an attempt, so this agent exits"
            )
        self._lease.restart(sent_at)
        self._sender.resume(welcome.sizes)
        self._pending_news.clear()
        if self._is_ending:
            # Send this first: the service may have to start replacements.
            self._pending_news.add(None, messages.Ending())
        for replica, news in self._seen_news.all():
            self._pending_news.add(replica, news)
        for replica, news in self._seen_news.latest():
            self._pending_news.add(replica, news)
        self._pending_news.add(None, messages.Current())
        sending = keep(lambda: self._send_news(connection), "sending news")
        beating = keep(lambda: self._send_beats(connection), "sending heartbeats")
        try:
            while True:
                order = await connection.receive()
                if isinstance(order, messages.Alive):
                    self._lease.acknowledge(order.number)
                    continue
                self._orders.begin(self._answer_order(connection, order), "executing an order")
        finally:
            sending.cancel()
            beating.cancel()
            # Wait only for the tasks that use this connection. Orders continue without the connection,
            # because they may take longer than the lease (the agent's maximum time without contact).
            await asyncio.gather(sending, beating, return_exceptions=True)

    async def _send_beats(self, connection: Connection) -> None:
        """Send heartbeats while the connection is open. They renew the lease, the time after which an agent
        without contact ends its programs. Closes the connection if the service does not acknowledge the
        heartbeats."""
        with contextlib.suppress(ChannelClosed):
            while not self._lease.is_unacknowledged:
                number = self._lease.next_number(_now())
                connection.post(messages.Beat(number, clock=time.time_ns()))
                await asyncio.sleep(beat_interval(self._lease.seconds))
            connection.give_up()

    async def _send_news(self, connection: Connection) -> None:
        """Send news to the service. The bytes of a stream are sent before the news that announces them. After
        a failure, closes the connection."""
        try:
            while True:
                replica, news = await self._pending_news.next()
                turn = self._turn
                async with self._send_lock:
                    if turn != self._turn:
                        continue  # Skip this news, which belongs to an earlier attempt.
                    if replica is not None:
                        changes = self._sender.changes(replica)
                        while (part := await asyncio.to_thread(next, changes, None)) is not None:
                            await connection.send(part)
                    if isinstance(news, messages.Timed):
                        news = replace(news, clock=time.time_ns())
                    if news is not None:
                        await connection.send(news)
        except (ChannelClosed, OSError) as error:
            log.warning("cannot send streams: %s", error)
            connection.close()

    # --- orders ---

    async def _answer_order(self, connection: Connection, order: Order) -> None:
        if not isinstance(order, messages.Call):
            return
        try:
            if self._is_ending and isinstance(order, _STARTING_ORDERS):
                raise EngineUnavailable(_ENDING_MESSAGE)
            answer = await self._execute(order)
        except (EngineUnavailable, LaunchRejected, TerminalRefused) as failure:
            answer = messages.Answer(order.number, type(failure).__name__, str(failure))
            if self._is_ending and isinstance(failure, LaunchRejected):
                # The order itself is valid, so the service must not treat the failure as a rejection of the
                # order.
                answer = messages.Answer(order.number, EngineUnavailable.__name__, _ENDING_MESSAGE)
        except Exception as failure:  # Log the error, so that other orders continue.
            log.exception("%s failed", type(order).__name__)
            answer = messages.Answer(order.number, EngineUnavailable.__name__, repr(failure))
        with contextlib.suppress(ChannelClosed):
            await connection.send(answer)
        if answer == messages.Answer(order.number) and isinstance(order, messages.Shutdown):
            self._exit_requested.set()

    async def _execute(self, order: messages.Call) -> messages.AnyAnswer:
        engine, uid, attempt = self._engine, self._job_uid, self._attempt
        match order:
            case messages.Allocate(requests=requests):
                # Replace the cluster's name of this node, because the local engine has only the node
                # THIS_NODE.
                here = [replace(request, node=THIS_NODE) for request in requests]
                return messages.Slots(order.number, await engine.allocate(uid, attempt, here))
            case messages.Provide(content=content):
                if self._cache is None:
                    raise EngineUnavailable(
                        "this agent cannot receive environments and packages, because it has no cache "
                        "directory"
                    )
                await self._cache.fetch_all(content, lambda path: self._dialer.open(CONTENT + path))
            case messages.Launch():
                plans = [with_own_image(plan) for plan in order.plans]
                await asyncio.to_thread(_require_software, plans, self._document.node)
                await asyncio.to_thread(self._begin_logs, plans, order.lines)
                await self._engine.launch_revealed(list(zip(plans, order.masked, strict=True)))
            case messages.Stop(grace=grace, notice=notice):
                await engine.stop(uid, attempt, grace, notice)
            case messages.StopReplica(replica=replica, incarnation=incarnation, grace=grace):
                await engine.stop_replica(uid, attempt, replica, incarnation, grace, notice=order.notice)
            case messages.Inject(replica=replica, incarnation=incarnation, fault=fault):
                await engine.inject(uid, attempt, replica, incarnation, fault)
            case messages.WriteLog(replica=replica, lines=lines):
                await engine.write_log(uid, attempt, replica, lines)
            case messages.Hosts(hosts=hosts):
                await engine.write_hosts(uid, attempt, hosts)
            case messages.OpenTerminal():
                await self._open_terminal(order)
            case messages.Shutdown():
                await engine.release(uid, attempt)
            case _:
                return await self._change_attempt(order)
        return messages.Answer(order.number)

    async def _change_attempt(self, order: messages.Call) -> messages.AnyAnswer:
        """Execute an order that assigns the agent to another attempt or to none."""
        match order:
            case messages.Idle():
                await self._engine.release(self._job_uid, self._attempt)
                if self._cache is not None:
                    self._cache.close()
                await self._reset_news()
                self._is_resting = True
            case messages.Adopt(job_uid=job_uid, attempt=attempt, sizes=sizes):
                await self._reset_news()
                self._is_resting = False
                self._job_uid, self._attempt = job_uid, attempt
                self._sender = StreamSender(self._engine.streams, job_uid, attempt)
                self._sender.resume(sizes)
            case _:
                raise EngineUnavailable(
                    f"this agent does not support the order {type(order).__name__} of the service"
                )
        return messages.Answer(order.number)

    async def _reset_news(self) -> None:
        """Delete all news of the former attempt."""
        self._turn += 1
        async with self._send_lock:
            self._seen_news = SeenNews()
            self._pending_news.clear()

    async def _open_terminal(self, order: messages.OpenTerminal) -> None:
        terminal = await self._engine.open_terminal(
            self._job_uid, self._attempt, order.replica, order.incarnation, order.request
        )
        try:
            stream = await self._dialer.converse(order.stream, Typed | Resized)
        except OSError as error:
            terminal.close()
            raise EngineUnavailable(f"cannot open a stream for the shell: {error}") from error
        self._shells.begin(forward_shell(terminal, stream), "forwarding a shell")

    def _begin_logs(self, plans: Sequence[LaunchPlan], lines: Sequence[int]) -> None:
        try:
            for plan, line in zip(plans, lines, strict=True):
                self._sender.start_log(plan.replica, line)
        except OSError as error:
            raise EngineUnavailable(f"cannot create a log on the node: {error}") from error

    # --- events of the local engine ---

    async def _watch(self) -> None:
        async for event in self._engine.watch():
            self._handle_event(event)

    def _handle_event(self, event: EngineEvent) -> None:
        match event:
            case ReplicaReport(uid, replica_event):
                # Ignore a replica that did not start because this agent is ending. The service counts the
                # replica as lost when the agent has ended.
                if self._is_own(uid, replica_event.attempt) and not (
                    self._is_ending
                    and isinstance(replica_event, ReplicaLost)
                    and replica_event.cause == NEVER_STARTED
                ):
                    news = _news(replica_event)
                    self._seen_news.add(replica_event.replica, replica_event.incarnation, news)
                    self._pending_news.add(replica_event.replica, news)
                    self._news_seen.set()
            case LinesWritten(uid, attempt, replica, lines):
                if self._is_own(uid, attempt):
                    self._note(replica, messages.Lines(replica, lines))
            case MetricsWritten(uid, attempt, replica):
                if self._is_own(uid, attempt):
                    self._note(replica, messages.Metrics(replica))
            case NodeChanged() | CapacityChanged() | StartWaits() | NodesChosen():
                pass  # Ignore these events, because the cluster reports the state of its nodes.
            case _:
                assert_never(event)

    def _note(self, replica: ReplicaId, news: messages.Lines | messages.Metrics) -> None:
        self._seen_news.record_latest(replica, news)
        self._pending_news.add(replica, news)

    def _is_own(self, uid: JobUid, attempt: int) -> bool:
        return (uid, attempt) == (self._job_uid, self._attempt)

    async def _poll_streams(self) -> None:
        while True:
            await asyncio.sleep(_MIRROR_INTERVAL)
            for replica in self._seen_news.replicas():
                self._pending_news.add(replica, None)

    async def _stop_programs(self, grace: float, notice: StopNotice | None = None) -> None:
        """Stop all programs, and wait until they have ended. If the service is connected, also wait until the
        service has received the reports of these ends."""
        uid, attempt = self._job_uid, self._attempt
        await self._engine.stop(uid, attempt, round(grace * 10**9), notice)
        while self._seen_news.live():
            self._news_seen.clear()
            await self._news_seen.wait()
        if self._lease.until > _now() and not self._exit_requested.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_NEWS_TIMEOUT):
                    await self._pending_news.wait_sent()

    async def _end_programs(self, grace: float) -> None:
        """End all programs of the attempt, and release its replicas' slots (directories and addresses)."""
        uid, attempt = self._job_uid, self._attempt
        if (uid, attempt) not in await self._engine.allocations():
            return
        await self._stop_programs(grace)
        while True:
            try:
                await self._engine.release(uid, attempt)
            except EngineUnavailable:
                await asyncio.sleep(0.1)
            else:
                return


def _now() -> float:
    """Return the current time of the clock that measures the lease, the agent's maximum time without contact.
    Unlike the monotonic clock, it also counts the time while the machine is suspended."""
    return time.clock_gettime(kernel.BOOT_CLOCK)


def _news(event: ReplicaEvent) -> News:
    match event:
        case ReplicaStarted():
            return messages.Started(event)
        case ReplicaExited():
            return messages.Exited(event)
        case ReplicaLost():
            return messages.Lost(event)
        case ReplicaNoted():
            return messages.Noted(event)
        case _:
            assert_never(event)


def _cache(document: AgentDocument) -> NodeCache | None:
    """Return the node's cache, or None if the node shares the service's files."""
    return NodeCache(Path(document.cache), node=document.node) if document.cache else None


def _require_software(plans: Sequence[LaunchPlan], node: str) -> None:
    """Raise LaunchRejected if an environment that a launch plan refers to is not accessible on this node."""
    for plan in plans:
        software = plan.software
        if software.image is None:
            for path in filter(None, (software.template, *software.path)):
                try:
                    Path(path).stat()
                except OSError as error:
                    raise LaunchRejected(
                        f"{path}, which the program requires, is not available on node {node} to user "
                        f"{os.geteuid()}: {error.strerror}. Make the service's cache available there at the "
                        "same path, readable for that user"
                    ) from error
