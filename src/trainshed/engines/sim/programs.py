"""What simulated programs do: how long they run, how they end, what they make of SIGTERM. Values only."""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from trainshed.core.names import JobUid, ReplicaId

SIGKILL = 9
SIGSEGV = 11
SIGTERM = 15


class OnTerm(enum.StrEnum):
    """What a program does when it is asked to stop.

    DIE: it has no handler. EXIT: it writes a checkpoint for `term_takes` and exits with `term_code`. IGNORE: it
    goes on until its own end or SIGKILL.
    """

    DIE = "die"
    EXIT = "exit"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Reports:
    """`after` so many ns from its start a trial's program reports one metric at one step."""

    after: int
    metric: str
    value: float
    step: int = 0


@dataclass(frozen=True, slots=True)
class Script:
    """One incarnation's program: runs for `runs` ns, then ends with `code`, or by `signal`, or of its memory limit.

    `start_fails`: the engine cannot start it at all, by its own fault. `hangs`: after `runs` it does nothing any more,
    and only a stall watchdog, or whoever stops it, ends it. `prints`: moments, ns after its start, at which it prints
    a line: "step 1", "step 2", … `reports`: what it reports; nobody listens unless its plan says `watch_metrics`.
    """

    runs: int
    code: int = 0
    signal: int | None = None
    oom: bool = False
    on_term: OnTerm = OnTerm.DIE
    term_takes: int = 0
    term_code: int = 0
    start_fails: bool = False
    hangs: bool = False
    prints: tuple[int, ...] = ()
    reports: tuple[Reports, ...] = ()


@dataclass(frozen=True, slots=True)
class Life:
    """Which incarnation a script is asked for."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId
    incarnation: int


Scripts = Callable[[Life], Script]
"""Must answer the same for the same life: it may be asked again."""


def forever(_: Life) -> Script:
    """Programs that run until somebody stops them."""
    return Script(runs=10**18)
