"""The whole control plane over virtual time: random worlds, and a crash at every commit of a small one."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tests.sim.operator_rules import OperatorRules
from tests.sim.plain_scenarios import plain
from tests.sim.random_scenarios import scenario
from tests.sim.scenario import HOUR, Character, OrderDrill, PlannedFault, Request, Scenario, Submit
from tests.sim.simulation import simulate
from tests.soaks import SOAKS
from tests.unit.jobs import CREATED, SECOND, job
from trainshed.core.capacity import Node
from trainshed.core.job import Machine, Scheduling, Strategy
from trainshed.core.lifecycle.records import Drill, DrillKind, Job
from trainshed.core.names import JobUid, ReplicaId
from trainshed.scheduler.model import Policy

WORLDS = 32 if SOAKS else 16
SMALL = (35, 53)
"""Seeds of small worlds with different events."""
LARGE = Machine("n1-standard-8", 8, 30 * 2**30, 26 * 2**30)
"""Two replicas of this size fill the node of a world with one node."""


@pytest.mark.parametrize("block", range(8))
def test_invariants_hold_in_random_simulations(block: int) -> None:
    """spec/lifecycle#cancel, spec/failures#budgets, spec/invariants#one-incarnation: no cancel or submission
    is lost, no quota or node exceeded. A replica never has two incarnations, budgets are exact, all slots are
    released, and every job ends. Services, nodes, shims and zygotes die at random.
    """
    for seed in range(block * WORLDS // 8, (block + 1) * WORLDS // 8):
        simulate(scenario(seed))


@pytest.mark.parametrize(
    # Two worlds, and both kill points. `./dev test-all` and `./dev sim` run all.
    ("stored", "seed"),
    [
        pytest.param(
            stored,
            seed,
            id=f"{'after' if stored else 'before'}-{seed}",
            marks=[] if stored == bool(index % 2) else [pytest.mark.soak],
        )
        for stored in (False, True)
        for index, seed in enumerate(SMALL)
    ],
)
def test_service_survives_a_kill_at_every_commit(stored: bool, seed: int) -> None:
    """spec/invariants#durability: a kill just before or just after any commit of a small world makes no
    difference. `./dev test-all` tests each commit, other runs every other one.
    """
    world = small_scenario(seed)
    commits = simulate(world).tally["commits"]
    assert commits > 20
    for number in range(1, commits + 1, 1 if SOAKS else 2):
        assert simulate(world, (number, stored)).tally["crashes"] == 1


def test_service_killed_at_every_third_commit_still_finishes() -> None:
    """The world makes progress between any two kills, so it ends."""
    crashes = ((number, number % 2 == 0) for number in range(3, 600, 3))
    assert simulate(small_scenario(SMALL[0]), *crashes).tally["crashes"] > 5


def test_drill_is_executed_once_at_its_log_line_despite_service_kills() -> None:
    """spec/operations#drills: the first matching line after the order. A line printed without a running
    service is found later.
    """
    world = dataclasses.replace(killed_at_a_line(), downs=(20 * SECOND,))
    commits = simulate(world).tally["commits"]
    for number in range(1, commits + 1):
        for stored in (False, True):
            books = simulate(world, (number, stored)).books
            # The user repeats the order at the next service, if the first one died without a response.
            drills = books.jobs[JobUid(1)].drills
            assert all(drill.fired and drill.done for drill in drills)
            assert 1 <= books.rules["replica_lost"] <= len(drills) <= 2


def killed_at_a_line() -> Scenario:
    """Return a scenario with a job that prints two lines and is killed at the second."""
    job = lone_job(1)
    drill = Drill(0, DrillKind.KILL, ReplicaId(0, 0), CREATED, at_line="step 2")
    requests = (Submit(CREATED, job), OrderDrill(CREATED + SECOND // 100, job.uid, drill))
    return on_one_node(2, requests, {job.uid: Character(6000 * SECOND, prints=2)})


def test_increased_memory_of_a_retried_job_is_counted_before_its_admission() -> None:
    """spec/queue#capacity: no node exceeds its capacity when a job that ran out of memory is retried with
    twice as much. Here it waits until its neighbour ends, and then has the whole node.
    """
    hungry, other = lone_job(1), lone_job(2)
    growing = {"name": "out_of_memory", "retries": 1, "memory_growth": 2.0, "memory_cap": 2.0}
    world = on_one_node(
        1,
        [Submit(CREATED, job) for job in (hungry, other)],
        {hungry.uid: Character(60 * SECOND, oom=1.0), other.uid: Character(3600 * SECOND)},
        operator_rules=OperatorRules((growing,)),
    )
    ends = simulate(world).books.jobs
    assert (ends[hungry.uid].attempt, ends[hungry.uid].memory_factor) == (2, 2.0)
    assert ends[hungry.uid].ended > ends[other.uid].ended


def test_restarted_service_releases_unused_slots() -> None:
    """spec/invariants#durability: no event will ever report them, so the next service must check."""
    job = lone_job(1)
    world = on_one_node(
        3,
        [Submit(CREATED, job)],
        {job.uid: Character(60 * SECOND)},
        planned_faults=tuple(PlannedFault(CREATED, "refuse") for _ in range(3)),
        downs=(SECOND,),
    )
    for number in range(1, simulate(world).tally["commits"] + 1):
        simulate(world, (number, True))


def test_usage_matches_the_records_of_replicas() -> None:
    """docs/team.md: within 1 %, across restarts, retries, a preemption and killed services."""
    jobs = [lone_job(uid) for uid in range(1, 5)]
    spot = replace(jobs[0].spec, scheduling=Scheduling(strategy=Strategy.SPOT))
    jobs[0] = replace(jobs[0], spec=spot)
    world = on_one_node(
        32,  # In this world a retried job fails during the absence of the service.
        [Submit(CREATED + at * HOUR, job) for at, job in enumerate(jobs)],
        {
            job.uid: Character(20 * HOUR, kill=0.6 * (job.uid == 2), crash=0.6 * (job.uid == 3))
            for job in jobs
        },
        crash_times=tuple(CREATED + at * 7 * HOUR for at in range(1, 9)),
        downs=(2 * HOUR,),
    )
    made = simulate(world)
    assert made.books.rules >= Counter(("preempted", "replica_lost", "transient_exit"))
    attempts = {uid: len(uses) for uid, uses in made.books.uses.items()}
    assert attempts == {uid: job.attempt for uid, job in made.books.jobs.items()}
    used = sum(use.ended - use.began for uses in made.books.uses.values() for use in uses)
    recorded = sum(run.over - run.start_time for _, run in made.world.lived)
    assert recorded <= used <= 1.01 * recorded


def on_one_node(
    seed: int, requests: Sequence[Request], characters: dict[JobUid, Character], **more: Any
) -> Scenario:
    """Return a scenario with one node. `more` contains further fields of Scenario."""
    nodes = (Node("node-0", 16, 60 * 2**30),)
    return Scenario(seed, nodes, Policy(strict=True), tuple(requests), characters, **more)


def lone_job(number: int) -> Job:
    """Return a job with one large replica."""
    made = job(1)
    pool = replace(made.spec.pools[0], machine=LARGE)
    name = replace(made.name, job_id=str(number))
    return replace(made, uid=JobUid(number), name=name, spec=replace(made.spec, pools=(pool,)))


def small_scenario(seed: int) -> Scenario:
    """Return a scenario with few jobs and all kinds of events, without a crash."""
    return dataclasses.replace(scenario(seed, jobs=4), crash_commits=(), crash_times=(), downs=(SECOND,))


@pytest.mark.parametrize("world", [plain(5025), plain(5099), scenario(325)])
def test_gang_is_not_placed_during_shutdown_or_lost_during_start(world: Scenario) -> None:
    """Regression test: the scheduler decided endlessly about a replica without a node, and counted a gang as
    lost because of slots that were just requested (spec/invariants#one-incarnation).
    """
    simulate(world)
