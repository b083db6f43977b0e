"""The local engine: the port over slots of this machine. Owns no truth: all of it is in the slots' files."""

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from trainshed.core.launch import LaunchPlan
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.terminals import Autopsy, TerminalWish
from trainshed.engines.local import environs, handles, machine
from trainshed.engines.local.autopsies import NOTHING, Autopsies, Keeping
from trainshed.engines.local.devices import Devices, NvmlDevices
from trainshed.engines.local.documents import (
    Ground,
    Host,
    hosts_text,
    launch_document,
    outermost,
)
from trainshed.engines.local.driver import NO_DRIVER, find_driver
from trainshed.engines.local.gangs import Gangs
from trainshed.engines.local.layout import Layout
from trainshed.engines.local.leases import Leases
from trainshed.engines.local.nodes import Nodes
from trainshed.engines.local.revealing import revealed
from trainshed.engines.local.seat import Seat
from trainshed.engines.local.settling import Settler
from trainshed.engines.local.spawner import Spawner
from trainshed.engines.local.survey import survey
from trainshed.engines.local.sweeper import Sweeper
from trainshed.engines.local.terminals import open_in
from trainshed.engines.local.viewing import Viewer
from trainshed.engines.local.zygotes import ZygoteHandle
from trainshed.engines.port import (
    Capabilities,
    EngineEvent,
    EngineUnavailable,
    Fault,
    LevelUnavailable,
    Node,
    SecretDoor,
    Slot,
    SlotRequest,
    Terminal,
)
from trainshed.replica import cgroups, journal, protocol, sandbox


class LocalEngine:
    """`data`: the service's data directory. `zygote`: a zygote started early; the engine owns it from
    here on and starts new ones when it dies (None: starts the first as well). `storage_socket`: the bucket process's
    Unix socket, None = replicas get no storage endpoint. `hidden`: directories that programs must not see, besides
    slots and logs; `read_only`: directories they may only read, shown even inside hidden ones (runtimes).
    `nodes`: as how many virtual nodes the machine is offered; `node_vcpus`, `node_memory_bytes`, `node_accelerators`:
    what each of them is declared to have, 0 or () = its share of the machine.
    `devices`: where GPUs are learned of, None = from the driver. `lease`: seconds after which a shim that does not
    answer is killed and its replica lost. `ambient`: the service's own environment (`environs` says what of it is
    passed on). `level`: the sandbox level that is demanded, a `protocol.LEVEL_*`; "" = the strongest that works here.
    `visible`: what programs may read besides, even in hidden directories. `processes`: how many a replica may have, 0 =
    any number. `certificate`, `trust`: by what Google's storage hosts are served to those who want that (`Ground`).
    `usage_every`: seconds between two looks at what a replica uses, 0 = nobody looks. `secrets`: what plans refer to. `keeping`: how long what failed
    replicas left is kept; `now`: ns since the epoch."""

    def __init__(
        self,
        data: Path,
        *,
        zygote: ZygoteHandle | None = None,
        storage_socket: Path | None = None,
        hidden: Sequence[Path] = (),
        read_only: Sequence[Path] = (),
        nodes: int = 1,
        node_vcpus: float = 0,
        node_memory_bytes: int = 0,
        node_accelerators: tuple[tuple[str, int], ...] = (),
        devices: Devices | None = None,
        lease: float = 30.0,
        ambient: Mapping[str, str] | None = None,
        level: str = "",
        visible: Sequence[Path] = (),
        processes: int = 0,
        certificate: Path | None = None,
        trust: Path | None = None,
        usage_every: float = 0.0,
        secrets: SecretDoor | None = None,
        keeping: Keeping = NOTHING,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self._identity = machine.identity(data)
        self._layout = Layout(data.resolve())
        self._spawner = Spawner(zygote)
        self._sweeper = Sweeper(self._spawner, self._layout.trash)
        self._autopsies = Autopsies(self._layout, keeping, now, self._sweeper.later)
        self._viewer = Viewer(self._autopsies, self._spawner)
        self._settler = Settler(self._request, self._spawner.renew)
        self._nodes = Nodes(self._emit)
        self._gangs = Gangs(
            self._layout, self._nodes, self._identity, self._emit, self._settler.later
        )
        self._lease = lease
        self._leases = Leases(lease, self._gangs.seats, self._give_up)
        ambient = dict(os.environ if ambient is None else ambient)
        self._ground = Ground(
            hidden=outermost(
                [
                    self._layout.slots,
                    self._layout.logs,
                    self._layout.autopsies,
                    *machine.private_places(),
                    *(path.resolve() for path in hidden),
                ]
            ),
            read_only=tuple(path.resolve() for path in read_only),
            visible=outermost(
                [
                    *(path.resolve() for path in visible),
                    *(Path(path) for path in environs.places(ambient) if Path(path).exists()),
                ]
            ),
            storage_socket=str(storage_socket.resolve()) if storage_socket else "",
            certificate=str(certificate or ""),
            trust=str(trust or ""),
            ambient=ambient,
            processes=processes,
            usage_every=usage_every,
        )
        self._devices = devices or NvmlDevices(ambient)
        self._node_count = nodes
        self._declared = machine.Declared(node_vcpus, node_memory_bytes, node_accelerators)
        self._secrets = secrets
        self._level = level
        self._refused: dict[str, str] = {}
        self._host: Host | None = None
        self._limits: handles.Limits | None = None
        self._capacity: tuple[Node, ...] = ()
        self._events: deque[EngineEvent] = deque()
        self._wake = asyncio.Event()
        self._closed = False

    # --- the port ---

    def capabilities(self) -> Capabilities:
        """Known after `start`."""
        host = self._known_host()
        return Capabilities(
            enforced_memory=True,
            oom_verdict=True,
            process_namespace=host.namespaced,
            stable_hostname=host.namespaced,
            addresses="loopback" if host.namespaced else "literal",
            durable=True,
            memory_limit="kernel" if host.memory_base else "polling",
            isolation=host.level,
            not_stronger=tuple(self._refused.items()),
            process_limit="kernel" if host.pids_base or host.level == protocol.LEVEL_USER else "",
            images=host.namespaced,
            terminals=True,
        )

    async def start(self) -> None:
        await asyncio.to_thread(self._layout.make)
        self._limits = handles.take_what_there_is()
        await self._spawner.ready(self._limits)
        level = await self._find_level()
        await self._look_round(level)
        for found in await asyncio.to_thread(survey, self._layout):
            gang = self._gangs.add(found.job_uid, found.attempt, found.slots)
            for replica, state in found.replicas.items():
                seat = gang[replica]
                seat.begin(state.incarnation)
                seat.answers = state.answers
                seat.settle(state.incarnation, state.finding)
        self._leases.watch()
        await self._spawner.stock(level)
        await self._autopsies.start()
        self._sweeper.later()

    async def close(self) -> None:
        self._closed = True
        self._leases.close()
        for seat in self._gangs.seats():
            seat.let_go()
        await self._settler.close()
        await self._autopsies.close()
        await self._sweeper.close()
        await self._spawner.close()
        if self._limits is not None:
            handles.give_back(self._limits)
            self._limits = None
        self._wake.set()

    async def capacity(self) -> tuple[Node, ...]:
        self._known_host()
        return self._capacity

    async def allocate(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        self._known_host()
        return self._gangs.allocate(job_uid, attempt, requests)

    async def allocations(self) -> tuple[tuple[JobUid, int], ...]:
        return self._gangs.names()

    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        self._sweeper.wait()
        places = [
            (self._gangs.seat(plan.job_uid, plan.attempt, plan.replica), plan) for plan in plans
        ]
        # All or none: what could start now would only wait for the others.
        self._nodes.require(
            seat.slot.node for seat, plan in places if plan.incarnation > seat.incarnation
        )
        starting: list[tuple[Seat, LaunchPlan]] = []
        for seat, plan in places:
            if plan.incarnation == seat.incarnation:
                seat.report_again()
            elif plan.incarnation < seat.incarnation:
                self._report_older(seat, plan.incarnation)
            elif self._may_not_start(seat, plan.incarnation):
                seat.begin(plan.incarnation)
                seat.lose(protocol.NEVER_STARTED)
            else:
                starting.append((seat, plan))
        # Secrets of those that really start: what runs already does without.
        shown = await revealed([plan for _, plan in starting], self._secrets)
        fresh = [
            (seat, plan.incarnation, self._document(seat, plan, masked))
            for (seat, _), (plan, masked) in zip(starting, shown, strict=True)
        ]
        for seat, incarnation, document in fresh:
            self._autopsies.capture(seat.directory, document)
            seat.begin(incarnation, document)
        self._leases.watch()
        for seat, _, _ in fresh:
            try:
                await self._request(seat)
            except (EngineUnavailable, OSError):
                # The others are started all the same; this one is tried again, and given up, by itself.
                self._settler.later(seat)

    async def stop(self, job_uid: JobUid, attempt: int, grace: int) -> None:
        await asyncio.to_thread(self._layout.mark_stopped, job_uid, attempt)
        for seat in self._gangs.of(job_uid, attempt).values():
            if seat.incarnation == 0:
                seat.begin(1)
                seat.lose(protocol.NEVER_STARTED)
            else:
                seat.stop(grace)

    async def stop_replica(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, grace: int
    ) -> None:
        seat = self._gangs.seat(job_uid, attempt, replica)
        if incarnation > seat.incarnation or seat.may_begin:
            # First of all: a shim that is about to begin takes the lock first and then looks for this.
            await self._forbid(seat, incarnation)
        if incarnation < seat.incarnation:
            self._report_older(seat, incarnation)
        elif incarnation == seat.incarnation:
            seat.stop(grace)
        else:
            seat.report(incarnation, protocol.lost(protocol.NEVER_STARTED))

    async def inject(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        fault: Fault,
    ) -> None:
        seat = self._gangs.of(job_uid, attempt).get(replica)
        if seat is None or seat.incarnation != incarnation:
            return
        if not seat.inject(fault):
            # Kept in mind it would be lost with this service, and its caller takes it for done.
            raise EngineUnavailable(f"the shim of {replica} does not listen just now; try again")

    async def release(self, job_uid: JobUid, attempt: int) -> None:
        gang = self._gangs.of(job_uid, attempt)
        if not any(seat.is_live for seat in gang.values()):
            slots = {replica: seat.directory for replica, seat in gang.items()}
            self._autopsies.keep(job_uid, attempt, slots)
        self._gangs.release(job_uid, attempt)
        self._sweeper.later()

    async def open_terminal(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        wish: TerminalWish,
    ) -> Terminal:
        return await open_in(self._gangs.of(job_uid, attempt).get(replica), incarnation, wish)

    def autopsies(self, job_uid: JobUid) -> tuple[Autopsy, ...]:
        return self._autopsies.of(job_uid)

    async def open_autopsy(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, wish: TerminalWish
    ) -> Terminal:
        level = self._known_host().level
        return await self._viewer.open((job_uid, attempt, replica), wish, level)

    def autopsy_files(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId
    ) -> AsyncGenerator[bytes]:
        return self._viewer.files((job_uid, attempt, replica))

    async def delete_autopsy(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> bool:
        return self._viewer.delete((job_uid, attempt, replica))

    async def watch(self) -> AsyncIterator[EngineEvent]:
        while not self._closed:
            while self._events:
                yield self._events.popleft()
            self._wake.clear()
            await self._wake.wait()

    # --- for tests and demonstrations ---

    async def partition(self, node: str) -> None:
        """Have the shims of a node answer no more while its programs run on, as behind a cut cable."""
        self._nodes.cut_off(
            node, [seat for seat in self._gangs.seats() if seat.is_live and seat.slot.node == node]
        )

    async def heal(self, node: str) -> None:
        """End a `partition`: what is left of the shims answers again."""
        self._nodes.rejoin(node)

    # --- inside ---

    def _known_host(self) -> Host:
        if self._host is None:
            raise EngineUnavailable("the local engine has not been started yet")
        return self._host

    async def _find_level(self) -> str:
        """The strongest isolation there is, or the one that is demanded. Raises LevelUnavailable."""
        if self._level not in ("", *sandbox.LEVELS):
            raise LevelUnavailable(
                f"there is no isolation {self._level!r}; there are {', '.join(sandbox.LEVELS)}"
            )
        wanted = (self._level,) if self._level else sandbox.LEVELS
        level, self._refused = await self._spawner.probe(self._layout.probe, wanted)
        if level:
            return level
        if not self._level:
            return protocol.LEVEL_SESSION
        found, _ = await self._spawner.probe(self._layout.probe, sandbox.LEVELS)
        raise LevelUnavailable(
            f"the isolation {self._level} does not work on this machine: {self._refused[self._level]}. "
            f"What works is {found}"
        )

    async def _look_round(self, level: str) -> None:
        """Find out what this machine has."""
        memory_base, cpu_base, pids_base = await asyncio.to_thread(cgroups.find_bases)
        devices = await asyncio.to_thread(self._devices.find)
        driver = await asyncio.to_thread(find_driver) if devices else NO_DRIVER
        whole = machine.node(memory_base)
        shares = machine.share(devices, self._node_count)
        host = Host(
            level,
            memory_base,
            cpu_base,
            whole.memory_bytes,
            self._identity,
            devices,
            pids_base,
            driver,
        )
        self._capacity = machine.split(whole, shares, self._declared)
        self._nodes.begin(shares)
        self._gangs.begin(shares, named=host.namespaced, own_users=level == protocol.LEVEL_OWN)
        self._host = host

    def _emit(self, event: EngineEvent) -> None:
        self._events.append(event)
        self._wake.set()

    def _give_up(self, late: Sequence[Seat], quiet: Sequence[Seat], live: Sequence[Seat]) -> None:
        """The leases of `late` are over (`Leases`)."""
        for seat in self._nodes.silent(late, quiet, live):
            self._settler.expel(seat, self._lease, self._nodes.cleared)

    def _may_not_start(self, seat: Seat, incarnation: int) -> bool:
        stopped = self._layout.is_stopped(seat.job_uid, seat.attempt)
        return stopped or self._layout.is_forbidden(seat.directory, incarnation)

    async def _forbid(self, seat: Seat, incarnation: int) -> None:
        try:
            await asyncio.to_thread(self._layout.forbid, seat.directory, incarnation)
        except OSError as error:
            raise EngineUnavailable(
                f"the stop of {seat.slot.replica} cannot be written down ({error}); make room and try again"
            ) from error

    def _document(self, seat: Seat, plan: LaunchPlan, masked: tuple[str, ...]) -> protocol.Message:
        gang = self._gangs.of(plan.job_uid, plan.attempt).values()
        text = hosts_text([seat.slot for seat in gang], plan.hosts, intercept=plan.intercept)
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
            ground=self._ground,
            directory=seat.directory,
            hosts=hosts,
            logs=logs,
            masked=masked,
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
        if record is None and self._layout.is_forbidden(seat.directory, incarnation):
            record = protocol.lost(protocol.NEVER_STARTED)
        seat.report(
            incarnation, record or protocol.lost(f"superseded by incarnation {seat.incarnation}")
        )
