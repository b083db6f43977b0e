"""The local engine: the port over slots of this machine. Owns no truth: all of it is in the slots' files."""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from pathlib import Path

from trainshed.core.launch import LaunchPlan
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local import findings, machine
from trainshed.engines.local.documents import Host, hosts_text, launch_document, outermost
from trainshed.engines.local.layout import Layout, choose_slot
from trainshed.engines.local.seat import Seat
from trainshed.engines.local.spawner import Spawner
from trainshed.engines.local.survey import survey
from trainshed.engines.local.sweeper import Sweeper
from trainshed.engines.local.zygotes import ZygoteHandle
from trainshed.engines.port import (
    Capabilities,
    EngineEvent,
    EngineUnavailable,
    LaunchRejected,
    Node,
    Slot,
    SlotRequest,
)
from trainshed.replica import cgroups, journal, protocol

log = logging.getLogger(__name__)

_PAUSE = 1.0
"""Seconds before a slot whose files cannot be read or written now is looked into again."""


class LocalEngine:
    """`data`: the service's data directory. `zygote`: a zygote started early; the engine owns it from
    here on and starts new ones when it dies (None: starts the first as well). `storage_socket`: the bucket process's
    Unix socket, None = replicas get no storage endpoint. `hidden`: directories that programs must not see, besides
    slots and logs; `read_only`: directories they may only read, shown even inside hidden ones (runtimes).
    `nodes`: as how many virtual nodes the machine is offered.
    `ambient`: the service's own environment (`documents` says what of it is passed on). `level`: the sandbox level to
    use, a `protocol.LEVEL_*`; "" = the strongest that works here."""

    def __init__(
        self,
        data: Path,
        *,
        zygote: ZygoteHandle | None = None,
        storage_socket: Path | None = None,
        hidden: Sequence[Path] = (),
        read_only: Sequence[Path] = (),
        nodes: int = 1,
        ambient: Mapping[str, str] | None = None,
        level: str = "",
    ) -> None:
        self._layout = Layout(data.resolve())
        self._spawner = Spawner(zygote)
        self._sweeper = Sweeper(self._spawner, self._layout.trash)
        self._storage_socket = str(storage_socket.resolve()) if storage_socket else ""
        self._hidden = outermost(
            [self._layout.slots, self._layout.logs, *(path.resolve() for path in hidden)]
        )
        self._read_only = tuple(path.resolve() for path in read_only)
        self._ambient = dict(os.environ if ambient is None else ambient)
        self._nodes = nodes
        self._level = level
        self._identity = machine.identity(data)
        self._host: Host | None = None
        self._node: Node | None = None
        self._seats: dict[tuple[JobUid, int], dict[ReplicaId, Seat]] = {}
        self._events: deque[EngineEvent] = deque()
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # --- the port ---

    def capabilities(self) -> Capabilities:
        """Known after `start`."""
        host = self._known_host()
        return Capabilities(
            enforced_memory=bool(host.memory_base),
            oom_verdict=bool(host.memory_base),
            process_namespace=host.namespaced,
            stable_hostname=host.namespaced,
            addresses="loopback" if host.namespaced else "literal",
            durable=True,
        )

    async def start(self) -> None:
        await asyncio.to_thread(self._layout.make)
        await self._spawner.ready()
        level = self._level or await self._spawner.probe(self._layout.probe)
        memory_base, cpu_base = await asyncio.to_thread(cgroups.find_bases)
        self._node = machine.node(memory_base)
        self._host = Host(level, memory_base, cpu_base, self._node.memory_bytes, self._identity)
        for found in await asyncio.to_thread(survey, self._layout):
            gang = self._seat_gang(found.job_uid, found.attempt, found.slots)
            for replica, (incarnation, finding) in found.states.items():
                seat = gang[replica]
                seat.begin(incarnation)
                if finding is not None:
                    seat.settle(finding)
                else:
                    self._settle_later(seat)
        await self._spawner.stock(level)
        self._sweeper.later()

    async def close(self) -> None:
        self._closed = True
        for gang in self._seats.values():
            for seat in gang.values():
                seat.let_go()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._sweeper.close()
        await self._spawner.close()
        self._wake.set()

    async def capacity(self) -> tuple[Node, ...]:
        if self._node is None:
            raise EngineUnavailable("the local engine has not been started yet")
        return machine.split(self._node, self._nodes)

    async def allocate(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        if gang := self._seats.get((job_uid, attempt)):
            return tuple(seat.slot for seat in gang.values())
        slots: list[Slot] = []
        for request in requests:
            if not machine.is_node(request.node):
                raise LaunchRejected(
                    f"there is no node {request.node!r}; this engine's are called local, or local-0 and so on"
                )
            slots.append(self._choose_slot(job_uid, request, slots))
        try:
            self._layout.write(job_uid, attempt, tuple(slots))
        except OSError as error:
            raise EngineUnavailable(
                f"the slots of job {job_uid} cannot be written down ({error}); make room and try again"
            ) from error
        self._seat_gang(job_uid, attempt, tuple(slots))
        return tuple(slots)

    async def allocations(self) -> tuple[tuple[JobUid, int], ...]:
        return tuple(self._seats)

    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        self._sweeper.wait()
        fresh: list[Seat] = []
        for plan in plans:
            seat = self._seats.get((plan.job_uid, plan.attempt), {}).get(plan.replica)
            if seat is None:
                raise LaunchRejected(
                    f"{plan.replica} of job {plan.job_uid}, attempt {plan.attempt}, has no slot; allocate first"
                )
            if plan.incarnation == seat.incarnation:
                seat.report_again()
            elif plan.incarnation < seat.incarnation:
                self._report_older(seat, plan.incarnation)
            elif self._layout.is_stopped(plan.job_uid, plan.attempt):
                seat.begin(plan.incarnation)
                seat.lose(protocol.NEVER_STARTED)
            else:
                seat.begin(plan.incarnation, self._document(seat, plan))
                fresh.append(seat)
        for seat in fresh:
            try:
                await self._request(seat)
            except (EngineUnavailable, OSError):
                # The others are started all the same; this one is tried again, and given up, by itself.
                self._settle_later(seat)

    async def stop(self, job_uid: JobUid, attempt: int, grace: int) -> None:
        await asyncio.to_thread(self._layout.mark_stopped, job_uid, attempt)
        for seat in self._seats.get((job_uid, attempt), {}).values():
            if seat.incarnation == 0:
                seat.begin(1)
                seat.lose(protocol.NEVER_STARTED)
            else:
                seat.stop(grace)

    async def release(self, job_uid: JobUid, attempt: int) -> None:
        gang = self._seats.get((job_uid, attempt), {})
        if live := [str(replica) for replica, seat in gang.items() if seat.is_live]:
            raise EngineUnavailable(
                f"{', '.join(live)} of job {job_uid} still run; stop the attempt and wait for their end"
            )
        self._seats.pop((job_uid, attempt), None)
        self._layout.discard(job_uid, attempt)
        self._sweeper.later()

    async def watch(self) -> AsyncIterator[EngineEvent]:
        while not self._closed:
            while self._events:
                yield self._events.popleft()
            self._wake.clear()
            await self._wake.wait()

    # --- inside ---

    def _known_host(self) -> Host:
        if self._host is None:
            raise EngineUnavailable("the local engine has not been started yet")
        return self._host

    def _emit(self, event: EngineEvent) -> None:
        self._events.append(event)
        self._wake.set()

    def _seat_gang(
        self, job_uid: JobUid, attempt: int, slots: tuple[Slot, ...]
    ) -> dict[ReplicaId, Seat]:
        directory = self._layout.attempt(job_uid, attempt)
        gang = {
            slot.replica: Seat(
                job_uid=job_uid,
                attempt=attempt,
                slot=slot,
                directory=directory / str(slot.replica),
                emit=self._emit,
                unclear=self._settle_later,
            )
            for slot in slots
        }
        self._seats[job_uid, attempt] = gang
        return gang

    def _choose_slot(self, job_uid: JobUid, request: SlotRequest, chosen: Sequence[Slot]) -> Slot:
        seated = (seat.slot for gang in self._seats.values() for seat in gang.values())
        host = self._known_host()
        return choose_slot(
            self._identity, job_uid, request, [*seated, *chosen], named=host.namespaced
        )

    def _document(self, seat: Seat, plan: LaunchPlan) -> protocol.Message:
        gang = self._seats[plan.job_uid, plan.attempt].values()
        text = hosts_text([seat.slot for seat in gang], plan.hosts)
        try:
            hosts = self._layout.write_hosts(plan.job_uid, plan.attempt, text)
        except OSError as error:
            raise EngineUnavailable(
                f"the launch of {plan.replica} cannot be written down ({error}); make room and try again"
            ) from error
        logs = self._layout.logs / str(plan.job_uid) / str(plan.attempt) / str(plan.replica)
        return launch_document(
            plan=plan,
            slot=seat.slot,
            host=self._known_host(),
            directory=seat.directory,
            hosts=hosts,
            logs=logs,
            hidden=self._hidden,
            read_only=self._read_only,
            storage_socket=self._storage_socket,
            ambient=self._ambient,
        ).to_message()

    async def _request(self, seat: Seat) -> None:
        """Have the zygote fork the seat's shim, and listen to it from its first moment."""
        ours, theirs = socket.socketpair()
        with theirs:
            seat.attach(ours)
            message = {"slot": str(seat.directory), "plan": seat.plan}
            try:
                await self._spawner.request(message, theirs)
            except BaseException:
                seat.let_go()
                raise

    def _report_older(self, seat: Seat, incarnation: int) -> None:
        record = journal.Entries(str(seat.directory)).record(incarnation)
        seat.report(
            incarnation, record or protocol.lost(f"superseded by incarnation {seat.incarnation}")
        )

    def _settle_later(self, seat: Seat) -> None:
        """A seat has no link and no end: find out which, in a task."""
        self._spawn(self._settle(seat, seat.incarnation))

    async def _settle(self, seat: Seat, incarnation: int) -> None:
        pause = 0.001
        while not self._closed and seat.incarnation == incarnation and seat.is_live:
            try:
                finding = await asyncio.to_thread(findings.look, seat.directory, incarnation)
            except OSError as error:
                # A full disk, say: the end cannot be written down yet, and so must not be told.
                log.warning("%s cannot be looked into: %s; once more in a second", seat.slot, error)
                await asyncio.sleep(_PAUSE)
                continue
            match finding:
                case findings.Changing():
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 0.1)
                case findings.NeverStarted() if seat.plan and seat.retries_left > 0:
                    # The request died with the zygote before a shim began: it may be made again.
                    seat.retries_left -= 1
                    try:
                        await self._request(seat)
                    except (EngineUnavailable, OSError) as error:
                        seat.lose(str(error), by_service=True)
                    return
                case _:
                    seat.settle(finding)
                    return

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
