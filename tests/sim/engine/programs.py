"""Simulated programs and their slots: scripts (values), the record of each incarnation, and the start, stop
and end of processes by their scripts. Has no concept of nodes: callers check that a program is reachable.
"""

import enum
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from tests.sim.engine.clock import Clock
from trainshed.core.job import ExitRecord
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.replica_events import ReplicaEvent, ReplicaExited, ReplicaLost, ReplicaStarted
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.units import Nanos
from trainshed.engines.port import EngineEvent, ReplicaReport, Slot, SlotRequest

SIGKILL = 9
SIGSEGV = 11
SIGTERM = 15


class OnTerm(enum.StrEnum):
    """A program's reaction to SIGTERM."""

    #: It has no handler and dies.
    DIE = "die"
    #: It exits with `term_code` after `term_takes`, as after writing a checkpoint.
    EXIT = "exit"
    #: It runs until its own end, or SIGKILL.
    IGNORE = "ignore"


class Reports(Struct, frozen=True):
    """A trial's program reports one metric at one step, `after` ns from its start."""

    after: int
    metric: str
    value: float
    step: int = 0


class Script(Struct, frozen=True):
    """The behavior of one incarnation's program."""

    #: Run time in nanoseconds. It then ends with `code`, by `signal`, or by its memory limit.
    runs: int
    code: int = 0
    signal: int | None = None
    #: It exceeds its memory limit.
    oom: bool = False
    #: Its reaction to a stop.
    on_term: OnTerm = OnTerm.DIE
    #: Nanoseconds from the stop to its end.
    term_takes: int = 0
    #: Exit code after a stop.
    term_code: int = 0
    #: The engine cannot start it, through its own fault.
    start_fails: bool = False
    #: After `runs` it hangs: only a stall watchdog or a stop ends it.
    hangs: bool = False
    #: Nanoseconds after its start at which it prints a line: "step 1", "step 2", …
    prints: tuple[int, ...] = ()
    #: Its reports, ignored unless its plan has `watch_metrics`.
    reports: tuple[Reports, ...] = ()


class Life(Struct, frozen=True):
    """Identifies the incarnation of a requested script."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId
    incarnation: int


Scripts = Callable[[Life], Script]
"""Returns the script of an incarnation: the same for every call."""


def forever(_: Life) -> Script:
    """Return the script of a program that runs until it is stopped."""
    return Script(runs=10**18)


class Fate(enum.StrEnum):
    """The state of a simulated replica."""

    #: It was launched and has no process yet.
    STARTING = "STARTING"
    #: Its process is alive.
    RUNNING = "RUNNING"
    #: Its program ended, and its record is sealed.
    EXITED = "EXITED"
    #: It disappeared without a record.
    LOST = "LOST"


class Incarnation(Struct):
    """One run of a replica's program."""

    number: int
    script: Script
    node: str
    fate: Fate = Fate.STARTING
    start_time: Nanos = 0
    #: It has received SIGTERM.
    is_stopped: bool = False
    #: Grace period (nanoseconds) of a pending stop, which waits until the node is reachable; None = no
    #: pending stop.
    to_stop: int | None = None
    exit: ExitRecord | None = None
    cause: str = ""
    by_service: bool = False
    #: Its share of the node, like `memory_bytes` and `accelerators`.
    vcpus: float = 0.0
    memory_bytes: int = 0
    accelerators: int = 0
    #: Nanoseconds without progress until its watchdog ends it; None: no watchdog.
    stall_after: int | None = None
    #: Its reports are recorded.
    watch_metrics: bool = False
    #: Time of the launch in nanoseconds of `Clock.now`, like `over`. The records use the wall clock.
    launch_time: int = 0
    #: Time of its end.
    over: int = 0

    @property
    def takes(self) -> tuple[float, int, int]:
        """vCPUs, bytes of memory, accelerators."""
        return self.vcpus, self.memory_bytes, self.accelerators

    @property
    def lives(self) -> bool:
        return self.fate in (Fate.STARTING, Fate.RUNNING)


class SimSlot(Struct):
    """One replica's slot. `refused`: incarnations up to this one never start."""

    job_uid: JobUid
    attempt: int
    slot: Slot
    accelerators: int = 0
    last_rejected: int = 0
    incarnations: dict[int, Incarnation] = field(default_factory=dict[int, Incarnation])

    @property
    def replica(self) -> ReplicaId:
        return self.slot.replica

    @property
    def latest(self) -> Incarnation | None:
        return self.incarnations[max(self.incarnations)] if self.incarnations else None

    def begin(self, plan: LaunchPlan, script: Script) -> Incarnation:
        """Add a launched incarnation."""
        run = self.incarnations[plan.incarnation] = Incarnation(
            plan.incarnation,
            script,
            self.slot.node,
            vcpus=(plan.limits.cpu_weight or 0) / 100,
            memory_bytes=plan.limits.memory or 0,
            accelerators=self.accelerators,
            stall_after=plan.limits.stall_after,
            watch_metrics=plan.watch_metrics,
        )
        return run

    def never_started(self, number: int) -> ReplicaReport:
        lost = ReplicaLost(self.attempt, self.replica, number, "never started")
        return ReplicaReport(self.job_uid, lost)

    def events_of(self, run: Incarnation) -> tuple[EngineEvent, ...]:
        """Return the events that completely describe an incarnation now, in order."""
        key = (self.attempt, self.replica, run.number)
        events: list[ReplicaEvent] = []
        if run.start_time:
            events.append(ReplicaStarted(*key, run.start_time))
        if run.fate is Fate.EXITED:
            assert run.exit is not None
            events.append(ReplicaExited(*key, run.exit))
        if run.fate is Fate.LOST:
            events.append(ReplicaLost(*key, run.cause, run.by_service))
        return tuple(ReplicaReport(self.job_uid, event) for event in events)


class Tell(Protocol):
    """Sends the events of an incarnation. `news`: only the last event, which is new."""

    def __call__(self, sim_slot: SimSlot, run: Incarnation, *, news: bool = False) -> None: ...


class Processes:
    """The incarnations of all replicas, and their behavior over time."""

    def __init__(
        self,
        clock: Clock,
        longest_start: int,
        dice: random.Random,
        tell: Tell,
        *,
        printed: Callable[[SimSlot, Incarnation, str], None],
        reported: Callable[[SimSlot, Incarnation, Reports], None],
    ) -> None:
        self._clock = clock
        #: Maximum nanoseconds from a launch to its process.
        self._longest_start = longest_start
        self._random = dice
        self._tell = tell
        #: Called when a program prints a line.
        self._printed = printed
        #: Called when a program whose reports are recorded reports a metric.
        self._reported = reported
        self._earliest = 0

    def no_starts_before(self, moment: Nanos) -> None:
        """Start no process before that time, as without a zygote."""
        self._earliest = max(self._earliest, moment)

    def start(self, sim_slot: SimSlot, run: Incarnation) -> None:
        """Launch an incarnation. Its process starts a little later."""
        wait = max(0, self._earliest - self._clock.now)
        delay = wait + self._random.randint(1, self._longest_start)
        self._clock.after(delay, lambda: self._begin(sim_slot, run))

    def stop(self, sim_slot: SimSlot, run: Incarnation, grace: int) -> None:
        """Send SIGTERM, and SIGKILL after `grace` ns. A launched incarnation without a process never gets
        one. For a finished one, send its events again.
        """
        if run.fate is Fate.STARTING:
            run.fate, run.cause, run.over = Fate.LOST, "never started", self._clock.now
        if not run.lives:
            self._tell(sim_slot, run)
            return
        if run.is_stopped:
            return
        run.is_stopped = True
        script = run.script
        if script.on_term is OnTerm.DIE:
            self.end(sim_slot, run, None, SIGTERM)
        elif script.on_term is OnTerm.EXIT and script.term_takes < grace:
            self._end_after(sim_slot, run, script.term_takes, script.term_code, None)
        else:
            self._end_after(sim_slot, run, grace, None, SIGKILL)

    def end(
        self,
        sim_slot: SimSlot,
        run: Incarnation,
        code: int | None,
        signal: int | None,
        *,
        oom: bool = False,
        stalled: bool = False,
    ) -> None:
        """End an incarnation now, with a sealed record."""
        run.fate, run.over = Fate.EXITED, self._clock.now
        run.exit = ExitRecord(
            exit_code=code,
            signal=signal,
            oom=oom,
            started=run.start_time,
            ended=self._clock.wall,
            stopped=run.is_stopped,
            stalled=stalled,
        )
        self._tell(sim_slot, run, news=True)

    def lose(
        self, sim_slot: SimSlot, run: Incarnation, cause: str, *, by_service: bool = False, tell: bool = True
    ) -> None:
        """Make an incarnation disappear without a record."""
        run.fate, run.over = Fate.LOST, self._clock.now
        run.cause, run.by_service = cause, by_service
        if tell:
            self._tell(sim_slot, run, news=True)

    def _begin(self, sim_slot: SimSlot, run: Incarnation) -> None:
        if run.fate is not Fate.STARTING:
            return
        script = run.script
        if script.start_fails:
            self.lose(sim_slot, run, "its sandbox could not be made", by_service=True)
            return
        run.fate, run.start_time = Fate.RUNNING, self._clock.wall
        self._tell(sim_slot, run, news=True)
        self._print_later(sim_slot, run)
        self._report_later(sim_slot, run)
        if script.hangs:
            if run.stall_after:
                silent_for = script.runs + run.stall_after
                self._end_after(sim_slot, run, silent_for, None, SIGKILL, stalled=True)
            return
        code = None if script.signal is not None or script.oom else script.code
        signal = SIGKILL if script.oom else script.signal
        self._end_after(sim_slot, run, script.runs, code, signal, oom=script.oom)

    def _print_later(self, sim_slot: SimSlot, run: Incarnation) -> None:
        for number, delay in enumerate(run.script.prints, 1):

            def prints(text: str = f"step {number}") -> None:
                if run.fate is Fate.RUNNING:
                    self._printed(sim_slot, run, text)

            self._clock.after(delay, prints)

    def _report_later(self, sim_slot: SimSlot, run: Incarnation) -> None:
        for report in run.script.reports if run.watch_metrics else ():

            def reports(report: Reports = report) -> None:
                if run.fate is Fate.RUNNING:
                    self._reported(sim_slot, run, report)

            self._clock.after(report.after, reports)

    def _end_after(
        self,
        sim_slot: SimSlot,
        run: Incarnation,
        delay: int,
        code: int | None,
        signal: int | None,
        *,
        oom: bool = False,
        stalled: bool = False,
    ) -> None:
        def ends() -> None:
            if run.fate is Fate.RUNNING:
                self.end(sim_slot, run, code, signal, oom=oom, stalled=stalled)

        self._clock.after(delay, ends)


Gang = tuple[JobUid, int]
"""A job's attempt."""


class Gangs:
    """All allocated slots that were not released, by gang."""

    def __init__(self) -> None:
        self._seats: dict[Gang, dict[ReplicaId, SimSlot]] = {}

    def names(self) -> tuple[Gang, ...]:
        return tuple(self._seats)

    def of(self, job_uid: JobUid, attempt: int) -> Mapping[ReplicaId, SimSlot]:
        return self._seats.get((job_uid, attempt), {})

    def sim_slots(self) -> Iterator[SimSlot]:
        for gang in self._seats.values():
            yield from gang.values()

    def of_replica(self, job_uid: JobUid, replica: ReplicaId) -> Iterator[SimSlot]:
        """Yield the replica's slots in all attempts of the job."""
        for (uid, _), gang in self._seats.items():
            if uid == job_uid and replica in gang:
                yield gang[replica]

    def take(self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]) -> tuple[Slot, ...]:
        """Allocate slots. A replica with a slot keeps it, and the slot moves to the requested node."""
        gang = self._seats.setdefault((job_uid, attempt), {})
        for request in requests:
            sim_slot = gang.get(request.replica)
            if sim_slot is None:
                slot = _slot(job_uid, len(gang), request)
                gang[request.replica] = SimSlot(job_uid, attempt, slot, request.accelerators)
            elif sim_slot.slot.node != request.node:
                sim_slot.slot = replace(sim_slot.slot, node=request.node)
        return tuple(gang[request.replica].slot for request in requests)

    def release(self, job_uid: JobUid, attempt: int) -> None:
        self._seats.pop((job_uid, attempt), None)


def _slot(job_uid: JobUid, number: int, request: SlotRequest) -> Slot:
    """Create a slot. `number`: existing slots of the gang."""
    devices = None
    if request.accelerators:
        devices = ",".join(map(str, range(request.accelerators)))
    return Slot(
        request.replica,
        request.node,
        request.hostname,
        request.hostname,
        f"127.{64 + job_uid % 64}.{number // 250}.{number % 250 + 1}",
        2222,
        devices,
    )
