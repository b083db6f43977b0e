"""Faults at random on a cluster of the lab, and what jobs that ran meanwhile are held against: the diaries of
their programs (`tests.chaos.program`)."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.chaos import logs
from tests.chaos.deeds import Deeds, Story
from tests.chaos.diary import LifeSeen, ReplicaSeen, read
from tests.chaos.expected import Course, course
from tests.chaos.verify import FINAL, after_the_end, outcome, readings
from tests.chaos.victim import Address, Victim, request
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
    """What was done, between these moments (ns). `node`: to that one; "" = to all. `cuts`: programs may have
    been ended by it, or by what followed from it."""

    kind: str
    node: str
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
            node = ""
        self.done.append(Fault(kind, node, began, time.time_ns(), cuts))
        self._deeds.tell("fault", kind=kind, node=node, began=began)

    def _for_a_while(self, longest: float) -> None:
        """Faults shorter and longer than what anybody waits for."""
        time.sleep(self._chance.uniform(0.1, longest))

    def _kill_service(self, node: str) -> None:
        self._victim.wait()
        # While something is under way, if there is anything.
        self._deeds.stirred.clear()
        self._deeds.stirred.wait(1)
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


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one job. `lives`, `lines`: of all its replicas; `cut`: lives that a fault may have
    ended."""

    name: str
    kind: str
    state: str
    lives: int = 0
    lines: int = 0
    cut: int = 0
    wrong: tuple[str, ...] = ()


def judge(
    story: Story, address: Address, data: Path, diary: Path, faults: Iterable[Fault]
) -> Verdict:
    """Everything that there is to check of one job that is over: it ended as it had to, no program ran beside
    another life of its own, no line is missing, doubled or out of order."""
    plan = story.plan
    if not story.public:
        return Verdict(plan.name, plan.kind, "", wrong=("it was never submitted", *story.trouble))
    ours = f"/trainshed/v1/jobs/{story.target}"
    view = request(address, "GET", ours)
    if view["state"] not in FINAL:
        waiting = str(view.get("waiting", ""))
        return Verdict(plan.name, plan.kind, view["state"], wrong=("it is not over", waiting))
    public = request(address, "GET", story.public)
    seen = {replica: read(diary / plan.name / replica) for replica in plan.replicas}
    files = logs.from_files(data, view["uid"])
    timeline = request(address, "GET", f"{ours}/timeline")["entries"]
    cutting = [*(fault for fault in faults if fault.cuts), *_long_absences(timeline)]
    wrong = [*story.trouble, *files.wrong]
    wrong += outcome(story, _natural(story), view, public, seen)
    wrong += after_the_end(view, seen)
    cut = 0
    for replica, diary_of in seen.items():
        if diary_of.doubled:
            wrong.append(f"{replica}: a life began while another one lived")
        over = [*(life.begun for life in diary_of.lives[1:]), time.time_ns()]
        burst = plan.replicas[replica].life(0).burst
        # There is none in one that was cancelled before it began.
        nodes = _nodes_of(timeline, replica, diary_of.lives)
        for life, until, node in zip(diary_of.lives, over, nodes, strict=False):
            cuts = any(
                (not node or fault.node in ("", node))
                and fault.began < until
                and life.begun < _late(fault)
                for fault in cutting
            )
            cut += cuts
            wrong += [f"{replica}: {text}" for text in _lines(life, burst, files, replica, cuts)]
        wrong += [f"{replica}: {text}" for text in _order(diary_of, replica, files)]
    wrong += readings(story, view, address, files)
    if wrong:
        kept = diary.parent / "wrong" / f"{plan.name}.json"
        kept.parent.mkdir(exist_ok=True)
        evidence: Mapping[str, Any] = {"wrong": wrong, "view": view, "timeline": timeline}
        kept.write_text(json.dumps(evidence, indent=1))
    return Verdict(
        plan.name,
        plan.kind,
        view["state"],
        sum(len(job.lives) for job in seen.values()),
        sum(len(logs.spoken(lines)) for lines in files.lines.values()),
        cut,
        tuple(wrong),
    )


def _long_absences(timeline: Iterable[Mapping[str, Any]]) -> Iterator[Fault]:
    """A killed service may take so long to be back on a busy machine that agents give up."""
    for entry in timeline:
        if entry["kind"] == "service_away":
            since, until = entry["details"]["since"], entry["details"]["until"]
            if until - since > LEASE / 2 * 1e9:
                yield Fault("service", "", since, until, cuts=True)


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


def _natural(story: Story) -> Course:
    """All lives of such a job are alike."""
    return Course((1,), course(story.plan).outcome)


def _order(diary: ReplicaSeen, replica: str, files: logs.Files) -> Iterator[str]:
    parts, wrong = logs.parts(files.lines.get(replica, ()))
    yield from wrong
    tokens = [part.token for part in parts]
    if tokens != [life.token for life in diary.lives if life.token in tokens]:
        yield f"lives in the log {tokens}, and as they were {[life.token for life in diary.lives]}"


def _lines(
    life: LifeSeen, burst: int, files: logs.Files, replica: str, may_be_cut: bool
) -> Iterator[str]:
    """What a node has not delivered when it is lost is lost with it; nothing else is."""
    parts, _ = logs.parts(files.lines.get(replica, ()))
    lines = sum(part.lines for part in parts if part.token == life.token)
    least = 0 if may_be_cut else life.said
    most = life.said if life.end else life.said + burst
    if not least <= lines <= most:
        yield f"life {life.number} ({life.end or 'ended'}) wrote {life.said} lines, and {lines} are there"
