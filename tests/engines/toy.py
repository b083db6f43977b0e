"""A toy engine: plain subprocesses of this process, on two nodes that are only names.

Written by the checklist "An engine" alone, as a proof that it can be followed. It declares what it can:
programs end with the service (`durable` is False), nothing is kept from anything, and nobody watches memory.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from trainshed.core.job.exits import ExitRecord
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.replica_events import (
    ReplicaEvent,
    ReplicaExited,
    ReplicaLost,
    ReplicaStarted,
)
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.reduction import LOST_FILE
from trainshed.core.streams import StreamSource
from trainshed.engines.conformance.lab import Lab
from trainshed.engines.port import (
    Capabilities,
    EngineEvent,
    EngineUnavailable,
    Fault,
    LaunchRejected,
    LinesWritten,
    Node,
    ReplicaReport,
    Slot,
    SlotRequest,
)
from trainshed.engines.streams import FileStreams
from trainshed.eventloop.background import begin, joined
from trainshed.replica.observe.segments import Segments

NODES = (Node("toy-0", 4, 8 << 30), Node("toy-1", 4, 8 << 30))
NEVER = "never started"
Gang = tuple[JobUid, int]


@dataclass
class Place:
    """A slot, and what became of each incarnation in it."""

    gang: Gang
    slot: Slot
    #: Incarnations up to this one never start.
    refused: int = 0
    incarnation: int = 0
    process: subprocess.Popen[bytes] | None = None
    stopped: bool = False
    stalled: bool = False
    started: int = 0
    #: When its program began or printed its last line, by `time.monotonic`.
    heard: float = 0.0
    ends: dict[int, ReplicaEvent] = field(default_factory=dict[int, ReplicaEvent])

    def lost(self, incarnation: int, cause: str) -> ReplicaLost:
        return ReplicaLost(self.gang[1], self.slot.replica, incarnation, cause)


class ToyEngine:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._streams = FileStreams(directory / "logs")
        self._gangs: dict[Gang, dict[ReplicaId, Place]] = {}
        self._events: asyncio.Queue[EngineEvent | None] = asyncio.Queue()
        self._followers: set[asyncio.Task[None]] = set()
        self._ports = iter(range(21000, 60000))

    @property
    def streams(self) -> FileStreams:
        return self._streams

    def capabilities(self) -> Capabilities:
        return Capabilities(
            enforced_memory=False,
            oom_verdict=False,
            process_namespace=False,
            stable_hostname=False,
            addresses="literal",
            durable=False,
            memory_limit="",
        )

    async def start(self) -> None:
        """Nothing outlives the service, so that there is nothing to find again."""

    async def close(self) -> None:
        for gang in self._gangs.values():
            for place in gang.values():
                self._signal(place, signal.SIGKILL)
        await asyncio.gather(*self._followers)
        self._events.put_nowait(None)

    async def capacity(self) -> tuple[Node, ...]:
        return NODES

    async def allocate(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        gang = self._gangs.get((job_uid, attempt), {})
        for request in requests:
            if request.node not in {node.name for node in NODES}:
                raise LaunchRejected(f"there is no node {request.node}; there are toy-0 and toy-1")
            place = gang.get(request.replica)
            if place is not None and place.slot.node != request.node and place.process is not None:
                raise EngineUnavailable(f"{request.replica} still runs on {place.slot.node}")
        for request in requests:
            if (place := gang.get(request.replica)) is not None:
                place.slot = replace(place.slot, node=request.node)
                continue
            slot = Slot(
                request.replica,
                request.node,
                request.hostname,
                host="127.0.0.1",
                address="127.0.0.1",
                port=next(self._ports),
            )
            gang[request.replica] = Place((job_uid, attempt), slot)
        self._gangs[job_uid, attempt] = gang
        return tuple(place.slot for place in gang.values())

    async def allocations(self) -> tuple[Gang, ...]:
        return tuple(self._gangs)

    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        places = [self._place(plan.job_uid, plan.attempt, plan.replica) for plan in plans]
        for plan, place in zip(plans, places, strict=True):
            if plan.incarnation <= place.incarnation:
                self._report(place, plan.incarnation)
            elif plan.incarnation <= place.refused:
                self._end(place, plan.incarnation, place.lost(plan.incarnation, NEVER))
            else:
                self._start(place, plan)

    async def stop(self, job_uid: JobUid, attempt: int, grace: int) -> None:
        for place in self._gangs.get((job_uid, attempt), {}).values():
            place.refused = 1 << 30
            incarnation = max(place.incarnation, 1)
            if place.incarnation == 0:
                place.incarnation = 1
                self._end(place, 1, place.lost(1, NEVER))
            else:
                self._stop(place, incarnation, grace)

    async def stop_replica(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, grace: int
    ) -> None:
        place = self._place(job_uid, attempt, replica)
        if incarnation > place.incarnation:
            place.refused = max(place.refused, incarnation)
            self._end(place, incarnation, place.lost(incarnation, NEVER))
        else:
            self._stop(place, incarnation, grace)

    async def inject(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, fault: Fault
    ) -> None:
        place = self._gangs.get((job_uid, attempt), {}).get(replica)
        if place is not None and place.incarnation == incarnation:
            self._signal(place, signal.SIGSEGV if fault is Fault.SEGV else signal.SIGKILL)

    async def drop_reducers(
        self, job_uid: JobUid, attempt: int, reducers: Collection[ReplicaId]
    ) -> None:
        gang = self._gangs.get((job_uid, attempt), {})
        slots = [gang[replica].slot for replica in reducers if replica in gang]
        if slots:
            with self._lost((job_uid, attempt)).open("a") as file:
                file.write("".join(f"{slot.host}:{slot.port}\n" for slot in slots))

    async def release(self, job_uid: JobUid, attempt: int) -> None:
        for place in self._gangs.get((job_uid, attempt), {}).values():
            if place.process is not None:
                raise EngineUnavailable(f"{place.slot.replica} still runs; stop it first")
        self._gangs.pop((job_uid, attempt), None)
        self._lost((job_uid, attempt)).unlink(missing_ok=True)

    async def watch(self) -> AsyncIterator[EngineEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    # --- inside ---

    def _place(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> Place:
        place = self._gangs.get((job_uid, attempt), {}).get(replica)
        if place is None:
            raise LaunchRejected(f"{replica} of job {job_uid} has no slot; allocate first")
        return place

    def _lost(self, gang: Gang) -> Path:
        """Where programs read which reducers are lost."""
        return self._directory / f"lost-{gang[0]}-{gang[1]}"

    def _report(self, place: Place, incarnation: int) -> None:
        """Say again what is known of an incarnation."""
        if (end := place.ends.get(incarnation)) is not None:
            self._say(place, end)
        elif incarnation == place.incarnation and place.started:
            self._say(place, self._started(place))

    def _started(self, place: Place) -> ReplicaStarted:
        return ReplicaStarted(place.gang[1], place.slot.replica, place.incarnation, place.started)

    def _end(self, place: Place, incarnation: int, event: ReplicaEvent) -> None:
        place.ends[incarnation] = event
        self._say(place, event)

    def _say(self, place: Place, event: ReplicaEvent) -> None:
        self._events.put_nowait(ReplicaReport(place.gang[0], event))

    def _start(self, place: Place, plan: LaunchPlan) -> None:
        place.incarnation, place.stopped, place.started = plan.incarnation, False, time.time_ns()
        place.stalled, place.heard = False, time.monotonic()
        environ = {"PATH": os.defpath} | dict(plan.environ)
        if plan.reduction.packages:
            self._lost(place.gang).touch()
            environ[LOST_FILE] = str(self._lost(place.gang))
        try:
            # A session of its own, so that all of it can be ended at once.
            place.process = subprocess.Popen(
                plan.argv,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._end(place, plan.incarnation, place.lost(plan.incarnation, str(error)))
            return
        self._say(place, self._started(place))
        following = self._follow(place, place.process, plan.limits.stall_after / 1e9)
        follower = begin(following, f"following {plan.replica}")
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)

    async def _watch(self, place: Place, stall_after: float) -> None:
        """End a program that prints nothing for so many seconds; 0 = it may be silent."""
        rest = stall_after
        while rest > 0:
            await asyncio.sleep(rest)
            rest = place.heard + stall_after - time.monotonic()
        if stall_after:
            place.stalled = True
            self._signal(place, signal.SIGKILL)

    async def _follow(
        self, place: Place, process: subprocess.Popen[bytes], stall_after: float
    ) -> None:
        """Take down what the program prints, and how it ends: first its log, then the report."""
        source = StreamSource(*place.gang, place.slot.replica)
        segments = Segments(str(self._streams.directory(source)))
        loop = asyncio.get_running_loop()

        watching = begin(self._watch(place, stall_after), "watching a program")

        def written() -> None:
            place.heard = time.monotonic()
            event = LinesWritten(*place.gang, place.slot.replica, segments.lines)
            loop.call_soon_threadsafe(self._events.put_nowait, event)

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                segments.write("o", [line.decode("utf-8", "replace").rstrip("\n")])
                written()

        # The program's end, not that of its output: a child that it left may hold that open.
        reading = joined(asyncio.to_thread(read))
        status = await asyncio.to_thread(process.wait)
        watching.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await reading
        segments.sync()
        segments.close()
        record = ExitRecord(
            exit_code=status if status >= 0 else None,
            signal=-status if status < 0 else None,
            oom=False,
            started=place.started,
            ended=max(time.time_ns(), place.started),
            log_lines=segments.lines,
            stopped=place.stopped,
            stalled=place.stalled,
        )
        place.process = None
        event = ReplicaExited(place.gang[1], place.slot.replica, place.incarnation, record)
        self._end(place, place.incarnation, event)

    def _stop(self, place: Place, incarnation: int, grace: int) -> None:
        if incarnation != place.incarnation or place.process is None:
            self._report(place, incarnation)
            return
        place.stopped = True
        self._signal(place, signal.SIGTERM)
        process = place.process

        def kill() -> None:
            if place.process is process:
                self._signal(place, signal.SIGKILL)

        asyncio.get_running_loop().call_later(grace / 1e9, kill)

    def _signal(self, place: Place, number: signal.Signals) -> None:
        if place.process is not None and place.process.returncode is None:
            os.kill(place.process.pid, number)


class ToyLab(Lab):
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def engine(self) -> ToyEngine:
        return ToyEngine(self._directory)
