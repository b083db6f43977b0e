"""Implements the engine port with slots on this machine. The engine has no state of its own: the files of the
slots are authoritative."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from trainshed.core.capacity import Node
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.records import StopNotice
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import StreamSource
from trainshed.core.terminals import Autopsy, Terminal, TerminalRequest
from trainshed.engines.launch.documents import (
    BuildPlace,
    Revealed,
    Where,
    hosts_text,
    intercepted_hosts,
    launch_document,
    reveal_secrets,
)
from trainshed.engines.local import machine
from trainshed.engines.local.autopsies import Autopsies
from trainshed.engines.local.gangs import Gang, Gangs
from trainshed.engines.local.layout import Layout, writing
from trainshed.engines.local.options import Declared, Options
from trainshed.engines.local.preloaders import Preloaders
from trainshed.engines.local.slot_handle import Finding, SlotHandle, Unclear, probe_latest, probe_slot
from trainshed.engines.local.spawner import Spawner, ZygoteHandle
from trainshed.engines.local.sweeper import Sweeper
from trainshed.engines.local.terminals import open_in
from trainshed.engines.port import Capabilities, EngineEvent, EngineUnavailable, Fault, Slot, SlotRequest
from trainshed.engines.registry import EngineContext
from trainshed.engines.streams import FileStreams
from trainshed.eventloop.background import Crew, in_turns, joined
from trainshed.replica import protocol
from trainshed.replica.supervisor import journal
from trainshed.replica.system.listening import raise_open_files
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

_BATCH = 8
"""Number of a gang's replicas that are handled before other tasks get a turn on the event loop."""
_WARM_IDLE = 600.0
"""Seconds without a program after which a preloader exits."""
_PINGS_PER_LEASE = 3
"""Number of pings that are sent to a shim within a lease, after which a silent shim counts as lost."""
_RETRY_INTERVAL = 1.0
"""Seconds before the engine probes a replica again whose files cannot be read or written."""


class LocalEngine:
    """An `Engine` for this machine. `data`: the service's data directory. `zygote`: a running zygote, which
    the engine then owns; None = start one. The engine replaces a dead zygote."""

    def __init__(
        self, data: Path, options: Options | None = None, *, zygote: ZygoteHandle | None = None
    ) -> None:
        identity = machine.identity(data)
        self._layout = Layout(data.resolve())
        options = self._options = (options or Options()).on_this_machine(self._layout)
        self._streams = FileStreams(self._layout.logs)
        self._probe = machine.HostProbe(options, identity)
        self._spawner = Spawner(zygote)
        self._tasks = Crew()
        self._preloaders = Preloaders(self._layout.preloaders, options.warm_idle)
        self._sweeper = Sweeper(self._layout.trash)
        self._autopsies = Autopsies(
            self._layout, options.rules.autopsy_ttl, options.now, self._sweeper.schedule, self._spawner
        )
        #: Events for `watch`. None = the engine is closed.
        self._events: asyncio.Queue[EngineEvent | None] = asyncio.Queue()
        self._gangs = Gangs(
            self._layout,
            self._probe,
            options.places or identity,
            self._events.put_nowait,
            self._look_into,
            address=options.address,
            kept=self._autopsies.users.values(),
        )
        self._reconciler = Reconciler(
            self._gangs.slot_handles,
            self._fork,
            lambda: self._tasks.begin(self._spawner.replace_hung(), "replacing the zygote"),
            options.lease,
        )

    def build_place(self) -> BuildPlace:
        """See `engines.launch.documents.HasBuildPlace`."""
        options = self._options
        return BuildPlace(self._probe.host, tuple(map(str, options.hidden)), options.rules.visible)

    # --- the methods of the port (`Engine`) ---

    @property
    def streams(self) -> FileStreams:
        return self._streams

    def capabilities(self) -> Capabilities:
        """Return the capabilities, which are known after `start`."""
        return replace(self._probe.capabilities(), autopsies=bool(self._options.rules.autopsy_ttl))

    async def start(self) -> None:
        await asyncio.to_thread(self._layout.make)
        raise_open_files()
        exploring = joined(self._probe.explore(self._spawner, self._layout.probe))
        await self._adopt()
        await exploring
        self._reconciler.watch()
        await self._spawner.keep_pool(self._probe.host.level)
        await self._autopsies.start()
        self._sweeper.schedule()

    async def _adopt(self) -> None:
        """Create handles for the replicas' slots (directories) that an earlier service recorded, and
        determine the state of each."""
        for key, slots in await asyncio.to_thread(lambda: list(self._layout.gangs())):
            if slots:
                self._gangs.add(*key, slots)
            else:
                # No slots are recorded for the attempt, so none of its programs ever ran. Delete its
                # directory.
                self._layout.discard(*key)
        async for some in in_turns(tuple(self._gangs.slot_handles()), _BATCH):
            # Use one thread for all slots (replicas' directories) of a batch: switching threads takes longer
            # than reading a slot.
            latest = await asyncio.to_thread(list, map(probe_latest, some))
            for slot_handle, standing in zip(some, latest, strict=True):
                if standing is not None:
                    slot_handle.start_incarnation(standing[0])
                    slot_handle.apply(*standing)

    async def close(self) -> None:
        await self._tasks.close()
        for slot_handle in self._gangs.slot_handles():
            slot_handle.close()
        await self._reconciler.close()
        await self._autopsies.close()
        await self._sweeper.close()
        await self._preloaders.close()
        await self._spawner.close()
        self._events.put_nowait(None)

    async def capacity(self) -> tuple[Node, ...]:
        return self._probe.nodes

    async def allocate(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        return await self._gangs.allocate(job_uid, attempt, requests)

    async def allocations(self) -> tuple[tuple[JobUid, int], ...]:
        return self._gangs.names()

    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        begun: list[Revealed] = []
        starting: list[LaunchPlan] = []
        for plan in plans:
            slot_handle = self._gangs.slot_handle(plan.job_uid, plan.attempt, plan.replica)
            if plan.incarnation > slot_handle.incarnation:
                starting.append(plan)
            else:
                begun.append((plan, ()))  # The program already runs and has its secrets.
        await self.launch_revealed([*begun, *await reveal_secrets(starting, self._options.secrets)])

    async def launch_revealed(self, shown: Sequence[Revealed]) -> None:
        """Start programs like `launch`. The launch plans already contain their secrets."""
        fresh = await self._documents(await self._starting(shown))
        for slot_handle, incarnation, document in fresh:
            slot_handle.start_incarnation(incarnation, document)
        self._reconciler.watch()
        async for some in in_turns(fresh, _BATCH):
            for slot_handle, _, _ in some:
                try:
                    await self._fork(slot_handle)
                except (EngineUnavailable, OSError):
                    # The start failed. Start the other programs nevertheless. The reconciler tries this start
                    # again, or reports the end of the replica.
                    self._reconciler.reconcile(slot_handle)
        # Only the autopsy (the kept files of a failed replica) needs the launch document, so the starts do
        # not wait for the write.
        await self._autopsies.note({handle.directory: document for handle, _, document in fresh})

    async def stop(self, job_uid: JobUid, attempt: int, grace: int, notice: StopNotice | None = None) -> None:
        gang = tuple(self._gangs.of(job_uid, attempt).values())
        # Stop running programs without waiting for this write: the disk may be full because of one of them.
        marking = joined(asyncio.to_thread(self._layout.mark_stopped, job_uid, attempt))
        for slot_handle in gang:
            if slot_handle.incarnation:
                slot_handle.stop(grace, notice)
        with writing(f"the stop of job {job_uid}"):
            await marking
        # First forbid further starts by writing the mark. Only then report the end of replicas that have not
        # started.
        for slot_handle in gang:
            if slot_handle.incarnation == 0:
                slot_handle.start_incarnation(1)
                slot_handle.lose(protocol.NEVER_STARTED)

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
        slot_handle = self._gangs.slot_handle(job_uid, attempt, replica)
        if incarnation > slot_handle.incarnation or slot_handle.is_awaiting_start:
            # Write the mark first: a shim that is about to start takes the lock and then checks for the mark.
            with writing(f"the stop of {replica}"):
                await asyncio.to_thread(self._layout.forbid, slot_handle.directory, incarnation)
        if incarnation < slot_handle.incarnation:
            self._report_older(slot_handle, incarnation)
        elif incarnation == slot_handle.incarnation:
            slot_handle.stop(grace, notice)
        else:
            slot_handle.report(incarnation, journal.lost_record(protocol.NEVER_STARTED))

    async def inject(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, fault: Fault
    ) -> None:
        slot_handle = self._gangs.of(job_uid, attempt).get(replica)
        if slot_handle is None or slot_handle.incarnation != incarnation:
            return
        if not slot_handle.inject(fault):
            # Without this error, the caller would consider the fault injected. The service does not retry the
            # injection.
            raise EngineUnavailable(f"the shim of {replica} does not respond; try again")

    async def write_hosts(self, job_uid: JobUid, attempt: int, hosts: Sequence[tuple[str, str]]) -> None:
        """Write the current address of each hostname into the hosts file of the attempt's replicas on this
        machine. Raises EngineUnavailable."""
        gang = self._gangs.of(job_uid, attempt)
        if gang:
            await asyncio.to_thread(self._hosts, gang, job_uid, attempt, hosts)

    async def release(self, job_uid: JobUid, attempt: int) -> None:
        gang = self._gangs.of(job_uid, attempt)
        if not any(slot_handle.is_live for slot_handle in gang.values()):
            failed = {replica: handle.directory for replica, handle in gang.items() if handle.has_failed}
            self._autopsies.keep(job_uid, attempt, failed)
        self._gangs.release(job_uid, attempt)
        self._sweeper.schedule()

    async def write_log(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, lines: Sequence[str]
    ) -> None:
        """Write lines into the log of a running replica as if its program had printed them. Raises
        EngineUnavailable."""
        slot_handle = self._gangs.of(job_uid, attempt).get(replica)
        if slot_handle is None:
            raise EngineUnavailable("the replica has ended")
        await slot_handle.write_log(lines)

    async def open_terminal(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, request: TerminalRequest
    ) -> Terminal:
        return await open_in(self._gangs.of(job_uid, attempt).get(replica), incarnation, request)

    def autopsies(self, job_uid: JobUid) -> tuple[Autopsy, ...]:
        return self._autopsies.of(job_uid)

    async def open_autopsy(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, request: TerminalRequest
    ) -> Terminal:
        key = job_uid, attempt, replica
        return await self._autopsies.open(key, request, self._probe.host.level)

    async def delete_autopsy(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> bool:
        return self._autopsies.delete((job_uid, attempt, replica))

    async def watch(self) -> AsyncIterator[EngineEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    async def _starting(
        self, shown: Sequence[Revealed]
    ) -> list[tuple[SlotHandle, LaunchPlan, tuple[str, ...]]]:
        """Return the launch plans of programs to start, each with the replica's slot. For other plans, report
        the known state. Raises LaunchRejected."""
        places = [
            (self._gangs.slot_handle(plan.job_uid, plan.attempt, plan.replica), plan, masked)
            for plan, masked in shown
        ]
        starting: list[tuple[SlotHandle, LaunchPlan, tuple[str, ...]]] = []
        async for some in in_turns(places, _BATCH):
            for slot_handle, plan, masked in some:
                if plan.incarnation == slot_handle.incarnation:
                    slot_handle.report_again()
                elif plan.incarnation < slot_handle.incarnation:
                    self._report_older(slot_handle, plan.incarnation)
                elif self._layout.is_stopped(plan.job_uid, plan.attempt) or self._layout.is_forbidden(
                    slot_handle.directory, plan.incarnation
                ):
                    slot_handle.start_incarnation(plan.incarnation)
                    slot_handle.lose(protocol.NEVER_STARTED)
                else:
                    starting.append((slot_handle, plan, masked))
        return starting

    async def _documents(
        self, starting: Sequence[tuple[SlotHandle, LaunchPlan, tuple[str, ...]]]
    ) -> list[tuple[SlotHandle, int, protocol.Message]]:
        """Return the launch documents (inputs of shims) for these launch plans. Raises EngineUnavailable."""
        documents: list[tuple[SlotHandle, int, protocol.Message]] = []
        hosts: dict[tuple[JobUid, int], Path] = {}
        async for some in in_turns(starting, _BATCH):
            for slot_handle, plan, masked in some:
                key = plan.job_uid, plan.attempt
                if key not in hosts:
                    hosts[key] = self._hosts(self._gangs.of(*key), *key, plan.hosts)
                where = Where(
                    host=self._probe.host,
                    shared=self._options,
                    slot=slot_handle.slot,
                    directory=slot_handle.directory,
                    hosts=hosts[key],
                    logs=self._streams.directory(StreamSource(*key, plan.replica)),
                )
                document = launch_document(plan, where, masked=masked, warm_start=self._preloaders.warm_start)
                documents.append((slot_handle, plan.incarnation, document.to_message()))
        return documents

    def _hosts(self, gang: Gang, job_uid: JobUid, attempt: int, hosts: Sequence[tuple[str, str]]) -> Path:
        """Update the gang's hosts file and return its path. `hosts`: (name, address) pairs, including those
        of replicas on other machines. Raises EngineUnavailable, for example if the disk is full."""
        slots = [slot_handle.slot for slot_handle in gang.values()]
        text = hosts_text(slots, hosts, intercepted_hosts(self._probe.host, self._options))
        with writing(f"the hosts of job {job_uid}"):
            self._layout.require_room()
            if (machine_hosts := self._probe.machine_hosts) is not None:
                machine_hosts.write(hosts)
            return self._layout.write_hosts(job_uid, attempt, text)

    def _look_into(self, slot_handle: SlotHandle) -> None:
        self._reconciler.reconcile(slot_handle)

    async def _fork(self, slot_handle: SlotHandle) -> None:
        """Request a shim for a replica from the zygote, and listen to the shim from its start. Raises
        EngineUnavailable, OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            slot_handle.attach(ours)
            message = {"slot": str(slot_handle.directory), "plan": slot_handle.plan or {}}
            try:
                await self._spawner.request(message, theirs)
            except BaseException:
                slot_handle.close()
                raise

    def _report_older(self, slot_handle: SlotHandle, incarnation: int) -> None:
        entries = journal.Entries(str(slot_handle.directory))
        record = entries.record(incarnation)
        if record is None and self._layout.is_forbidden(slot_handle.directory, incarnation):
            record = journal.lost_record(protocol.NEVER_STARTED)
        superseded = journal.lost_record(f"superseded by incarnation {slot_handle.incarnation}")
        slot_handle.report(incarnation, record or superseded, entries.notes(incarnation))


class Reconciler:
    """Determines the state of replicas whose shim is not connected. Also ends replicas whose shim has been
    silent for longer than its lease.

    There is one task per replica without a connection, and one timer that pings all shims. The reconciler
    counts unanswered pings, not elapsed time. So no shim counts as lost because the service or the machine
    was suspended.
    """

    def __init__(
        self,
        slot_handles: Callable[[], Iterable[SlotHandle]],
        request: Callable[[SlotHandle], Awaitable[None]],
        unborn: Callable[[], None],
        lease: float,
    ) -> None:
        self._slot_handles = slot_handles
        #: Requests a shim for a replica from the zygote.
        self._request = request
        #: Called if a shim that was requested from the zygote has not started before the next ping.
        self._request_not_started = unborn
        #: Time in seconds after which a silent shim is killed.
        self._lease = lease
        self._tasks = Crew()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Start the timer for the pings. It runs while any replica is live."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._lease / _PINGS_PER_LEASE, self._ping_all)

    def _ping_all(self) -> None:
        self._timer = None
        live = [slot_handle for slot_handle in self._slot_handles() if slot_handle.is_live]
        if not live:
            return
        self.watch()
        is_unborn = False
        for slot_handle in live:
            unanswered = slot_handle.ping()
            is_unborn |= unanswered == 1 and slot_handle.is_awaiting_start
            if unanswered >= _PINGS_PER_LEASE:
                self.evict(slot_handle)
        if is_unborn:
            self._request_not_started()

    def reconcile(self, slot_handle: SlotHandle) -> None:
        """Start a task that determines the state of a replica whose shim is not connected. The replica's
        program may have ended."""
        work = partial(self._reconcile, slot_handle, slot_handle.incarnation)
        what = f"job {slot_handle.job_uid}: looking into {slot_handle.slot.replica}"
        self._tasks.keep(work, what)

    def evict(self, slot_handle: SlotHandle) -> None:
        """Kill a shim that has been silent for a whole lease, together with all processes of its replica,
        then report the loss. The report waits until all these processes have exited."""
        if not slot_handle.is_evicted:
            slot_handle.is_evicted = True
            slot_handle.close()
            self.reconcile(slot_handle)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    async def _reconcile(self, slot_handle: SlotHandle, incarnation: int) -> None:
        pause = 0.001
        while slot_handle.expects(incarnation):
            try:
                finding = await asyncio.to_thread(self._determine_state, slot_handle, incarnation)
            except OSError as error:
                # Report the end only after it is recorded. A full disk, for example, prevents the record,
                # which is not the shim's fault.
                slot_handle.count_as_alive()
                job_uid, attempt, replica = slot_handle.key
                subject = about(log, job_uid, attempt=attempt, replica=replica)
                subject.warning("cannot read the slot: %s; trying again in one second", error)
                await asyncio.sleep(_RETRY_INTERVAL)
                continue
            match finding:
                case Unclear.CHANGING:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 0.1)
                case Unclear.NEVER_STARTED if (
                    slot_handle.expects(incarnation) and slot_handle.plan and slot_handle.retries_left > 0
                ):
                    # The zygote died before it forked a shim for this request, so repeat the request.
                    slot_handle.retries_left -= 1
                    try:
                        await self._request(slot_handle)
                    except (EngineUnavailable, OSError) as error:
                        if slot_handle.expects(incarnation):
                            slot_handle.lose(str(error), by_service=True)
                    return
                case _:
                    slot_handle.apply(incarnation, finding)
                    return

    def _determine_state(self, slot_handle: SlotHandle, incarnation: int) -> Finding:
        """Return the state of one run (incarnation) of a replica. If the run is to be evicted, first kill it
        and ensure that it never starts. Blocks."""
        slot = slot_handle.directory
        if slot_handle.is_evicted:
            cause = f"no shim came up for it within {self._lease:g} s"
            if journal.Entries(str(slot)).latest >= incarnation:
                silent = f"its shim did not answer for {self._lease:g} s"
                cause = f"{silent}; it was killed, and its program with it"
            if not journal.expel(str(slot), incarnation, cause):
                # A process cannot exit yet, for example because it waits for a device: check again later.
                return Unclear.CHANGING
        return probe_slot(slot, incarnation)


def new_engine(context: EngineContext) -> LocalEngine:
    """Build the engine. The service has checked the settings (`serve.settings`), and every setting of
    docs/settings.md has a value."""
    table = context.settings
    options = Options(
        access=context.access,
        hidden=context.hidden,
        now=context.now,
        nodes=table["nodes"],
        secrets=context.secrets,
        rules=context.rules,
        kept_ports=context.kept_ports,
        warm_idle=_WARM_IDLE,
        declared_resources=Declared(
            table["node_cpus"], round(table["node_memory"] * 2**30), table["node_accelerators"]
        ),
    )
    return LocalEngine(context.data, options)
