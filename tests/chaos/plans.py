"""The plan of a job in a chaos run: the behavior of each replica in each incarnation, and the actions on it.
Pure.

At most one replica of a job, its actor, has eventful incarnations, so that the outcome does not depend on a
race.
"""

import enum
from dataclasses import dataclass
from typing import Any


class End(enum.StrEnum):
    """The end of an incarnation. KILLED: SIGKILL to its main process from outside. SHIM_KILLED: SIGKILL to
    its shim. SHIM_HANGS: its shim is stopped, so that its lease expires. DRILLED_…: by a drill of that kind,
    ordered by the job's label or through the API. RUNS_ON: only with the job.
    """

    SUCCEEDS = "exits with 0"
    FAILS = "exits with 7"
    EXITS_139 = "exits with 139"
    ABORTS = "aborts"
    SEGFAULTS = "segfaults"
    KILLED = "is killed"
    SHIM_KILLED = "loses its shim"
    SHIM_HANGS = "has a shim that hangs"
    DRILLED_KILL = "is drilled: kill"
    DRILLED_OOM = "is drilled: oom"
    DRILLED_SEGV = "is drilled: segv"
    DRILLED_MAINTENANCE = "is drilled: maintenance"
    DRILLED_PREEMPT = "is drilled: preempt"
    DRILLED_STOCKOUT = "is drilled: stockout"
    DRILLED_INTERNAL = "is drilled: internal"
    RUNS_ON = "runs on"

    @property
    def is_own(self) -> bool:
        """Return whether the program exits without external influence."""
        return not (self.is_kill or self.drill or self is End.RUNS_ON)

    @property
    def is_kill(self) -> bool:
        """Return whether a signal from the run causes this end."""
        return self in (End.KILLED, End.SHIM_KILLED, End.SHIM_HANGS)

    @property
    def drill(self) -> str | None:
        """The kind of drill that causes it, or None."""
        return self.value.partition(": ")[2] or None


@dataclass(frozen=True, slots=True)
class Life:
    """The plan of an incarnation.

    The program writes `lines`, `burst` at a time, with `pause` seconds between them, and then ends. An
    incarnation that is ended from outside writes until then. `waits_for`: a replica that must succeed before
    this incarnation ends. `term`: its reaction to SIGTERM (`dies`, `checkpoints`, `ignores`).
    """

    lines: int
    burst: int
    pause: float
    end: End
    waits_for: str | None = None
    term: str = "dies"

    def document(self) -> dict[str, Any]:
        """Return the arguments of the program."""
        return {
            "lines": self.lines,
            "burst": self.burst,
            "pause": self.pause,
            "end": self.end.value,
            "ends": self.end.is_own,
            "waits_for": self.waits_for,
            "term": self.term,
        }


@dataclass(frozen=True, slots=True)
class Pool:
    """A worker pool. All its replicas have the same incarnations. The last one repeats as often as needed."""

    replicas: int
    lives: tuple[Life, ...]

    def life(self, number: int) -> Life:
        return self.lives[min(number, len(self.lives) - 1)]


class CancelAt(enum.StrEnum):
    """Time of the cancel: never, immediately after the submission, or after the primary's first incarnation
    has written its lines.
    """

    NEVER = "never"
    ONCE = "at once"
    REACHED = "in the middle"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The plan of a job.

    `name`: the `ml` job ID or the Vertex display name. `actor`: the replica whose incarnations decide. A
    drill is ordered after the incarnation has made progress.
    """

    name: str
    kind: str
    is_ml: bool
    pools: tuple[Pool, ...]
    actor: str = "workerpool0-0"
    cancel: CancelAt = CancelAt.NEVER
    restart_whole: bool = False
    no_retries: bool = False

    @property
    def replicas(self) -> dict[str, Pool]:
        return {
            f"workerpool{position}-{index}": pool
            for position, pool in enumerate(self.pools)
            for index in range(pool.replicas)
        }

    def drill(self, number: int) -> dict[str, Any]:
        """The order of the drill that ends one of its incarnations, at a line of that incarnation."""
        kind = self.replicas[self.actor].life(number).end.drill
        at_line = f" {self.actor} life {number} "
        return {"kind": kind, "replica": self.actor, "atLine": at_line}


@dataclass(frozen=True, slots=True)
class Pace:
    """The shortest and the longest length of an incarnation, in seconds."""

    shortest: float
    longest: float
