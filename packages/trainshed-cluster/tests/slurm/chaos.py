"""Random faults on a cluster of the lab, and the checks of jobs that ran during them. The checks use the
diaries of programs (`tests.chaos.program`)."""

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.chaos.actions import JobActions
from tests.chaos.diary import ObservedIncarnation
from tests.chaos.expected import Course, course
from tests.chaos.verify import FinishedJob, lines, outcome
from tests.chaos.victim import Victim
from tests.slurm.lab import SlurmLab
from tests.slurm.nodes import HUB

LEASE: Final = 8.0
"""Seconds without contact after which an agent ends its programs."""
_FENCED: Final = LEASE + 5.0
"""Seconds after which an agent counts as dead."""
KINDS: Final = (
    "succeeds",
    "gang_succeeds",
    "fails",
    "worker_fails",
    "cancelled",
    "cancelled_at_once",
    "cancelled_near_its_end",
)
"""Kinds of jobs with the same end however often their replicas restart."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault between two times (ns). `node`: the affected node; None = all. `cuts`: the fault or its
    consequences may have ended programs."""

    kind: str
    node: str | None
    began: int
    end: int
    cuts: bool


class FaultInjector:
    """Causes faults in sequence, and repairs each before the next one."""

    def __init__(self, lab: SlurmLab, victim: Victim, actions: JobActions, seed: int) -> None:
        self.done: list[Fault] = []
        self._lab = lab
        self._victim = victim
        self._actions = actions
        self._chance = random.Random(seed)
        #: Frequency of each fault, whether it ends programs, and its function for a node (or for all).
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

    def inject_one(self) -> None:
        """Cause one fault, and repair it."""
        kinds = list(self._kinds)
        kind = self._chance.choices(kinds, [self._kinds[name][0] for name in kinds])[0]
        node = self._chance.choice(self._lab.nodes)
        _, cuts, inject = self._kinds[kind]
        began = time.time_ns()
        inject(node)
        if kind in ("service", "controller killed", "controller stopped"):
            node = None
        self.done.append(Fault(kind, node, began, time.time_ns(), cuts))
        self._actions.tell("fault", kind=kind, node=node, began=began)

    def _wait_randomly(self, longest: float) -> None:
        """Wait shorter or longer than any timeout."""
        time.sleep(self._chance.uniform(0.1, longest))

    def _kill_service(self, node: str) -> None:
        self._victim.wait()
        # During an operation, if there is one.
        self._victim.stirred.clear()
        self._victim.stirred.wait(1)
        self._victim.kill()
        self._wait_randomly(3)
        self._victim.start()

    def _kill_controller(self, node: str) -> None:
        self._lab.stop_controller(signal.SIGKILL)
        self._wait_randomly(6)
        self._lab.start_controller()

    def _stop_controller(self, node: str) -> None:
        self._lab.stop_controller()
        self._wait_randomly(10)
        self._lab.start_controller()

    def _kill_slurmd(self, node: str) -> None:
        self._lab.stop_slurmd(node, signal.SIGKILL)
        self._wait_randomly(12)
        self._lab.start_slurmd(node)

    def _lose_power(self, node: str) -> None:
        self._lab.kill_node(node)
        self._wait_randomly(12)
        self._lab.boot(node)

    def _unplug(self, node: str) -> None:
        self._lab.unplug(node)
        self._wait_randomly(1.5 * _FENCED)
        self._lab.replug(node)

    def _cut(self, node: str, other: str) -> None:
        self._lab.cut(node, other)
        self._wait_randomly(1.5 * _FENCED)
        self._lab.heal(node, other)

    def _kill_agent(self, node: str) -> None:
        try:
            steps = self._lab.slurm("squeue", "-h", "-s", "-w", node, "-o", "%i").split()
            if steps:
                self._lab.slurm("scancel", "--signal=KILL", self._chance.choice(steps))
        except subprocess.CalledProcessError:
            pass  # It has just ended.

    def _kill_process(self, node: str, name: str) -> None:
        """Kill one process of that name, if any."""
        if pids := self._lab.processes(node, name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(pids), signal.SIGKILL)
        self._wait_randomly(2)

    def _stop_munge(self, node: str) -> None:
        machine = self._chance.choice((HUB, node))
        self._lab.stop_munged(machine)
        self._wait_randomly(8)
        self._lab.start_munged(machine)


def wrong_outcomes(job: FinishedJob, faults: Iterable[Fault]) -> Iterator[str]:
    """Check that the job has its expected end, and that no lines are missing except of lives that a fault may
    have ended."""
    # All lives of such a job are equal.
    yield from outcome(job, Course((1,), course(job.story.plan).outcome))
    cutting = [*(fault for fault in faults if fault.cuts), *_long_absences(job.timeline)]
    for replica, seen in job.observed.items():
        over = [*(life.start_time for life in seen.lives[1:]), time.time_ns()]
        # A job that was cancelled before its start has no lives.
        nodes = _nodes_of(job.timeline, replica, seen.lives)
        cut = {
            life.number
            for life, until, node in zip(seen.lives, over, nodes, strict=False)
            for fault in cutting
            if (not node or fault.node in (None, node))
            and fault.began < until
            and life.start_time < _effect_end(fault)
        }
        job.counts["cut"] += len(cut)
        yield from (f"{replica}: {text}" for text in lines(job, replica, cut))


def _long_absences(timeline: Iterable[Mapping[str, Any]]) -> Iterator[Fault]:
    """On a busy machine, a killed service may take so long to return that agents end their programs."""
    for entry in timeline:
        if entry["kind"] == "service_away":
            since, until = entry["details"]["since"], entry["details"]["until"]
            if until - since > LEASE / 2 * 1e9:
                yield Fault("service", None, since, until, cuts=True)


def _effect_end(fault: Fault) -> int:
    """Return the time until which a program may end because of the fault. Slurm and fences take some time."""
    return fault.end + round(_FENCED * 1e9)


def _nodes_of(
    timeline: Iterable[Mapping[str, Any]], replica: str, lives: Sequence[ObservedIncarnation]
) -> list[str]:
    """Return the node of each life. "" means that not all of its entries report a node."""
    starts = [entry["details"] for entry in timeline if entry["kind"] == "replica_started"]
    nodes = [details["node"] for details in starts if details["replica"] == replica]
    return nodes if len(nodes) == len(lives) else [""] * len(lives)
