"""The agent runs on a node of an attempt: it holds a local engine over a directory of the node, and a
connection to the service, which it dials (docs/adr/0061).

Programs and their lines outlive the connection. The agent repeats on the next connection what it told on the
last one. If the service is silent for a whole lease it may have given the replicas to other nodes, so that
the agent ends them.
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
from trainshed_cluster.remote.lease import LAST_GRACE, Lease, beat, last_grace
from trainshed_cluster.remote.messages import AgentDocument, News, Order
from trainshed_cluster.remote.mirror import StreamSender
from trainshed_cluster.remote.news import Known, Untold
from trainshed_cluster.remote.terminals import Resized, Typed, carry

_CLUSTERS: Final = "KUBERNETES_"
"""How variables begin that the cluster sets for its own clients."""
_OURS: Final = ("HOSTNAME",)


def with_own_image(plan: LaunchPlan) -> LaunchPlan:
    """Return a plan whose program runs in this process's own image with the image's variables and working
    directory where the plan sets none; other plans unchanged. Raises FileNotFoundError if the directory does
    not exist."""
    image = plan.software.image
    if image is None or image.directory:
        return plan
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_CLUSTERS) and name not in _OURS
    }
    environ = own | dict(plan.environ)
    image = replace(image, workdir=image.workdir or str(Path.cwd()))
    return replace(
        plan, environ=tuple(environ.items()), software=replace(plan.software, image=image)
    )


log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
"""Seconds between two tries to reach the service."""
_MIRROR_EVERY = 2.0
"""Seconds between two looks at files that nothing is told of, such as what replicas use."""
_LAST_WORDS = 5.0
"""Seconds that the service has to be told of their ends."""
_OVER = (
    "its agent ends: the service was silent for longer than the lease, or has let it go; what ran there "
    "begins elsewhere once it counts as lost"
)
_BEGIN = messages.Allocate | messages.Launch | messages.Adopt
"""What is to begin something."""

Connection = Channel[News, Order]


class Agent:
    """One node's side of an attempt. `engine`: over the agent's own directory; not started. `deadline`:
    watched by its programs; None = it is not."""

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
        self._known = Known()
        #: News that are still to be sent on the current connection.
        self._untold = Untold()
        #: Held while news are sent; and the number of attempts that the agent has had.
        self._telling = asyncio.Lock()
        self._turn = 0
        self._shells = Crew()
        #: Tasks of the service's orders, on whichever connection these came.
        self._orders = Crew()
        self._cache = _cache(document)
        #: The agent has no attempt now.
        self._is_resting = False
        #: Why nothing can be run here; None = programs can be run.
        self._failure: str | None = None
        self._deadline = deadline
        self._lease = Lease(document.lease, _now(), self._show_lease)
        self._leaving = asyncio.Event()
        #: Set when something was seen of a replica.
        self._seen = asyncio.Event()
        #: The programs are being ended, and none is started any more.
        self._is_over = False
        #: The service has given it up, so that other programs may run in place of its own.
        self._is_replaced = False
        #: It has ended because its lease was over: nobody else may give its hold back.
        self.is_forsaken = False

    async def run(self) -> None:
        """Run until the service dismisses the agent, or the lease ends."""
        try:
            await self._engine.start()
        except (EngineUnavailable, LevelUnavailable, OSError) as failure:
            self._failure = str(failure)
        tasks = [
            keep(self._watch, "hearing the local engine"),
            keep(self._look_round, "looking at streams that nothing is told of"),
            keep(self._talk, "talking to the service"),
        ]
        leaving = begin(self._leaving.wait(), "waiting to be let go")
        try:
            while not self._leaving.is_set():
                left = self._lease.until - _now()
                if left <= 0:
                    log.error("the service is silent, and the lease is over: programs are ended")
                    self.is_forsaken = True
                    break
                await asyncio.wait([leaving], timeout=left)
            self._is_over = True
            # A service that has dismissed the agent knows the reason.
            if not self._leaving.is_set():
                self._untold.add(None, messages.Ending())
            grace = last_grace(self._lease.until, _now())
            await self._end_programs(0.0 if self._is_replaced else grace)
        finally:
            for task in (*tasks, leaving):
                task.cancel()
            await asyncio.gather(leaving, *tasks, return_exceptions=True)
            await self._orders.settled()
            await self._shells.close()
            await self._engine.close()

    async def part(self) -> None:
        """End the programs, report their ends, and leave, because something other than the service ends this
        process."""
        if self._is_over:
            return
        self._is_over = True
        if not self._is_resting:
            log.warning("asked to end: programs have %g s", self._document.grace)
            self._untold.add(None, messages.Ending())
            await self._stop_programs(self._document.grace, StopNotice.PREEMPTED)
        self._leaving.set()

    def _show_lease(self, until: float) -> None:
        if self._deadline is not None:
            self._deadline.set(until + LAST_GRACE)

    # --- connections ---

    async def _talk(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                with contextlib.closing(await self._dialer.dial()) as connection:
                    await self._converse(connection)
            except NotAdmitted:
                # The replicas run elsewhere by now, or are over: they must not run here as well.
                log.warning("the service knows this agent no more: programs are ended")
                self._is_replaced = True
                self._leaving.set()
                return
            except OSError as error:
                log.warning("the service is not reached: %s", error)
            # A service that cannot take what it is sent ends each conversation soon.
            if time.monotonic() - began > _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _converse(self, connection: Connection) -> None:
        able = self._engine.capabilities() if self._failure is None else None
        hello = messages.Hello(version=messages.VERSION, capabilities=able, failure=self._failure)
        last_said = _now()
        await connection.send(hello)
        welcome = await connection.receive()
        if not isinstance(welcome, messages.Welcome):
            raise ChannelClosed(f"the service began with {type(welcome).__name__}")
        if self._is_resting:
            # The service wrote down who adopts it, was killed, and speaks to it as one that works.
            self._leaving.set()
            raise ChannelClosed("it was not told for whom it works")
        self._lease.begin_anew(last_said)
        self._sender.resume(welcome.sizes)
        self._untold.clear()
        if self._is_over:
            # Sent first: the service may have to start replacements.
            self._untold.add(None, messages.Ending())
        for replica, news in self._known.all():
            self._untold.add(replica, news)
        for replica, news in self._known.latest():
            self._untold.add(replica, news)
        self._untold.add(None, messages.Current())
        telling = keep(lambda: self._tell(connection), "telling the service")
        beating = keep(lambda: self._beat(connection), "giving signs of life")
        try:
            while True:
                order = await connection.receive()
                if isinstance(order, messages.Alive):
                    self._lease.acknowledge(order.number)
                    continue
                self._orders.begin(self._do(connection, order), "doing what the service asked for")
        finally:
            telling.cancel()
            beating.cancel()
            # Orders are still carried out, which may take longer than the lease.
            await asyncio.gather(telling, beating, return_exceptions=True)

    async def _beat(self, connection: Connection) -> None:
        """Renew the lease for as long as there is a connection."""
        with contextlib.suppress(ChannelClosed):
            while not self._lease.is_unheard:
                number = self._lease.say(_now())
                connection.post(messages.Beat(number, clock=time.time_ns()))
                await asyncio.sleep(beat(self._lease.seconds))
            connection.give_up()

    async def _tell(self, connection: Connection) -> None:
        """Send news, each after the bytes of streams that it announces. Ends the connection if it cannot
        continue."""
        try:
            while True:
                replica, news = await self._untold.next()
                turn = self._turn
                async with self._telling:
                    if turn != self._turn:
                        continue  # This belongs to an earlier attempt.
                    if replica is not None:
                        changes = self._sender.changes(replica)
                        while (part := await asyncio.to_thread(next, changes, None)) is not None:
                            await connection.send(part)
                    if isinstance(news, messages.Timed):
                        news = replace(news, clock=time.time_ns())
                    if news is not None:
                        await connection.send(news)
        except (ChannelClosed, OSError) as error:
            log.warning("streams are not sent: %s", error)
            connection.close()

    # --- orders ---

    async def _do(self, connection: Connection, order: Order) -> None:
        if not isinstance(order, messages.Call):
            return
        try:
            if self._is_over and isinstance(order, _BEGIN):
                raise EngineUnavailable(_OVER)
            answer = await self._obey(order)
        except (EngineUnavailable, LaunchRejected, TerminalRefused) as failure:
            answer = messages.Answer(order.number, type(failure).__name__, str(failure))
            if self._is_over and isinstance(failure, LaunchRejected):
                # The order itself is valid, which the service has to know.
                answer = messages.Answer(order.number, EngineUnavailable.__name__, _OVER)
        except Exception as failure:  # The service has to learn of it, and other orders continue.
            log.exception("%s failed", type(order).__name__)
            answer = messages.Answer(order.number, EngineUnavailable.__name__, repr(failure))
        with contextlib.suppress(ChannelClosed):
            await connection.send(answer)
        if answer == messages.Answer(order.number) and isinstance(order, messages.Leave):
            self._leaving.set()

    async def _obey(self, order: messages.Call) -> messages.AnyAnswer:
        engine, uid, attempt = self._engine, self._job_uid, self._attempt
        match order:
            case messages.Allocate(requests=requests):
                # The local engine knows only this node.
                here = [replace(request, node=THIS_NODE) for request in requests]
                return messages.Slots(order.number, await engine.allocate(uid, attempt, here))
            case messages.Provide(content=content):
                if self._cache is None:
                    raise EngineUnavailable("this agent was not told where to keep what it is sent")
                await self._cache.have(content, lambda path: self._dialer.open(CONTENT + path))
            case messages.Launch():
                plans = [with_own_image(plan) for plan in order.plans]
                await asyncio.to_thread(_require_software, plans, self._document.node)
                await asyncio.to_thread(self._begin_logs, plans, order.lines)
                await self._engine.launch_shown(list(zip(plans, order.masked, strict=True)))
            case messages.Stop(grace=grace, notice=notice):
                await engine.stop(uid, attempt, grace, notice)
            case messages.StopReplica(replica=replica, incarnation=incarnation, grace=grace):
                await engine.stop_replica(
                    uid, attempt, replica, incarnation, grace, notice=order.notice
                )
            case messages.Inject(replica=replica, incarnation=incarnation, fault=fault):
                await engine.inject(uid, attempt, replica, incarnation, fault)
            case messages.WriteLog(replica=replica, lines=lines):
                await engine.write_log(uid, attempt, replica, lines)
            case messages.Hosts(hosts=hosts):
                await engine.write_hosts(uid, attempt, hosts)
            case messages.OpenTerminal():
                await self._open_terminal(order)
            case messages.Leave():
                await engine.release(uid, attempt)
            case _:
                return await self._change(order)
        return messages.Answer(order.number)

    async def _change(self, order: messages.Call) -> messages.AnyAnswer:
        """Carry out an order that changes the agent's attempt."""
        match order:
            case messages.Rest():
                await self._engine.release(self._job_uid, self._attempt)
                if self._cache is not None:
                    self._cache.close()
                await self._forget()
                self._is_resting = True
            case messages.Adopt(job_uid=job_uid, attempt=attempt, sizes=sizes):
                await self._forget()
                self._is_resting = False
                self._job_uid, self._attempt = job_uid, attempt
                self._sender = StreamSender(self._engine.streams, job_uid, attempt)
                self._sender.resume(sizes)
            case _:
                raise EngineUnavailable(f"this agent does not know {type(order).__name__}")
        return messages.Answer(order.number)

    async def _forget(self) -> None:
        """Drop all news of the former attempt."""
        self._turn += 1
        async with self._telling:
            self._known = Known()
            self._untold.clear()

    async def _open_terminal(self, order: messages.OpenTerminal) -> None:
        terminal = await self._engine.open_terminal(
            self._job_uid, self._attempt, order.replica, order.incarnation, order.request
        )
        try:
            stream = await self._dialer.converse(order.stream, Typed | Resized)
        except OSError as error:
            terminal.close()
            raise EngineUnavailable(f"no stream can be opened for it: {error}") from error
        self._shells.begin(carry(terminal, stream), "carrying a shell")

    def _begin_logs(self, plans: Sequence[LaunchPlan], lines: Sequence[int]) -> None:
        try:
            for plan, line in zip(plans, lines, strict=True):
                self._sender.begin(plan.replica, line)
        except OSError as error:
            raise EngineUnavailable(f"no log can be begun on the node: {error}") from error

    # --- what is seen ---

    async def _watch(self) -> None:
        async for event in self._engine.watch():
            self._see(event)

    def _see(self, event: EngineEvent) -> None:
        match event:
            case ReplicaReport(uid, told):
                # What only never started because this agent ends is not reported: the service itself counts
                # it as lost, when the agent is gone.
                if self._is_mine(uid, told.attempt) and not (
                    self._is_over and isinstance(told, ReplicaLost) and told.cause == NEVER_STARTED
                ):
                    news = _news(told)
                    self._known.add(told.replica, told.incarnation, news)
                    self._untold.add(told.replica, news)
                    self._seen.set()
            case LinesWritten(uid, attempt, replica, lines):
                if self._is_mine(uid, attempt):
                    self._note(replica, messages.Lines(replica, lines))
            case MetricsWritten(uid, attempt, replica):
                if self._is_mine(uid, attempt):
                    self._note(replica, messages.Metrics(replica))
            case NodeChanged() | CapacityChanged() | StartWaits() | NodesChosen():
                pass  # The cluster reports the state of its nodes.
            case _:
                assert_never(event)

    def _note(self, replica: ReplicaId, news: messages.Lines | messages.Metrics) -> None:
        self._known.note(replica, news)
        self._untold.add(replica, news)

    def _is_mine(self, uid: JobUid, attempt: int) -> bool:
        return (uid, attempt) == (self._job_uid, self._attempt)

    async def _look_round(self) -> None:
        while True:
            await asyncio.sleep(_MIRROR_EVERY)
            for replica in self._known.replicas():
                self._untold.add(replica, None)

    async def _stop_programs(self, grace: float, notice: StopNotice | None = None) -> None:
        """Stop all programs; wait until they have ended, and the service knows it if it is there."""
        uid, attempt = self._job_uid, self._attempt
        await self._engine.stop(uid, attempt, round(grace * 10**9), notice)
        while self._known.live():
            self._seen.clear()
            await self._seen.wait()
        if self._lease.until > _now() and not self._leaving.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS):
                    await self._untold.empty()

    async def _end_programs(self, grace: float) -> None:
        """End all programs, because the service counts them as dead."""
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
    """Return the moment by which leases are counted. It goes on while the machine is suspended."""
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
    """Return the node's cache; None = the node shares files with the service."""
    return NodeCache(Path(document.cache), node=document.node) if document.cache else None


def _require_software(plans: Sequence[LaunchPlan], node: str) -> None:
    """Raise LaunchRejected if an environment or image that a plan names is not on this node."""
    for plan in plans:
        software = plan.software
        if software.image is None:
            for path in filter(None, (software.template, *software.path)):
                try:
                    Path(path).stat()
                except OSError as error:
                    raise LaunchRejected(
                        f"{path}, which the program runs in, is not to be had on node {node} by user "
                        f"{os.geteuid()}: {error.strerror}. The service's cache has to be seen there at the "
                        "same path, and be open to that user"
                    ) from error
