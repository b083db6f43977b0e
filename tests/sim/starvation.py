"""Crowded worlds without faults, and the maximum waiting time of a job in them (spec/queue#order, "never
starve").

The bound: after a job has waited for the policy's patience, later jobs no longer delay it. It waits for the
jobs admitted until then, which end at their limits at the latest, and for the jobs before it. So it is
admitted at the latest

    patience after its arrival
    + the longest limit of the jobs admitted until then
    + the sum of the limits of all unfinished jobs before it.

The jobs before it are those of a higher level (priority, on-demand before spot), older jobs of its level and
project, and all jobs of other projects of its level: fair share may prefer each of them.
"""

import random
from collections.abc import Iterator, Mapping, Sequence

from tests.sim.plain_scenarios import GIB, REGION
from tests.sim.scenario import HOUR, MINUTE, Character, Scenario, Submit
from tests.unit.jobs import CREATED, RUNTIME, SECOND
from trainshed.core.capacity import Node
from trainshed.core.job import JobSpec, Machine, Program, Scheduling, Strategy, WorkerPool
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import Api, JobName, JobUid
from trainshed.scheduler.model import Policy

_STARTING = 2 * MINUTE
"""Maximum ns from an admission to the first RUNNING, and from an end to free capacity."""
_MACHINES = {cpus: Machine(f"n1-standard-{cpus}", cpus, cpus * GIB, cpus * GIB) for cpus in (4, 16)}


def crowded_scenario(seed: int) -> Scenario:
    """Create a long stream of small jobs, and a few that need the whole cluster or a node for
    each replica.
    """
    dice = random.Random(f"crowd {seed}")
    nodes = tuple(Node(f"node-{i}", 16, 64 * GIB) for i in range(dice.choice((1, 2, 4))))
    projects = dice.choice((("ada",), ("ada", "bob")))
    # Enough to keep the cluster busy, plus a half.
    every = 6 * MINUTE // len(nodes)
    count = dice.choice((60, 120))
    submits: list[Submit] = []
    characters: dict[JobUid, Character] = {}
    for number in range(1, count + 1):
        is_big = dice.random() < 0.08
        runs = dice.choice((10 * MINUTE, 40 * MINUTE))
        pool = (len(nodes), _MACHINES[16]) if is_big else (dice.choice((1, 1, 2)), _MACHINES[4])
        limit = int(runs * dice.choice((1.6, 4)))
        job = _job(dice, number, CREATED + number * every, projects, pool, limit)
        submits.append(Submit(job.created, job))
        characters[job.uid] = Character(runs)
    policy = Policy(strict=True, patience=dice.choice((0, 10 * MINUTE, HOUR)))
    return Scenario(seed, nodes, policy, tuple(submits), characters, is_crowd=True)


def _job(
    dice: random.Random, number: int, at: int, projects: Sequence[str], gang: tuple[int, Machine], limit: int
) -> Job:
    replicas, machine = gang
    program = Program(RUNTIME, module="trainer.task")
    pools = [WorkerPool(0, 1, machine, program)]
    if replicas > 1:
        pools.append(WorkerPool(1, replicas - 1, machine, program))
    scheduling = Scheduling(
        timeout=limit,
        priority=dice.choice((0, 0, 0, 0, 0, 0, 1)),
        strategy=Strategy.SPOT if dice.random() < 0.1 else Strategy.STANDARD,
    )
    spec = JobSpec(Api.VERTEX, REGION, tuple(pools), scheduling, "{}")
    name = JobName(Api.VERTEX, dice.choice(projects), REGION, str(number))
    return Job(JobUid(number), name, f"job {number}", "{}", at, at, spec=spec)


def starved_jobs(jobs: Mapping[JobUid, Job], admitted: Mapping[JobUid, int], patience: int) -> Iterator[str]:
    """Return jobs that waited longer than the bound. `jobs`: in their final states. `admitted`: time of each
    first admission (ns).
    """
    for job in jobs.values():
        impatient = job.created + patience
        at = admitted.get(job.uid)
        if at is None:
            yield f"job {job.uid} was never admitted"
            continue
        others = [other for other in jobs.values() if other is not job and other.ended > impatient]
        had_room = [_limit(other) for other in others if admitted[other.uid] <= impatient]
        before = [
            _limit(other)
            for other in others
            if impatient < admitted[other.uid] <= at and _comes_before(other, job)
        ]
        latest = impatient + max(had_room, default=0) + sum(before) + _STARTING
        if at > latest:
            late = (at - latest) / SECOND
            yield f"job {job.uid} came at {job.created / SECOND} s and got room {late} s later than it must"


def _limit(job: Job) -> int:
    return job.spec.scheduling.timeout + _STARTING


def _comes_before(job: Job, other: Job) -> bool:
    if _level(job) != _level(other):
        return _level(job) < _level(other)
    of_one_project = job.name.project_id == other.name.project_id
    return not of_one_project or (job.created, job.uid) < (other.created, other.uid)


def _level(job: Job) -> tuple[int, bool]:
    scheduling = job.spec.scheduling
    return (-scheduling.priority, scheduling.strategy is Strategy.SPOT)
