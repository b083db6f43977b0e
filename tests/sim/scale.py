"""What the controller's room costs at the largest size (issue of the simulation's scale): `python -m
tests.sim.scale`.

10,000 nodes and 100,000 queued jobs, beside a hundredth of both: what is done for one job must not grow with
the others, and one decision takes less than a second. Seconds of CPU; the building is counted apart.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from tests.sim.making import GIB, REGION
from tests.sim.scenario import HOUR, SECOND
from tests.unit.jobs import RUNTIME
from trainshed.controller.capacity import CapacityTracker, event_of_decision
from trainshed.core.job.spec import JobSpec, Machine, Program, Scheduling, WorkerPool
from trainshed.core.lifecycle.machine import step
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, JobName, JobUid
from trainshed.engines.port import Node, NodeState
from trainshed.scheduler.model import Admit, Decision, Policy

NOW = 1_000_000 * HOUR
PROJECTS = 50
_MACHINES = {
    cpus: Machine(f"n1-standard-{cpus}", cpus, cpus * 4 * GIB, cpus * 3 * GIB)
    for cpus in (4, 8, 16, 32)
}
_TIMES = 50
"""So many times everything that is done for one job is done."""

Figures = dict[str, float]
"""Seconds of CPU by what took them."""


class Hall:
    """A room of so many nodes and jobs. `admitted`: how many of them the first decision starts."""

    def __init__(self, nodes: int, jobs: int) -> None:
        dice = random.Random(5)
        self.now = NOW
        self.took: Figures = {}
        self.admitted = 0
        self.jobs = {uid: _job(dice, uid) for uid in map(JobUid, range(1, jobs + 1))}
        self.late = [_job(dice, JobUid(jobs + 1 + number)) for number in range(_TIMES)]
        self.nodes = [
            Node(f"node-{i:05}", (16, 32, 64, 96)[i % 4], (16, 32, 64, 96)[i % 4] * 4 * GIB)
            for i in range(nodes)
        ]
        self.room = CapacityTracker(Policy(strict=True), lambda _: None, lambda _: None, 10**9)

    def measure(self) -> Figures:
        room = self.room
        self._time("build: nodes", lambda: room.set_nodes(self.nodes))
        self._time("build: jobs", lambda: [room.put(job) for job in self.jobs.values()])
        made = self._time("decide: first, fills the nodes", self._decide)
        self._mean("put: a job that was admitted", (self._taker(d) for d in made))
        self.admitted = len(made)
        self._time("decide: just after it", self._decide)
        self._mean("put: a job that is new", (lambda job=job: room.put(job) for job in self.late))
        waiting = [uid for uid, job in self.jobs.items() if not job.is_placed]
        some = waiting[:: max(1, len(waiting) // _TIMES)]
        self._time("decide: nothing fits", self._decide)
        self._mean("why", (lambda uid=uid: room.why(uid, self.now) for uid in some))
        self._mean("position", (lambda uid=uid: room.position(uid) for uid in some))
        newest = replace(self.late[0], uid=JobUid(10**9))
        answer = self._time("preflight", lambda: asyncio.run(room.preflight(newest, self.now)))
        assert answer.waiting is not None
        running = [job for job in self.jobs.values() if job.is_placed][::100]
        self._mean("put: a job that is over", (self._ender(job) for job in running))
        self._time("decide: after 1 % have ended", self._decide)
        self.now += HOUR
        room.time_passed()
        self._time("decide: everyone has waited too long", self._decide)
        states = [NodeState.GONE, NodeState.UP] * 5
        self._mean("a node's state", (self._changer(state) for state in states))
        self._time("statuses of all nodes", room.node_statuses)
        return self.took

    def _decide(self) -> Sequence[Decision]:
        self.now += SECOND
        self.room.time_passed()
        return self.room.decide(self.now)

    def _taker(self, decision: Decision) -> Callable[[], None]:
        """The job takes its decision, as the controller would have it do before it is stored."""
        assert isinstance(decision, Admit)
        before = self.jobs[decision.uid]
        event = event_of_decision(decision, before)
        assert event is not None
        job = self.jobs[decision.uid] = step(before, event, self.now).job
        return lambda: self.room.put(job)

    def _ender(self, job: Job) -> Callable[[], None]:
        over = self.jobs[job.uid] = replace(job, state=JobState.SUCCEEDED, replicas=())
        return lambda: self.room.put(over)

    def _changer(self, state: NodeState) -> Callable[[], None]:
        return lambda: self.room.set_node_state("node-00007", state, "")

    def _time(self, what: str, call: Callable[[], Any]) -> Any:
        begun = time.process_time()
        result = call()
        self.took[what] = time.process_time() - begun
        return result

    def _mean(self, what: str, calls: Iterable[Callable[[], Any]]) -> None:
        """The median of many."""
        took: list[float] = []
        for call in list(calls):
            begun = time.process_time()
            call()
            took.append(time.process_time() - begun)
        self.took[what] = statistics.median(took)


def _job(dice: random.Random, uid: JobUid) -> Job:
    program = Program(RUNTIME, module="trainer.task")
    machine = _MACHINES[dice.choice((4, 4, 8, 16, 32))]
    pools = [WorkerPool(0, 1, machine, program)]
    if workers := dice.choice((0, 0, 0, 1, 3, 15)):
        pools.append(WorkerPool(1, workers, machine, program))
    scheduling = Scheduling(
        timeout=dice.choice((HOUR, 24 * HOUR, 7 * 24 * HOUR)),
        priority=dice.choice((0, 0, 0, 5)),
    )
    spec = JobSpec(Api.VERTEX, REGION, tuple(pools), scheduling, "{}")
    name = JobName(Api.VERTEX, f"project-{dice.randrange(PROJECTS):02}", REGION, str(uid))
    created = NOW - 10 * HOUR + uid * 100
    return Job(uid, name, f"job {uid}", spec, "{}", created, created)


def main() -> None:
    sizes = ((100, 1_000), (10_000, 100_000))
    halls = [Hall(nodes, jobs) for nodes, jobs in sizes]
    small, large = (hall.measure() for hall in halls)
    heads = (f"{nodes:,} nodes, {jobs:,} jobs" for nodes, jobs in sizes)
    print("{:38} {:>28} {:>28}".format("", *heads))
    for what, took in large.items():
        print(f"{what:38} {small[what] * 1e3:25.3f} ms {took * 1e3:25.3f} ms")
    print("{:38} {:>28} {:>28}".format("admitted by the first", *(h.admitted for h in halls)))


if __name__ == "__main__":
    main()
