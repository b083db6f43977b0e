"""What a slot of the simulated world remembers, as a real one does on disk: its place and every incarnation's fate."""

import enum
from dataclasses import dataclass, field

from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.records import ExitRecord
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import EngineEvent, Slot, SlotExited, SlotLost, SlotStarted
from trainshed.engines.sim.programs import Script


class Fate(enum.StrEnum):
    """STARTING: handed over, no process yet. RUNNING: its process lives. EXITED: sealed. LOST: gone without a record."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    EXITED = "EXITED"
    LOST = "LOST"


@dataclass(slots=True)
class Incarnation:
    """`stopped`: it was sent SIGTERM. `to_stop`: it is to be stopped with this grace (ns) once its node can be reached.
    `vcpus`, `memory_bytes`, `accelerators`: what it takes of its node. `stall_after`: ns without progress after which
    its watchdog ends it, 0 = it has none. `watch_metrics`: what it reports is taken down. `begun`, `over`: when it was handed
    over and when it ended, by the clock that is never set (ns); what it says itself goes by the one on the wall."""

    number: int
    script: Script
    node: str
    fate: Fate = Fate.STARTING
    started: int = 0
    stopped: bool = False
    to_stop: int | None = None
    exit: ExitRecord | None = None
    cause: str = ""
    by_service: bool = False
    vcpus: float = 0.0
    memory_bytes: int = 0
    accelerators: int = 0
    stall_after: int = 0
    watch_metrics: bool = False
    begun: int = 0
    over: int = 0

    @property
    def takes(self) -> tuple[float, int, int]:
        """vCPUs, bytes of memory, accelerators."""
        return self.vcpus, self.memory_bytes, self.accelerators

    @property
    def lives(self) -> bool:
        return self.fate in (Fate.STARTING, Fate.RUNNING)


@dataclass(slots=True)
class Seat:
    """One replica's slot. `refused`: incarnations up to this one never start."""

    job_uid: JobUid
    attempt: int
    slot: Slot
    accelerators: int = 0
    refused: int = 0
    incarnations: dict[int, Incarnation] = field(default_factory=dict[int, Incarnation])

    @property
    def replica(self) -> ReplicaId:
        return self.slot.replica

    @property
    def latest(self) -> Incarnation | None:
        return self.incarnations[max(self.incarnations)] if self.incarnations else None

    def begin(self, plan: LaunchPlan, script: Script) -> Incarnation:
        """One more, handed over."""
        one = self.incarnations[plan.incarnation] = Incarnation(
            plan.incarnation,
            script,
            self.slot.node,
            vcpus=plan.cpu_weight / 100,
            memory_bytes=plan.memory_limit,
            accelerators=self.accelerators,
            stall_after=plan.stall_after,
            watch_metrics=plan.watch_metrics,
        )
        return one

    def never_started(self, number: int) -> SlotLost:
        return SlotLost(self.job_uid, self.attempt, self.replica, number, "never started")

    def told(self, one: Incarnation) -> tuple[EngineEvent, ...]:
        """All that can be said of an incarnation now, in order."""
        key = (self.job_uid, self.attempt, self.replica, one.number)
        events: list[EngineEvent] = []
        if one.started:
            events.append(SlotStarted(*key, one.started))
        if one.fate is Fate.EXITED:
            assert one.exit is not None
            events.append(SlotExited(*key, one.exit))
        if one.fate is Fate.LOST:
            events.append(SlotLost(*key, one.cause, one.by_service))
        return tuple(events)
