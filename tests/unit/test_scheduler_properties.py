"""Property tests: safety and liveness of plans for generated clusters and queues (spec/queue#order)."""

import copy
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.clusters import NOW, REGION, SECOND, T4, V100, SimulatedCluster, gang, node
from trainshed.core.capacity import MachineWanted, NodeCondition, OthersUse, QuotaKey
from trainshed.core.catalog.quotas import GLOBAL, SHARE
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.usage import HOUR, MachineTime
from trainshed.scheduler import explaining
from trainshed.scheduler.fair_share import position
from trainshed.scheduler.model import (
    Admit,
    Demand,
    GangRequest,
    GangState,
    NodeCapacity,
    Place,
    Policy,
    Preempt,
    StockOut,
)
from trainshed.scheduler.planning import is_still_valid, plan, state_after
from trainshed.scheduler.snapshot import Group, Snapshot

CPUS = "cpus_n1_e2"
MAX_WAIT = 50 * SECOND

devices = st.sampled_from([MachineWanted(None, kind) for kind in (T4, V100)])
demands = st.one_of(
    st.builds(Demand, st.sampled_from([0.5, 1, 2, 4, 8]), st.integers(0, 3)),
    st.builds(Demand, st.just(1.0), st.just(0), st.integers(1, 3), devices),
)


@st.composite
def gangs(draw: st.DrawFn, uid: int) -> GangRequest:
    pools = draw(st.lists(st.tuples(st.integers(1, 4), demands), min_size=1, max_size=2))
    replicas = tuple(
        (ReplicaId(pool, index), demand)
        for pool, (count, demand) in enumerate(pools)
        for index in range(count)
    )
    spent = sum(demand.vcpus for _, demand in replicas)
    return GangRequest(
        uid=JobUid(uid),
        name=f"projects/p/jobs/j{uid}",
        project_id=draw(st.sampled_from(["p", "q", "r"])),
        region=REGION,
        priority=draw(st.sampled_from([0, 0, 0, 5])),
        created=draw(st.integers(1, 50)),
        replicas=replicas,
        quota=((CPUS, spent),) if draw(st.booleans()) else (),
        person=draw(st.sampled_from(["", "ana", "bo"])),
        spot=draw(st.booleans()) and draw(st.booleans()),
    )


conditions = st.sampled_from([NodeCondition.READY] * 4 + [NodeCondition.DRAINED, NodeCondition.GONE])


@st.composite
def node_lists(draw: st.DrawFn) -> list[NodeCapacity]:
    nodes: list[NodeCapacity] = []
    for i in range(draw(st.integers(1, 5))):
        gpus, kind = draw(st.integers(0, 4)), draw(st.sampled_from([T4, V100]))
        cpus, memory = draw(st.sampled_from([1, 4, 8, 16])), draw(st.integers(0, 8))
        devices = ((kind, gpus),) if gpus else ()
        others = OthersUse()
        if draw(st.booleans()):
            theirs = ((kind, draw(st.integers(0, gpus))),) if gpus else ()
            others = OthersUse(draw(st.integers(0, cpus)), draw(st.integers(0, memory)), theirs)
        nodes.append(NodeCapacity(f"n{i}", cpus, memory, devices, others, condition=draw(conditions)))
    return nodes


policies = st.builds(
    Policy,
    strict=st.sampled_from([True, True, False]),
    max_replicas=st.integers(1, 10),
    patience=st.sampled_from([0, MAX_WAIT]),
)
limits = st.one_of(st.none(), st.integers(0, 12))


@st.composite
def random_clusters(draw: st.DrawFn) -> SimulatedCluster:
    """Generate a cluster with running jobs. Plans have started them, so the state is realistic."""
    limit = draw(limits)
    quotas = {} if limit is None else {QuotaKey("p", REGION, CPUS): float(limit)}
    cluster = SimulatedCluster(draw(node_lists()), draw(policies), quotas)
    count = draw(st.integers(1, 14))
    items = [draw(gangs(uid)) for uid in range(1, count + 1)]
    first = draw(st.integers(0, count))
    cluster.wait(*items[:first], since=NOW)
    cluster.apply_plan(cluster.plan(NOW))
    for state in list(cluster.states.values()):
        if state.places and draw(st.booleans()) and draw(st.booleans()):
            lose(cluster, state, draw(st.integers(0, len(state.places) - 1)))
    delays = st.sampled_from([0, 0, 0, NOW + 10 * SECOND])
    for item in items[first:]:
        since = NOW - draw(st.sampled_from([0, 1, 2])) * MAX_WAIT
        cluster.wait(item, since=since, not_before=draw(delays))
    return cluster


def lose(cluster: SimulatedCluster, state: GangState, at: int) -> None:
    lost = state.places[at]
    kept = tuple(place for place in state.places if place != lost)
    if not state.leaving:
        cluster.put(GangState(state.gang, kept, (lost,), until=state.until))


def ages_of(group: Group) -> tuple[Any, ...]:
    buckets = sorted([entry.age for entry in bucket] for bucket in group.buckets.values())
    heads = sorted((person, [entry.age for entry in heads]) for person, heads in group.heads.items())
    return buckets, heads, [entry.age for entry in group.waiting]


def contents(snapshot: Snapshot) -> Any:
    """Return all parts of a snapshot that a plan could change."""
    free = snapshot.free
    return copy.deepcopy(
        (
            sorted((name, free.layout(name).types, free.vector(name)) for name in free),
            {id(m): (m.usage, m.waiting) for m in snapshot.meters.values()},
            snapshot.used,
            [
                (level, project, *ages_of(group))
                for level, groups in snapshot.queue.levels.items()
                for project, group in groups.items()
                if group.waiting
            ],
            snapshot.reservations,
        )
    )


@given(random_clusters())
def test_scheduler_plans_are_safe_and_deterministic(cluster: SimulatedCluster) -> None:
    """spec/queue#quotas: no node and no quota is exceeded, and no gang is placed partially. Equal states give
    equal plans."""
    before = contents(cluster.snapshot)
    made = plan(cluster.snapshot.copy(), NOW)
    assert contents(cluster.snapshot) == before
    assert plan(cluster.snapshot.copy(), NOW) == made
    admitted = {d.uid for d in made.decisions if isinstance(d, Admit)}
    preempted = [d.uid for d in made.decisions if isinstance(d, Preempt)]
    assert len(preempted) == len(set(preempted))
    assert admitted.isdisjoint(preempted)
    for decision in made.decisions:
        state = cluster.states[decision.uid]
        match decision:
            case Admit(nodes=nodes):
                assert state.not_before <= NOW
                assert not state.places
                assert [r for r, _ in nodes] == [r for r, _ in state.gang.replicas]
                chosen = [name for _, name in nodes]
            case Place(replica=replica, node=name):
                assert replica in dict(state.unplaced)
                chosen = [name]
            case Preempt():
                assert state.gang.spot
                assert state.places or state.unplaced
                chosen = []
            case StockOut():
                chosen = []
        assert all(cluster.nodes[name].condition is NodeCondition.READY for name in chosen)
    cluster.apply_plan(made)
    cluster.check()


@given(random_clusters())
def test_preflight_returns_the_nodes_on_which_the_scheduler_then_places_the_job(
    cluster: SimulatedCluster,
) -> None:
    before = contents(cluster.snapshot)
    wanted = gang(1000, 2, replicas=2)
    answer = explaining.preflight(cluster.snapshot.copy(), wanted, NOW)
    assert contents(cluster.snapshot) == before
    cluster.wait(wanted, since=NOW)
    admitted = {d.uid: d.nodes for d in cluster.plan().decisions if isinstance(d, Admit)}
    places = tuple((str(replica), name) for replica, name in admitted.get(wanted.uid, ()))
    assert (answer.places, answer.is_admitted) == (places, bool(places))


@given(random_clusters())
def test_scheduling_decisions_of_the_same_plan_do_not_conflict(cluster: SimulatedCluster) -> None:
    """ADR 12: each decision is still valid after all earlier decisions of the plan are applied."""
    planned = cluster.snapshot.copy()
    for decision in plan(planned, NOW).decisions:
        assert is_still_valid(cluster.snapshot, planned, decision)
        cluster.snapshot.put(state_after(cluster.snapshot.entries[decision.uid].state, decision))


@given(random_clusters(), random_clusters())
def test_outdated_scheduling_decisions_never_exceed_the_capacity_of_a_node(
    cluster: SimulatedCluster, other: SimulatedCluster
) -> None:
    """ADR 12: during a decision, nodes change, jobs end, and other jobs take their capacity."""
    planned = cluster.snapshot.copy()
    made = plan(planned, NOW)
    cluster.set_nodes(other.nodes.values())
    for state in list(cluster.states.values())[::2]:
        cluster.end(state.gang.uid)
    cluster.wait(*(replace(s.gang, uid=JobUid(s.gang.uid + 100)) for s in other.states.values()))
    overloaded = {name for name, node in cluster.snapshot.nodes.items() if min(node.free) < 0}
    for decision in cluster.plan().decisions:
        cluster.snapshot.put(state_after(cluster.snapshot.entries[decision.uid].state, decision))
    for decision in made.decisions:
        if is_still_valid(cluster.snapshot, planned, decision):
            cluster.snapshot.put(state_after(cluster.snapshot.entries[decision.uid].state, decision))
    if cluster.policy.strict:
        assert {n for n, node in cluster.snapshot.nodes.items() if min(node.free) < 0} <= overloaded
    for meter in cluster.snapshot.meters.values():
        assert meter.limit is None or meter.usage <= meter.limit or len(meter.holders) == 1


@given(random_clusters())
def test_incrementally_updated_scheduler_snapshot_equals_a_new_snapshot(cluster: SimulatedCluster) -> None:
    """Equal states give equal plans, regardless of the order of the changes."""
    rebuilt = SimulatedCluster(reversed(list(cluster.nodes.values())), cluster.policy, cluster.quotas)
    for state in sorted(cluster.states.values(), key=lambda s: -s.gang.uid):
        rebuilt.put(state)
    # Reservations of the last plan are part of the state, since they come first.
    rebuilt.snapshot.reservations = cluster.snapshot.reservations
    cluster.set_nodes([node("passing", 99), *cluster.nodes.values()])
    cluster.nodes.pop("passing")
    cluster.set_nodes(list(cluster.nodes.values()))
    assert cluster.plan() == rebuilt.plan()


@given(random_clusters())
def test_resource_usage_by_programs_outside_the_service_never_causes_a_stock_out(
    cluster: SimulatedCluster,
) -> None:
    """Other programs free their resources later, so only the total size of a node decides about a
    stock-out."""
    refused = {d for d in cluster.plan().decisions if isinstance(d, StockOut)}
    cluster.set_nodes([replace(node, others=OthersUse()) for node in cluster.nodes.values()])
    # The order may differ, because other admissions change the order of jobs.
    assert {d for d in cluster.plan().decisions if isinstance(d, StockOut)} == refused


@given(random_clusters())
def test_equal_jobs_start_in_order_of_creation(cluster: SimulatedCluster) -> None:
    """spec/queue#order: of two jobs that differ only in age, the newer one never starts first."""
    admitted = {d.uid for d in cluster.plan().decisions if isinstance(d, Admit)}
    waiting = [s for s in cluster.states.values() if not (s.places or s.unplaced)]
    for older in waiting:
        for younger in waiting:
            a, b = older.gang, younger.gang
            alike = a == replace(b, uid=a.uid, name=a.name, created=a.created)
            if alike and (a.created, a.uid) < (b.created, b.uid) and older.not_before <= NOW:
                assert b.uid not in admitted or a.uid in admitted


@given(random_clusters())
def test_preemption_stops_no_unnecessary_jobs(cluster: SimulatedCluster) -> None:
    """spec/failures#preemption: without any one of the preempted jobs, the preempting job would not fit."""
    if not cluster.policy.strict:
        return
    made = cluster.plan().decisions
    takers = {d.by for d in made if isinstance(d, Preempt)}
    if len(takers) != 1 or any(isinstance(d, Admit | Place) for d in made):
        return  # several preempting jobs cannot be distinguished from outside
    victims = [d.uid for d in made if isinstance(d, Preempt)]
    (taker,) = (s.gang for s in cluster.states.values() if s.gang.name in takers)
    if cluster.states[taker.uid].unplaced:
        return
    for spared in victims:
        trial = SimulatedCluster(cluster.nodes.values(), cluster.policy, cluster.quotas)
        for state in cluster.states.values():
            runs = state.places and not state.leaving
            if runs and (state.gang.uid == spared or state.gang.uid not in victims):
                trial.put(state)
        trial.wait(replace(taker, spot=True))  # a spot job preempts no other job
        assert taker.uid not in trial.admitted_jobs()


@given(random_clusters())
def test_job_that_preempts_spot_jobs_starts_after_a_single_grace_period(cluster: SimulatedCluster) -> None:
    """spec/queue#spot: if only spot jobs occupy the capacity of the next job, it starts when they have
    ended."""
    owner = gang(1000, 2, replicas=2, priority=9)
    alone = SimulatedCluster(cluster.nodes.values(), cluster.policy, cluster.quotas)
    for state in cluster.states.values():
        if (state.places or state.unplaced) and not state.gang.spot:
            alone.put(state)
    alone.wait(owner)
    cluster.wait(owner)
    if owner.uid in alone.admitted_jobs():
        for _ in range(2):
            for decision in cluster.step(NOW).decisions:
                if isinstance(decision, Preempt):
                    cluster.end(decision.uid)
        assert cluster.states[owner.uid].places


@settings(max_examples=30)
@given(random_clusters(), st.lists(st.integers(1, 30), min_size=40, max_size=40))
def test_every_job_eventually_starts(cluster: SimulatedCluster, spans: Sequence[int]) -> None:
    """spec/lifecycle#end: if jobs end, no job waits forever. Jobs that can never fit are excluded."""
    cluster.set_nodes([node("big", 64, 1, 24, T4), node("vee", 64, 1, 24, V100)])
    cluster.quotas = dict.fromkeys(cluster.quotas, 99.0)
    cluster.snapshot.set_quotas(cluster.quotas)
    for state in list(cluster.states.values()):  # their nodes no longer exist
        if state.places or state.unplaced:
            cluster.end(state.gang.uid)
    ends: dict[JobUid, int] = {}
    now = NOW
    for _ in range(400):
        if not cluster.states:
            return
        now += 5 * SECOND
        for uid in [uid for uid, end in ends.items() if end <= now and uid in cluster.states]:
            cluster.end(uid)
        for decision in cluster.step(now).decisions:
            assert not isinstance(decision, StockOut)
            if isinstance(decision, Admit):
                ends[decision.uid] = now + spans[decision.uid % 40] * SECOND
            if isinstance(decision, Preempt):  # the job ends before the next plan and waits again
                item = cluster.states[decision.uid].gang
                cluster.wait(item, since=now)
                ends.pop(decision.uid, None)
    raise AssertionError(f"{len(cluster.states)} jobs never ended")


@settings(max_examples=20)
@given(
    st.sampled_from([Policy(strict=True, patience=MAX_WAIT), Policy(max_replicas=8, patience=MAX_WAIT)]),
    st.integers(2, 8),
    st.lists(st.integers(1, 4), min_size=10, max_size=10),
    st.lists(st.sampled_from(["p", "q", "r"]), min_size=10, max_size=10),
    st.integers(0, 100),
)
@example(
    # Eight other jobs always have a reservation.
    policy=Policy(strict=True, patience=MAX_WAIT),
    size=8,
    spans=[1, 1, 4, 2, 4, 4, 3, 4, 3, 4],
    projects=["p", "p", "p", "q", "p", "r", "q", "q", "r", "p"],
    past=1,
)
def test_stream_of_small_jobs_never_starves_a_large_job(
    policy: Policy, size: int, spans: Sequence[int], projects: Sequence[str], past: int
) -> None:
    """spec/queue#order: this holds regardless of the size, duration and fair share of the small jobs, and of
    the past usage of the large job's user."""
    cluster = SimulatedCluster([node("a", 4), node("b", 4)], policy)
    used = MachineTime("p", "ana", (), "", "", "", machine_hours=8 * past, cpu_hours=8 * past)
    cluster.snapshot.past.add(used, NOW - past * HOUR, NOW)
    cluster.snapshot.past.set_time(NOW)
    ends: dict[int, int] = {}
    now, uid = NOW, 100
    for at in range(400):
        now += 10 * SECOND
        for old in [u for u, end in ends.items() if end <= now]:
            cluster.end(old)
            del ends[old]
        for _ in range(4):
            uid += 1
            person = ("ana", "bo", "")[uid % 3]
            small = gang(uid, 1, project=projects[uid % 10], person=person)
            cluster.wait(small, since=now)
        if at == 3:
            big = gang(1, 1, replicas=size, project="p", person="ana", created=uid)
            cluster.wait(big, since=now)
        admitted = {d.uid for d in cluster.step(now).decisions if isinstance(d, Admit)}
        if 1 in admitted:
            assert at <= 60
            return
        ends |= {u: now + spans[u % 10] * 10 * SECOND for u in admitted}
    raise AssertionError("the big job never started")


Account = tuple[str, str | None]
"""A project and one of its users ("" = unknown), or None for all users together."""
people = st.tuples(st.sampled_from(["p", "q", "r"]), st.sampled_from(["", "ana", "bo"]))


@given(
    st.lists(st.tuples(people, st.integers(1, 40), st.integers(0, 40)), max_size=4),
    st.lists(people, max_size=4),
    st.lists(people, min_size=2, max_size=12),
    st.sampled_from([[1], [1, 2, 3]]),
    st.dictionaries(people, st.sampled_from([0.5, 2.0, 3.0])),
    st.booleans(),
)
def test_oldest_job_of_the_user_furthest_below_the_fair_share_is_admitted_next(
    ran: Sequence[tuple[Account, int, int]],
    running: Sequence[Account],
    waiting: Sequence[Account],
    sizes: Sequence[int],
    due: dict[Account, float],
    is_quota_last: bool,
) -> None:
    """spec/queue#order: each admitted job belongs to the project with the least current and recent usage, to
    the user with the least usage in that project, and is that user's oldest job."""
    are_equal = len(sizes) == 1
    policy = Policy(strict=True, half_life=10 * HOUR)
    cluster = SimulatedCluster([node("a", 9 if are_equal else 99)], policy)
    had: defaultdict[Account, float] = defaultdict(float)

    def use(account: Account, cpus: float) -> None:
        project, person = account
        had[project, None] += cpus / due.get((project, ""), 1)
        had[account] += cpus / (due.get(account, 1) if person else 1)

    long_ago = MachineTime("p", "ana", (), "", "", "", cpu_hours=4)
    cluster.snapshot.past.add(long_ago, NOW - 20_001 * HOUR, NOW - 20_000 * HOUR)
    for account, length, ago in ran:  # past usage: four CPUs for some hours
        ended = NOW - ago * HOUR
        used = MachineTime(account[0], account[1] or "", (), "", "", "", cpu_hours=4 * length)
        cluster.snapshot.past.add(used, ended - length * HOUR, ended)
        use(account, 4 * (1 - 2 ** (-length / 10)) * 2 ** (-ago / 10))
    cluster.snapshot.past.set_time(NOW)
    left = dict(enumerate(waiting, 1))
    for uid, (project, person) in left.items():
        cluster.wait(gang(uid, sizes[uid % len(sizes)], project=project, person=person or ""))
    shares = {QuotaKey(who[0], GLOBAL, SHARE, who[1] or ""): due[who] for who in due}
    cluster.snapshot.set_quotas(dict.fromkeys(shares, 1.0))

    def run() -> None:
        for uid, (project, person) in enumerate(running, 100):
            cluster.run(gang(uid, 1, project=project, person=person or ""), "a")
            use((project, person), 1)

    changes = [run, partial(cluster.snapshot.set_quotas, shares)]
    for change in changes if is_quota_last else reversed(changes):
        assert all(position(cluster.snapshot, JobUid(uid)) for uid in left)
        change()
    for turn, uid in enumerate(cluster.admitted_jobs(), 1):
        project, person = left[uid]
        for other, account in left.items():
            assert had[project, None] <= had[account[0], None] + 1e-9
            if account[0] == project:
                assert had[project, person] <= had[account] + 1e-9
            assert uid <= other or account != (project, person)
        is_exact = are_equal and len({whose for _, whose in waiting}) == 1
        assert position(cluster.snapshot, JobUid(uid)) == turn or not is_exact
        use(left.pop(uid), sizes[uid % len(sizes)])
