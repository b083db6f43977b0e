"""Generates scenarios from a seed: nodes, jobs of the Vertex API, user requests, maintenance,
quotas, faults.
"""

import random
from dataclasses import replace

from tests.sim.engine.clock import Delays
from tests.sim.engine.programs import OnTerm
from tests.sim.scenario import (
    DAY,
    HOUR,
    MINUTE,
    Cancel,
    Character,
    DrainNode,
    OrderDrill,
    PlannedFault,
    Relabel,
    Request,
    Scenario,
    SetQuota,
    Submit,
)
from tests.sim.service import BAD_PACKAGE, BROKEN, COLD
from tests.unit.jobs import CREATED, REDUCTION_SERVER, RUNTIME, SECOND
from trainshed.core.capacity import Node, QuotaKey
from trainshed.core.cluster import has_reducers
from trainshed.core.job import Accelerators, JobSpec, Machine, Program, Scheduling, Strategy, WorkerPool
from trainshed.core.lifecycle.records import Drill, DrillKind, Job
from trainshed.core.names import Api, JobName, JobUid
from trainshed.scheduler.model import Policy

GIB = 2**30
REGION = "us-central1"
GPU = "NVIDIA_TESLA_T4"
PROJECTS = ("ada", "bob", "eve")

_MACHINES = (
    Machine("n1-standard-4", 4, 15 * GIB, 12 * GIB),
    Machine("n1-standard-8", 8, 30 * GIB, 26 * GIB),
    Machine("n1-standard-16", 16, 60 * GIB, 55 * GIB),
    Machine("n1-standard-8", 8, 30 * GIB, 26 * GIB, Accelerators(GPU, 1)),
    Machine("n1-standard-16", 16, 60 * GIB, 55 * GIB, Accelerators(GPU, 4)),
)


def plain(seed: int, *, jobs: int | None = None) -> Scenario:
    """Return a world of `jobs` jobs (a random number if None)."""
    dice = random.Random(seed)
    nodes = _nodes(dice)
    strict = dice.random() < 0.8
    policy = Policy(
        strict=strict,
        max_replicas=dice.choice((32, 256)),
        patience=dice.choice((MINUTE, 10 * MINUTE, 2 * HOUR)),
    )
    count = jobs or dice.choice((4, 12, 30))
    span = dice.choice((HOUR, DAY, 20 * DAY))
    submitted = [_submission(dice, i, span) for i in range(1, count + 1)]
    requests: list[Request] = [submit for submit, _ in submitted]
    made = Scenario(seed, nodes, policy, (), {submit.job.uid: character for submit, character in submitted})
    for submit, _ in submitted:
        requests += _user_requests(dice, submit, span)
    requests += _maintenance(dice, nodes, span)
    requests += _quotas(dice, span)
    crashes = dice.choice((0, 2, 10))
    return replace(
        made,
        requests=tuple(sorted(requests, key=lambda r: r.at)),
        planned_faults=tuple(sorted(_planned_faults(dice, nodes, span), key=lambda m: m.at)),
        delays=dice.choice((Delays(), Delays(SECOND // 5, 0.1), Delays(20 * SECOND, 0.3))),
        crash_commits=tuple(
            sorted({(dice.randint(1, 12 * count), dice.random() < 0.5) for _ in range(crashes)})
        ),
        crash_times=tuple(CREATED + dice.randint(0, 2 * span) for _ in range(crashes)),
        downs=tuple(dice.choice((0, 0, SECOND, 5 * MINUTE, 3 * HOUR)) for _ in range(5)),
    )


def _nodes(dice: random.Random) -> tuple[Node, ...]:
    nodes = [
        Node(
            f"node-{i}",
            dice.choice((8, 16, 32, 64)),
            dice.choice((30, 60, 120, 240)) * GIB,
            ((GPU, dice.choice((1, 4, 8))),) if dice.random() < 0.4 else (),
        )
        for i in range(dice.choice((1, 2, 3, 6)))
    ]
    return tuple(nodes)


def _submission(dice: random.Random, number: int, span: int) -> tuple[Submit, Character]:
    at = CREATED + dice.randint(0, span)
    uid = JobUid(1000 + number)
    runs = dice.choice((MINUTE, 20 * MINUTE, 3 * HOUR, DAY))
    scheduling = Scheduling(
        timeout=dice.choice((7 * DAY, 7 * DAY, 2 * HOUR)),
        max_wait=dice.choice((None, None, None, 30 * MINUTE, DAY)),
        priority=dice.choice((0, 0, 0, 1, 5)),
        restart_job_on_worker_restart=dice.random() < 0.15,
        disable_retries=dice.random() < 0.15,
        strategy=dice.choices(tuple(Strategy), (8, 3, 1))[0],
    )
    uris = dice.choices(((), (COLD,), (BROKEN,), (BAD_PACKAGE,)), (16, 6, 2, 1))[0]
    program = Program(RUNTIME, module="trainer.task", package_uris=uris)
    machine = dice.choice(_MACHINES)
    pools = [WorkerPool(0, 1, machine, program)]
    workers = dice.choice((0, 0, 1, 2, 3, 7, 15))
    if workers:
        pools.append(WorkerPool(1, workers, dice.choice((machine, machine, _MACHINES[0])), program))
        if dice.random() < 0.2:
            reducer = Program(RUNTIME, image_uri=REDUCTION_SERVER)
            served = reducer if dice.random() < 0.6 else program
            pools.append(WorkerPool(2, dice.choice((1, 2)), _MACHINES[0], served))
    spec = JobSpec(Api.VERTEX, REGION, tuple(pools), scheduling, "{}")
    name = JobName(Api.VERTEX, dice.choice(PROJECTS), REGION, str(number))
    job = Job(uid, name, f"job {number}", "{}", at, at, spec=spec)
    trouble = dice.choice((0, 0, 0.02, 0.2, 0.9))
    if has_reducers(spec):  # Below its rate limit, a reducer restarts forever.
        trouble = min(trouble, 0.2)
    kind = dice.choice(("crash", "exit", "kill", "oom", "start_fails"))
    character = Character(
        runs, on_term=dice.choice(tuple(OnTerm)), term_takes=dice.choice((0, SECOND, 20 * SECOND))
    )
    return Submit(at, job), replace(character, **{kind: trouble})


def _user_requests(dice: random.Random, submit: Submit, span: int) -> list[Request]:
    """Draw user requests for jobs."""
    requests: list[Request] = []
    uid, soon = submit.job.uid, dice.choice((SECOND, 10 * MINUTE, span))
    if dice.random() < 0.2:
        requests += [Cancel(submit.at + dice.randint(0, soon), uid)] * dice.choice((1, 1, 2))
    if dice.random() < 0.2:
        requests.append(Relabel(submit.at + dice.randint(0, soon), uid))
    if dice.random() < 0.15:
        replica = dice.choice(submit.job.spec.replicas())
        at = submit.at + dice.randint(0, soon)
        kind = dice.choice(tuple(DrillKind))
        at += dice.choice((0, MINUTE))
        requests.append(OrderDrill(at, uid, Drill(0, kind, replica, at)))
    return requests


def _maintenance(dice: random.Random, nodes: tuple[Node, ...], span: int) -> list[Request]:
    requests: list[Request] = []
    for _ in range(dice.choice((0, 0, 1, 3))):
        node, at = dice.choice(nodes).name, CREATED + dice.randint(0, span)
        lasts = dice.choice((SECOND, 5 * MINUTE, 10 * HOUR))
        requests += [DrainNode(at, node, True), DrainNode(at + lasts, node, False)]
    return requests


def _quotas(dice: random.Random, span: int) -> list[Request]:
    requests: list[Request] = []
    for _ in range(dice.choice((0, 0, 1, 3))):
        metric = dice.choice(("cpus_n1_e2", "preemptible_cpus_n1_e2", GPU, "pd_ssd_gb"))
        key = QuotaKey(dice.choice(PROJECTS), REGION, metric)
        at = CREATED + dice.randint(-MINUTE, span // 2)
        limit = dice.choice((0, 8, 16, 64, 400))
        requests += [SetQuota(at, key, limit), SetQuota(at + span, key, None)]
    return requests


def _planned_faults(dice: random.Random, nodes: tuple[Node, ...], span: int) -> list[PlannedFault]:
    kinds = ("die", "cut_off", "drain", "kill_zygote", "kill_shim", "kill_program", "refuse", "fail")
    planned_faults: list[PlannedFault] = []
    for _ in range(dice.choice((0, 2, 10, 30))):
        lasts = dice.choice((10 * SECOND, 100 * SECOND, 5 * MINUTE, 3 * HOUR))
        at = CREATED + dice.randint(0, int(1.5 * span))
        planned_faults.append(PlannedFault(at, dice.choice(kinds), dice.choice(nodes).name, lasts))
    return planned_faults
