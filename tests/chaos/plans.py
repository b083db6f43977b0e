"""What a job of a chaos run is: what each replica does in each of its lives, and what is done to it. Pure.

At most one replica of a job, its actor, has eventful lives, so that what follows from them does not hang on a
race.
"""

import enum
from dataclasses import dataclass
from typing import Any


class End(enum.StrEnum):
    """How a life ends. KILLED: its main process, by SIGKILL from outside. SHIM_KILLED: its shim, likewise.
    SHIM_HANGS: its shim is stopped, so that its lease runs out. DRILLED_…: by a drill of that kind, which the
    job orders by its label, or somebody else by the API. RUNS_ON: not by itself, but with the job."""

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
        """Whether the program ends itself."""
        return not (self.is_kill or self.drill or self is End.RUNS_ON)

    @property
    def is_kill(self) -> bool:
        """Whether those who act on it bring it about by a signal."""
        return self in (End.KILLED, End.SHIM_KILLED, End.SHIM_HANGS)

    @property
    def drill(self) -> str | None:
        """The kind of drill that ends it; None if none does."""
        return self.value.partition(": ")[2] or None


@dataclass(frozen=True, slots=True)
class Life:
    """`lines` are written, `burst` at a time with `pause` seconds between; then comes the end. A life that is
    ended from outside goes on writing until it is. `waits_for`: a replica that must have succeeded before
    this life ends. `term`: what SIGTERM does to it (`dies`, `checkpoints`, `ignores`)."""

    lines: int
    burst: int
    pause: float
    end: End
    waits_for: str | None = None
    term: str = "dies"

    def document(self) -> dict[str, Any]:
        """What the program is told."""
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
    """One worker pool: all its replicas live the same lives; the last one is lived again as often as
    needed."""

    replicas: int
    lives: tuple[Life, ...]

    def life(self, number: int) -> Life:
        return self.lives[min(number, len(self.lives) - 1)]


class CancelAt(enum.StrEnum):
    """When the job is cancelled: not at all, as soon as it is submitted, or when the primary's first life has
    written its lines."""

    NEVER = "never"
    ONCE = "at once"
    REACHED = "in the middle"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """`name` is the `ml` job id or the Vertex display name. `actor`: the replica whose lives decide.
    A drill is ordered when the life that it ends has come far."""

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
        """The order of the drill that ends one of its lives, at a line of that life."""
        kind = self.replicas[self.actor].life(number).end.drill
        at_line = f" {self.actor} life {number} "
        return {"kind": kind, "replica": self.actor, "atLine": at_line}


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a life is, in seconds."""

    shortest: float
    longest: float
