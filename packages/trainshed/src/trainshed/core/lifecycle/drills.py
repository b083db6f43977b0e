"""Drills: faults that a user orders for a job of theirs, to see that it survives them
(spec/operations#drills)."""

import enum

from msgspec import Struct

from trainshed.core.names import ReplicaId
from trainshed.core.units import Nanos


class DrillKind(enum.StrEnum):
    """The failure that a drill injects."""

    #: The replica is asked to leave its node, as for maintenance.
    MAINTENANCE = "maintenance"
    #: The replica is killed from outside.
    KILL = "kill"
    #: The main process is killed as if at its memory limit.
    OOM = "oom"
    #: The main process gets SIGSEGV.
    SEGV = "segv"
    #: The attempt is judged as if it had been preempted.
    PREEMPT = "preempt"
    #: The attempt is judged as if there were a stock-out.
    STOCKOUT = "stockout"
    #: The attempt is judged as if the service had failed.
    INTERNAL = "internal"

    @property
    def is_of_process(self) -> bool:
        """Whether the engine injects the fault into the replica's processes; the other kinds need no
        engine."""
        return self in (DrillKind.KILL, DrillKind.OOM, DrillKind.SEGV)


class Drill(Struct, frozen=True):
    """One ordered fault.

    It fires once, when the replica is running and a line of its log, written after the drill was ordered,
    matches `at_line`, or `after` has passed since the order and since the start of the incarnation that runs,
    or at once if neither is given.
    """

    #: Counts a job's drills from 1.
    number: int
    kind: DrillKind
    replica: ReplicaId
    #: When it was ordered (ns).
    ordered: Nanos
    at_line: str = ""
    #: Delay before it fires, in nanoseconds.
    after: int = 0
    #: When it fired (ns); 0 = it is armed.
    fired: Nanos = 0
    #: The attempt that it hit.
    attempt: int = 0
    #: The incarnation that it hit.
    incarnation: int = 0
    #: The fault is known to have landed.
    done: bool = False

    @property
    def is_armed(self) -> bool:
        return self.fired == 0
