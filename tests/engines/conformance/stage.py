"""Drives an engine under test (allocates, launches, waits, restarts it) and collects its events."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from tests.engines.conformance.holder import Call, Holder
from tests.engines.conformance.lab import Lab, Program
from trainshed.core.launch import LaunchPlan, Limits
from trainshed.core.lifecycle.replica_events import ReplicaEvent, ReplicaExited, ReplicaLost, ReplicaStarted
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import StreamKind, StreamSource
from trainshed.engines.port import (
    Engine,
    EngineEvent,
    EngineUnavailable,
    NodeChanged,
    NodeState,
    ReplicaReport,
    Slot,
    SlotRequest,
)
from trainshed.eventloop.background import begin

PRIMARY = ReplicaId(0, 0)
SECOND_REPLICA = ReplicaId(1, 0)
SECOND = 10**9
Ended = ReplicaExited | ReplicaLost
T = TypeVar("T")


class Stage:
    """An engine under test. Its jobs have one attempt unless the test specifies another."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.engine: Engine = lab.engine()
        #: Events of the running engine, in order.
        self.events: list[EngineEvent] = []
        #: Number of events received at the last wait for a node.
        self._waited: dict[str, int] = {}
        self._reader: asyncio.Task[None] | None = None
        self._next = 2
        self._gangs: dict[tuple[JobUid, int], tuple[Slot, ...]] = {}

    # --- life cycle ---

    async def open(self) -> None:
        await self.engine.start()
        self._reader = begin(self._read(self.engine), "reading an engine's events")

    async def close(self) -> None:
        await self.engine.close()
        if self._reader is not None:
            await self._reader

    async def restart(self) -> None:
        """Restart the service: create a new engine over the same state, without events."""
        await self.close()
        await self._take_over()

    async def killed_in(self, holder: Holder, step: int | None, method: str, *arguments: Any) -> int:
        """Make a call in another process that is killed at that step (None = after the call), then take over.
        Return the number of steps of the call; 0 = more.
        """
        await self.close()
        steps = await asyncio.to_thread(holder.die_in, Call(method, arguments, step))
        await self._take_over()
        return steps or 0

    async def end_all(self) -> None:
        """Stop all allocations, wait for their end, and release them."""
        self.events.clear()
        self._waited.clear()
        for uid, attempt in self._gangs:
            await self.retry(partial(self.engine.stop, uid, attempt, 0))
        for (uid, attempt), slots in self._gangs.items():
            for slot in slots:
                await self.until(
                    lambda uid=uid, attempt=attempt, slot=slot: any(
                        (e.attempt, e.replica) == (attempt, slot.replica)
                        for e in self.events_of(uid)
                        if isinstance(e, Ended)
                    ),
                    f"the end of {slot.replica} of job {uid}",
                )
        for uid, attempt in self._gangs:
            await self.retry(partial(self.engine.release, uid, attempt))
        self._gangs.clear()

    # --- calls of the engine ---

    def job(self) -> JobUid:
        self._next += 1
        return JobUid(self._next)

    async def nodes(self) -> list[str]:
        return [node.name for node in await self.engine.capacity()]

    async def allocate(
        self, uid: JobUid, *replicas: ReplicaId, node: str = "", nodes: Sequence[str] = (), attempt: int = 1
    ) -> tuple[Slot, ...]:
        """Allocate slots. `nodes`: one for each replica; None = all on the first node. Retries like the
        service until the cluster has granted the nodes.
        """
        gang = replicas or (PRIMARY,)
        nodes = nodes or [node or (await self.nodes())[0]] * len(gang)
        requests = [
            request
            for replica, node in zip(gang, nodes, strict=True)
            for request in requests_for(uid, node, replica)
        ]
        self._gangs.setdefault((uid, attempt), ())
        slots = await self.retry(partial(self.engine.allocate, uid, attempt, requests))
        self._gangs[uid, attempt] = slots
        return slots

    async def launch(self, *plans: LaunchPlan) -> None:
        await self.retry(partial(self.engine.launch, plans))

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Retry a call like the service while the engine is unavailable."""
        deadline = time.monotonic() + self.lab.patience
        while True:
            try:
                return await call()
            except EngineUnavailable:
                if time.monotonic() > deadline:
                    raise
                await self.lab.pass_time()

    def forget(self, uid: JobUid, attempt: int = 1) -> None:
        """Record that the test itself has released an attempt."""
        self._gangs.pop((uid, attempt), None)

    def plan(
        self,
        uid: JobUid,
        program: Program,
        replica: ReplicaId = PRIMARY,
        *,
        incarnation: int = 1,
        attempt: int = 1,
        memory_limit: int = 0,
        stall_after: int = 0,
    ) -> LaunchPlan:
        slots = {slot.replica: slot for slot in self._gangs.get((uid, attempt), ())}
        plan = LaunchPlan(
            uid,
            attempt,
            replica,
            incarnation,
            argv=("true",),
            environ=(),
            hostname=hostname(uid, replica),
            address=slots[replica].address if replica in slots else "",
            hosts=tuple((slot.hostname, slot.address) for slot in slots.values()),
            limits=Limits(memory=memory_limit, cpu_weight=100, stall_after=stall_after),
        )
        return self.lab.with_program(plan, program)

    async def run(self, program: Program, **fields: Any) -> JobUid:
        """Start one replica of a new job."""
        uid = self.job()
        await self.allocate(uid)
        await self.launch(self.plan(uid, program, **fields))
        return uid

    async def run_together(
        self, *programs: Program, nodes: Sequence[str] = (), **fields: Any
    ) -> tuple[JobUid, list[ReplicaId]]:
        """Start a new job with a replica for each of these programs."""
        uid = self.job()
        replicas = [PRIMARY, *(ReplicaId(1, n) for n in range(len(programs) - 1))]
        await self.allocate(uid, *replicas, nodes=nodes)
        pairs = zip(programs, replicas, strict=True)
        await self.launch(*(self.plan(uid, *pair, **fields) for pair in pairs))
        return uid, replicas

    # --- observations ---

    async def until(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.lab.patience
        while not true():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain for {what}; heard {self.events}")
            await self.lab.pass_time()

    async def for_a_while(self) -> None:
        """Wait long enough that an unexpected event would have arrived."""
        for _ in range(20):
            await self.lab.pass_time()

    def events_of(self, uid: JobUid) -> list[ReplicaEvent]:
        """Return all reports about a job's replicas."""
        reports = (e for e in self.events if isinstance(e, ReplicaReport))
        return [report.event for report in reports if report.job_uid == uid]

    def starts(self, uid: JobUid, replica: ReplicaId = PRIMARY, attempt: int = 1) -> list[int]:
        """Return the incarnations with reported starts, once per report."""
        return [
            e.incarnation
            for e in self.events_of(uid)
            if isinstance(e, ReplicaStarted) and (e.attempt, e.replica) == (attempt, replica)
        ]

    async def wait_for_start(
        self, uid: JobUid, replica: ReplicaId = PRIMARY, *, incarnation: int = 1, attempt: int = 1
    ) -> None:
        await self.until(
            lambda: incarnation in self.starts(uid, replica, attempt), f"the start of {replica} of job {uid}"
        )

    def ends(
        self, uid: JobUid, replica: ReplicaId = PRIMARY, *, incarnation: int = 1, attempt: int = 1
    ) -> list[Ended]:
        key = (attempt, replica, incarnation)
        return [
            e
            for e in self.events_of(uid)
            if isinstance(e, Ended) and (e.attempt, e.replica, e.incarnation) == key
        ]

    async def end(
        self, uid: JobUid, replica: ReplicaId = PRIMARY, *, incarnation: int = 1, attempt: int = 1
    ) -> Ended:
        def ends() -> list[Ended]:
            return self.ends(uid, replica, incarnation=incarnation, attempt=attempt)

        await self.until(lambda: bool(ends()), f"the end of {replica} of job {uid}")
        return ends()[0]

    async def wait_for_exit(
        self, uid: JobUid, replica: ReplicaId = PRIMARY, *, incarnation: int = 1, attempt: int = 1
    ) -> ReplicaExited:
        end = await self.end(uid, replica, incarnation=incarnation, attempt=attempt)
        assert isinstance(end, ReplicaExited), end
        return end

    async def wait_for_node(self, node: str, *states: NodeState) -> None:
        """Wait until a node has changed to one of those states since the last wait for it."""

        def place() -> int:
            places = range(self._waited.get(node, 0), len(self.events))
            events = ((number, self.events[number]) for number in places)
            of_node = ((n, e) for n, e in events if isinstance(e, NodeChanged) and e.node == node)
            return next((number + 1 for number, event in of_node if event.state in states), 0)

        await self.until(lambda: place() > 0, f"node {node} to be {' or '.join(states)}")
        self._waited[node] = place()

    def lines(self, uid: JobUid, replica: ReplicaId = PRIMARY, attempt: int = 1) -> list[dict[str, Any]]:
        """Return the complete lines of a replica's log that are readable now, as stored."""
        source = StreamSource(uid, attempt, replica)
        parts = self.engine.streams.open(source, StreamKind.LOG)
        data = b"".join(part.read(0, part.size()) for part in parts)
        return [json.loads(line) for line in data.split(b"\n")[:-1]]

    async def wait_for_lines(self, uid: JobUid, count: int, replica: ReplicaId = PRIMARY) -> None:
        await self.until(lambda: len(self.lines(uid, replica)) >= count, f"{count} lines of {replica}")

    async def _take_over(self) -> None:
        self.events.clear()
        self.engine = self.lab.engine()
        await self.open()

    async def _read(self, engine: Engine) -> None:
        async for event in engine.watch():
            self.events.append(event)


def plan_in(slot: Slot, uid: JobUid) -> LaunchPlan:
    """Run a program of one replica that exits immediately."""
    return LaunchPlan(
        uid,
        1,
        slot.replica,
        1,
        argv=("true",),
        environ=(),
        hostname=slot.hostname,
        address=slot.address,
        hosts=((slot.hostname, slot.address),),
        limits=Limits(memory=0, cpu_weight=100),
    )


def requests_for(uid: JobUid, node: str, *replicas: ReplicaId) -> list[SlotRequest]:
    return [SlotRequest(replica, hostname(uid, replica), node) for replica in replicas]


def hostname(uid: JobUid, replica: ReplicaId) -> str:
    return f"conformance-{uid}-{replica}"


Body = Callable[[Any, Stage], Awaitable[None]]


def run_with_stage(body: Body) -> Callable[[Any, Lab], None]:
    """Decorate a test of the suite: it runs with an open engine, and all its programs are
    stopped at the end.
    """

    async def run(suite: object, lab: Lab) -> None:
        stage = Stage(lab)
        await stage.open()
        try:
            await body(suite, stage)
        finally:
            try:
                await stage.end_all()
            finally:
                await stage.close()
                lab.clear()

    def test(self: object, lab: Lab) -> None:
        asyncio.run(run(self, lab))

    test.__name__ = getattr(body, "__name__", "test")
    test.__doc__ = body.__doc__
    return test


def numbers(lines: Sequence[dict[str, Any]]) -> list[int]:
    return [line["n"] for line in lines]
