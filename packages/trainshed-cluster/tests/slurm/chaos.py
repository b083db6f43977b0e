"""Faults at random on a cluster of the lab, and what jobs that ran meanwhile are held against: the diaries of
their programs (`tests.chaos.program`)."""

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.chaos.deeds import Deeds
from tests.chaos.diary import LifeSeen
from tests.chaos.expected import Course, course
from tests.chaos.verify import Over, lines, outcome
from tests.chaos.victim import Victim
from tests.slurm.lab import SlurmLab
from tests.slurm.nodes import HUB

LEASE: Final = 8.0
"""Seconds of silence after which an agent gives up."""
_FENCED: Final = LEASE + 5.0
"""Seconds after which it counts as dead."""
KINDS: Final = (
    "succeeds",
    "gang_succeeds",
    "fails",
    "worker_fails",
    "cancelled",
    "cancelled_at_once",
    "cancelled_near_its_end",
)
"""Kinds of jobs whose end is the same however often their replicas are started again."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done, between these moments (ns). `node`: to that one; None: to all. `cuts`: programs may have
    been ended by it, or by what followed from it."""

    kind: str
    node: str | None
    began: int
    ended: int
    cuts: bool


class Mischief:
    """Does one thing after the other, each undone before the next one. By itself it leaves all as it was."""

    def __init__(self, lab: SlurmLab, victim: Victim, deeds: Deeds, seed: int) -> None:
        self.done: list[Fault] = []
        self._lab = lab
        self._victim = victim
        self._deeds = deeds
        self._chance = random.Random(seed)
        #: How often, whether programs are cut, what is done to a node (or, whatever the node, to all).
        self._kinds: dict[str, tuple[int, bool, Callable[[str], None]]] = {
            "service": (5, False, self._kill_service),
            "controller killed": (3, True, self._kill_controller),
            "controller stopped": (1, False, self._stop_controller),
            "slurmd": (3, True, self._kill_slurmd),
            "power": (3, True, self._lose_power),
            "network": (2, True, self._unplug),
            "from service": (2, True, lambda node: self._cut(node, "service")),
            "from controller": (2, True, lambda node: self._cut(node, "controller")),
            "agent": (3, True, self._kill_agent),
            "munge": (2, False, self._stop_munge),
            "zygote": (3, False, lambda node: self._kill_process(node, "ts-zygote")),
            "shim": (2, True, lambda node: self._kill_process(node, "ts-shim")),
            "preloader": (3, False, lambda node: self._kill_process(node, "ts-preloader")),
        }

    def one(self) -> None:
        """Do one of them, and undo it."""
        kinds = list(self._kinds)
        kind = self._chance.choices(kinds, [self._kinds[name][0] for name in kinds])[0]
        node = self._chance.choice(self._lab.nodes)
        _, cuts, deed = self._kinds[kind]
        began = time.time_ns()
        deed(node)
        if kind in ("service", "controller killed", "controller stopped"):
            node = None
        self.done.append(Fault(kind, node, began, time.time_ns(), cuts))
        self._deeds.tell("fault", kind=kind, node=node, began=began)

    def _for_a_while(self, longest: float) -> None:
        """Faults shorter and longer than what anybody waits for."""
        time.sleep(self._chance.uniform(0.1, longest))

    def _kill_service(self, node: str) -> None:
        self._victim.wait()
        # While something is under way, if there is anything.
        self._victim.stirred.clear()
        self._victim.stirred.wait(1)
        self._victim.kill()
        self._for_a_while(3)
        self._victim.start()

    def _kill_controller(self, node: str) -> None:
        self._lab.stop_controller(signal.SIGKILL)
        self._for_a_while(6)
        self._lab.start_controller()

    def _stop_controller(self, node: str) -> None:
        self._lab.stop_controller()
        self._for_a_while(10)
        self._lab.start_controller()

    def _kill_slurmd(self, node: str) -> None:
        self._lab.stop_slurmd(node, signal.SIGKILL)
        self._for_a_while(12)
        self._lab.start_slurmd(node)

    def _lose_power(self, node: str) -> None:
        self._lab.kill_node(node)
        self._for_a_while(12)
        self._lab.revive(node)

    def _unplug(self, node: str) -> None:
        self._lab.unplug(node)
        self._for_a_while(1.5 * _FENCED)
        self._lab.replug(node)

    def _cut(self, node: str, other: str) -> None:
        self._lab.cut(node, other)
        self._for_a_while(1.5 * _FENCED)
        self._lab.heal(node, other)

    def _kill_agent(self, node: str) -> None:
        try:
            steps = self._lab.slurm("squeue", "-h", "-s", "-w", node, "-o", "%i").split()
            if steps:
                self._lab.slurm("scancel", "--signal=KILL", self._chance.choice(steps))
        except subprocess.CalledProcessError:
            pass  # It has just ended.

    def _kill_process(self, node: str, name: str) -> None:
        """One of a name, if there is any."""
        if pids := self._lab.processes(node, name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(pids), signal.SIGKILL)
        self._for_a_while(2)

    def _stop_munge(self, node: str) -> None:
        machine = self._chance.choice((HUB, node))
        self._lab.stop_munged(machine)
        self._for_a_while(8)
        self._lab.start_munged(machine)


def by_faults(job: Over, faults: Iterable[Fault]) -> Iterator[str]:
    """It ended as it had to, and no line is missing but of lives that a fault may have ended."""
    # All lives of such a job are alike.
    yield from outcome(job, Course((1,), course(job.story.plan).outcome))
    cutting = [*(fault for fault in faults if fault.cuts), *_long_absences(job.timeline)]
    for replica, seen in job.seen.items():
        over = [*(life.begun for life in seen.lives[1:]), time.time_ns()]
        # There is none in one that was cancelled before it began.
        nodes = _nodes_of(job.timeline, replica, seen.lives)
        cut = {
            life.number
            for life, until, node in zip(seen.lives, over, nodes, strict=False)
            for fault in cutting
            if (not node or fault.node in (None, node))
            and fault.began < until
            and life.begun < _late(fault)
        }
        job.counts["cut"] += len(cut)
        yield from (f"{replica}: {text}" for text in lines(job, replica, cut))


def _long_absences(timeline: Iterable[Mapping[str, Any]]) -> Iterator[Fault]:
    """A killed service may take so long to be back on a busy machine that agents give up."""
    for entry in timeline:
        if entry["kind"] == "service_away":
            since, until = entry["details"]["since"], entry["details"]["until"]
            if until - since > LEASE / 2 * 1e9:
                yield Fault("service", None, since, until, cuts=True)


def _late(fault: Fault) -> int:
    """Until when a program may end of it: Slurm and fences take their time."""
    return fault.ended + round(_FENCED * 1e9)


def _nodes_of(
    timeline: Iterable[Mapping[str, Any]], replica: str, lives: Sequence[LifeSeen]
) -> list[str]:
    """Where each life was lived; "" = that was not told of all of them."""
    starts = [entry["details"] for entry in timeline if entry["kind"] == "replica_started"]
    nodes = [details["node"] for details in starts if details["replica"] == replica]
    return nodes if len(nodes) == len(lives) else [""] * len(lives)
