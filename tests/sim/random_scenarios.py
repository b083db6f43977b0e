"""Enriches plain scenarios: an operator's rules, jobs of the older API, programs that print, hang or crash,
drills that wait for a line, tuning jobs and pipelines, a slow disk, a wall clock that is set back.
"""

import dataclasses
import random

from msgspec.structs import replace

from tests.sim.operator_rules import draw_operator_rules
from tests.sim.plain_scenarios import PROJECTS, REGION, plain
from tests.sim.scenario import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    Character,
    OrderDrill,
    Request,
    Scenario,
    SetQuota,
    Submit,
)
from tests.sim.tuning_scenarios import add_tuning
from tests.unit.jobs import CREATED
from trainshed.core.capacity import QuotaKey
from trainshed.core.cluster import has_reducers
from trainshed.core.job import Scheduling
from trainshed.core.launch import STALL_LABEL
from trainshed.core.lifecycle.records import Drill, DrillKind, Job
from trainshed.core.names import Api, JobName


def scenario(seed: int, *, jobs: int | None = None) -> Scenario:
    """Return a scenario with `jobs` jobs (a random number if None) and all kinds of elements."""
    return _within_quotas(_on_a_bad_machine(add_tuning(_create_varied(seed, jobs))))


def _within_quotas(world: Scenario) -> Scenario:
    """Return the scenario with small CPU quotas in one of four cases, so that jobs wait for each other."""
    dice = random.Random(f"quotas {world.seed}")
    if dice.random() > 0.25:
        return world
    last = max((request.at for request in world.requests), default=CREATED)
    requests = list(world.requests)
    for project in PROJECTS:
        key = QuotaKey(project, REGION, "cpus_n1_e2")
        requests += [SetQuota(CREATED, key, dice.choice((16, 40))), SetQuota(last + DAY, key, None)]
    return dataclasses.replace(world, requests=tuple(sorted(requests, key=lambda request: request.at)))


def _on_a_bad_machine(world: Scenario) -> Scenario:
    """Return the scenario, with the real writer in two of five cases, and a wall clock that is set back in
    one of three."""
    dice = random.Random(f"machine {world.seed}")
    disk = dice.choice((None, None, None, SECOND // 100, 2 * SECOND))
    last = max((request.at for request in world.requests), default=CREATED)
    steps = dice.choice((0, 0, 1, 4))
    moments = sorted(dice.randint(CREATED, last + HOUR) for _ in range(steps))
    backs = (0, SECOND // 2, 40 * SECOND, 10 * MINUTE, 2 * HOUR)
    # A wall clock is never negative.
    wall = tuple((at, -min(dice.choice(backs), at - CREATED // 2)) for at in moments)
    return dataclasses.replace(world, disk=disk, wall_steps=wall)


def _create_varied(seed: int, jobs: int | None) -> Scenario:
    world = plain(seed, jobs=jobs)
    dice = random.Random(f"varied {seed}")
    requests = [_vary(dice, request) for request in world.requests]
    requests += _drills(dice, requests)
    if dice.random() < 0.5:
        requests = [_add_watchdog(request) for request in requests]
    submitted = [request.job for request in requests if isinstance(request, Submit)]
    return dataclasses.replace(
        world,
        requests=tuple(sorted(requests, key=lambda request: request.at)),
        characters={job.uid: _livelier(dice, job, world.characters[job.uid]) for job in submitted},
        operator_rules=draw_operator_rules(seed),
    )


def _add_watchdog(request: Request) -> Request:
    """Return the request with a stall limit of ten minutes for its programs."""
    if not isinstance(request, Submit):
        return request
    labels = (*request.job.labels, (STALL_LABEL, "600"))
    return dataclasses.replace(request, job=replace(request.job, labels=labels))


def _vary(dice: random.Random, request: Request) -> Request:
    if isinstance(request, Submit) and dice.random() < 0.25:
        return dataclasses.replace(request, job=_older(dice, request.job))
    if isinstance(request, OrderDrill) and dice.random() < 0.5:
        return dataclasses.replace(request, drill=replace(request.drill, at_line="step 2"))
    return request


def _older(dice: random.Random, job: Job) -> Job:
    """Return the job as a job of `ml` v1, which has two time limits and no other options."""
    name = JobName(Api.ML, job.name.project_id, "", f"job_{job.name.job_id}")
    scheduling = Scheduling(
        timeout=job.spec.scheduling.timeout, max_wait=dice.choice((None, 5 * MINUTE, 2 * HOUR))
    )
    return replace(job, name=name, spec=replace(job.spec, api=Api.ML, scheduling=scheduling))


def _drills(dice: random.Random, requests: list[Request]) -> list[Request]:
    """Add a drill at a log line to one of eight jobs, ordered before the job runs."""
    return [
        OrderDrill(
            submit.at + SECOND,
            submit.job.uid,
            Drill(
                0,
                dice.choice(tuple(DrillKind)),
                dice.choice(submit.job.spec.replicas()),
                submit.at,
                f"step [{dice.choice(('1', '23', '3'))}]",
            ),
        )
        for submit in requests
        if isinstance(submit, Submit) and dice.random() < 0.125
    ]


def _livelier(dice: random.Random, job: Job, character: Character) -> Character:
    is_short = character.runs <= HOUR
    return dataclasses.replace(
        character,
        prints=dice.choice((0, 1, 3, 3)),
        hangs=dice.choice((0, 0, 0, 0.05, 0.5)),
        flaky=has_reducers(job.spec) and is_short and dice.random() < 0.4,
    )
