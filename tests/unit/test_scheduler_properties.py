"""Safety and liveness of plans over generated clusters and queues (spec/queue#order)."""

import copy
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.clusters import NOW, REGION, SECOND, T4, V100, World, gang, node
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
from trainshed.scheduler.planning import plan, state_after, still_holds
from trainshed.scheduler.snapshot import Group, Snapshot

CPUS = "cpus_n1_e2"
PATIENCE = 50 * SECOND

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


conditions = st.sampled_from(
    [NodeCondition.READY] * 4 + [NodeCondition.DRAINED, NodeCondition.GONE]
)


@st.composite
def clusters(draw: st.DrawFn) -> list[NodeCapacity]:
    nodes: list[NodeCapacity] = []
    for i in range(draw(st.integers(1, 5))):
        gpus, kind = draw(st.integers(0, 4)), draw(st.sampled_from([T4, V100]))
        cpus, memory = draw(st.sampled_from([1, 4, 8, 16])), draw(st.integers(0, 8))
        devices = ((kind, gpus),) if gpus else ()
        others = OthersUse()
        if draw(st.booleans()):
            theirs = ((kind, draw(st.integers(0, gpus))),) if gpus else ()
            others = OthersUse(draw(st.integers(0, cpus)), draw(st.integers(0, memory)), theirs)
        nodes.append(
            NodeCapacity(f"n{i}", cpus, memory, devices, others, condition=draw(conditions))
        )
    return nodes


policies = st.builds(
    Policy,
    strict=st.sampled_from([True, True, False]),
    max_replicas=st.integers(1, 10),
    patience=st.sampled_from([0, PATIENCE]),
)
limits = st.one_of(st.none(), st.integers(0, 12))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A world some of whose jobs run already: started by plans, so that it is a state that comes about."""
    limit = draw(limits)
    quotas = {} if limit is None else {QuotaKey("p", REGION, CPUS): float(limit)}
    world = World(draw(clusters()), draw(policies), quotas)
    count = draw(st.integers(1, 14))
    items = [draw(gangs(uid)) for uid in range(1, count + 1)]
    first = draw(st.integers(0, count))
    world.wait(*items[:first], since=NOW)
    world.carry_out(world.plan(NOW))
    for state in list(world.states.values()):
        if state.places and draw(st.booleans()) and draw(st.booleans()):
            lose(world, state, draw(st.integers(0, len(state.places) - 1)))
    delays = st.sampled_from([0, 0, 0, NOW + 10 * SECOND])
    for item in items[first:]:
        since = NOW - draw(st.sampled_from([0, 1, 2])) * PATIENCE
        world.wait(item, since=since, not_before=draw(delays))
    return world


def lose(world: World, state: GangState, at: int) -> None:
    lost = state.places[at]
    kept = tuple(place for place in state.places if place != lost)
    if not state.leaving:
        world.put(GangState(state.gang, kept, (lost,), until=state.until))


def ages_of(group: Group) -> tuple[Any, ...]:
    buckets = sorted([entry.age for entry in bucket] for bucket in group.buckets.values())
    heads = sorted(
        (person, [entry.age for entry in heads]) for person, heads in group.heads.items()
    )
    return buckets, heads, [entry.age for entry in group.waiting]


def books(snapshot: Snapshot) -> Any:
    """All that a plan might leave behind."""
    free = snapshot.free
    return copy.deepcopy(
        (
            sorted((name, free.layout(name).types, free.vector(name)) for name in free),
            {id(m): (m.used, m.waiting) for m in snapshot.meters.values()},
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


@given(worlds())
def test_plans_are_safe_deterministic_and_leave_the_snapshot_alone(world: World) -> None:
    """spec/queue#quotas: no node over capacity, no quota exceeded, no gang half placed; the same plan for the
    same state."""
    before = books(world.snapshot)
    made = plan(world.snapshot.copy(), NOW)
    assert books(world.snapshot) == before
    assert plan(world.snapshot.copy(), NOW) == made
    admitted = {d.uid for d in made.decisions if isinstance(d, Admit)}
    preempted = [d.uid for d in made.decisions if isinstance(d, Preempt)]
    assert len(preempted) == len(set(preempted))
    assert admitted.isdisjoint(preempted)
    for decision in made.decisions:
        state = world.states[decision.uid]
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
        assert all(world.nodes[name].condition is NodeCondition.READY for name in chosen)
    world.carry_out(made)
    world.check()


@given(worlds())
def test_a_preflight_is_what_a_plan_would_make_of_the_job(world: World) -> None:
    before = books(world.snapshot)
    wanted = gang(1000, 2, replicas=2)
    answer = explaining.preflight(world.snapshot.copy(), wanted, NOW)
    assert books(world.snapshot) == before
    world.wait(wanted, since=NOW)
    admitted = {d.uid: d.nodes for d in world.plan().decisions if isinstance(d, Admit)}
    places = tuple((str(replica), name) for replica, name in admitted.get(wanted.uid, ()))
    assert (answer.places, answer.admitted) == (places, bool(places))


@given(worlds())
def test_what_is_decided_about_a_copy_holds_as_long_as_nothing_changes(world: World) -> None:
    """ADR 12: no decision gets in the way of another one of its plan."""
    planned = world.snapshot.copy()
    for decision in plan(planned, NOW).decisions:
        assert still_holds(world.snapshot, planned, decision)
        world.snapshot.put(state_after(world.snapshot.entries[decision.uid].state, decision))


@given(worlds(), worlds())
def test_what_still_holds_after_changes_breaks_no_limit(world: World, other: World) -> None:
    """ADR 12: while a decision is made, nodes change, jobs end and others take their places."""
    planned = world.snapshot.copy()
    made = plan(planned, NOW)
    world.set_nodes(other.nodes.values())
    for state in list(world.states.values())[::2]:
        world.end(state.gang.uid)
    world.wait(*(replace(s.gang, uid=JobUid(s.gang.uid + 100)) for s in other.states.values()))
    overloaded = {name for name, node in world.snapshot.nodes.items() if min(node.free) < 0}
    for decision in world.plan().decisions:
        world.snapshot.put(state_after(world.snapshot.entries[decision.uid].state, decision))
    for decision in made.decisions:
        if still_holds(world.snapshot, planned, decision):
            world.snapshot.put(state_after(world.snapshot.entries[decision.uid].state, decision))
    if world.policy.strict:
        assert {n for n, node in world.snapshot.nodes.items() if min(node.free) < 0} <= overloaded
    for meter in world.snapshot.meters.values():
        assert meter.limit is None or meter.used <= meter.limit or len(meter.holders) == 1


@given(worlds())
def test_a_snapshot_kept_by_changes_is_one_built_anew(world: World) -> None:
    """However it came about, and in whatever order, the same state gives the same plan."""
    anew = World(reversed(list(world.nodes.values())), world.policy, world.quotas)
    for state in sorted(world.states.values(), key=lambda s: -s.gang.uid):
        anew.put(state)
    # What the last plan has reserved is part of the state: these are considered first.
    anew.snapshot.reservations = world.snapshot.reservations
    world.set_nodes([node("passing", 99), *world.nodes.values()])
    world.nodes.pop("passing")
    world.set_nodes(list(world.nodes.values()))
    assert world.plan() == anew.plan()


@given(worlds())
def test_what_others_use_now_refuses_nobody_for_good(world: World) -> None:
    """Others give back what they use: only a node's whole size says whether a job can ever run there."""
    refused = {d for d in world.plan().decisions if isinstance(d, StockOut)}
    world.set_nodes([replace(node, others=OthersUse()) for node in world.nodes.values()])
    # In another order perhaps: who else starts decides whose turn it is.
    assert {d for d in world.plan().decisions if isinstance(d, StockOut)} == refused


@given(worlds())
def test_equal_jobs_start_in_the_order_of_their_ages(world: World) -> None:
    """spec/queue#order: of two jobs that differ in nothing but age, the younger one never starts alone."""
    admitted = {d.uid for d in world.plan().decisions if isinstance(d, Admit)}
    waiting = [s for s in world.states.values() if not (s.places or s.unplaced)]
    for older in waiting:
        for younger in waiting:
            a, b = older.gang, younger.gang
            alike = a == replace(b, uid=a.uid, name=a.name, created=a.created)
            if alike and (a.created, a.uid) < (b.created, b.uid) and older.not_before <= NOW:
                assert b.uid not in admitted or a.uid in admitted


@given(worlds())
def test_every_victim_is_needed(world: World) -> None:
    """spec/failures#preemption: with one of them spared, the job they yield to would have no room."""
    if not world.policy.strict:
        return
    made = world.plan().decisions
    takers = {d.by for d in made if isinstance(d, Preempt)}
    if len(takers) != 1 or any(isinstance(d, Admit | Place) for d in made):
        return  # with several at work nothing can be said from outside
    victims = [d.uid for d in made if isinstance(d, Preempt)]
    (taker,) = (s.gang for s in world.states.values() if s.gang.name in takers)
    if world.states[taker.uid].unplaced:
        return
    for spared in victims:
        trial = World(world.nodes.values(), world.policy, world.quotas)
        for state in world.states.values():
            runs = state.places and not state.leaving
            if runs and (state.gang.uid == spared or state.gang.uid not in victims):
                trial.put(state)
        trial.wait(replace(taker, spot=True))  # it asks nobody
        assert taker.uid not in trial.admitted()


@given(worlds())
def test_what_spot_work_borrows_is_back_after_one_grace(world: World) -> None:
    """spec/queue#spot: whoever's turn it is, and has room but for spot work, starts when that has left."""
    owner = gang(1000, 2, replicas=2, priority=9)
    alone = World(world.nodes.values(), world.policy, world.quotas)
    for state in world.states.values():
        if (state.places or state.unplaced) and not state.gang.spot:
            alone.put(state)
    alone.wait(owner)
    world.wait(owner)
    if owner.uid in alone.admitted():
        for _ in range(2):
            for decision in world.step(NOW).decisions:
                if isinstance(decision, Preempt):
                    world.end(decision.uid)
        assert world.states[owner.uid].places


@settings(max_examples=30)
@given(worlds(), st.lists(st.integers(1, 30), min_size=40, max_size=40))
def test_every_job_starts_in_the_end(world: World, spans: Sequence[int]) -> None:
    """spec/lifecycle#end: with jobs that end, none waits for ever; what nothing could hold is told apart."""
    world.set_nodes([node("big", 64, 1, 24, T4), node("vee", 64, 1, 24, V100)])
    world.quotas = dict.fromkeys(world.quotas, 99.0)
    world.snapshot.set_quotas(world.quotas)
    for state in list(world.states.values()):  # their nodes are no more
        if state.places or state.unplaced:
            world.end(state.gang.uid)
    ends: dict[JobUid, int] = {}
    now = NOW
    for _ in range(400):
        if not world.states:
            return
        now += 5 * SECOND
        for uid in [uid for uid, end in ends.items() if end <= now and uid in world.states]:
            world.end(uid)
        for decision in world.step(now).decisions:
            assert not isinstance(decision, StockOut)
            if isinstance(decision, Admit):
                ends[decision.uid] = now + spans[decision.uid % 40] * SECOND
            if isinstance(decision, Preempt):  # it has left by the next plan, and waits again
                item = world.states[decision.uid].gang
                world.wait(item, since=now)
                ends.pop(decision.uid, None)
    raise AssertionError(f"{len(world.states)} jobs never ended")


@settings(max_examples=20)
@given(
    st.sampled_from(
        [Policy(strict=True, patience=PATIENCE), Policy(max_replicas=8, patience=PATIENCE)]
    ),
    st.integers(2, 8),
    st.lists(st.integers(1, 4), min_size=10, max_size=10),
    st.lists(st.sampled_from(["p", "q", "r"]), min_size=10, max_size=10),
    st.integers(0, 100),
)
@example(
    # Eight others always have something reserved.
    policy=Policy(strict=True, patience=PATIENCE),
    size=8,
    spans=[1, 1, 4, 2, 4, 4, 3, 4, 3, 4],
    projects=["p", "p", "p", "q", "p", "r", "q", "q", "r", "p"],
    past=1,
)
def test_a_stream_of_small_jobs_never_starves_a_big_one(
    policy: Policy, size: int, spans: Sequence[int], projects: Sequence[str], past: int
) -> None:
    """spec/queue#order: however small, short-lived and well-entitled the others are, and whatever its person
    used before."""
    world = World([node("a", 4), node("b", 4)], policy)
    used = MachineTime("p", "ana", (), "", "", "", machine_hours=8 * past, cpu_hours=8 * past)
    world.snapshot.past.add(used, NOW - past * HOUR, NOW)
    world.snapshot.past.set_time(NOW)
    ends: dict[int, int] = {}
    now, uid = NOW, 100
    for at in range(400):
        now += 10 * SECOND
        for old in [u for u, end in ends.items() if end <= now]:
            world.end(old)
            del ends[old]
        for _ in range(4):
            uid += 1
            person = ("ana", "bo", "")[uid % 3]
            small = gang(uid, 1, project=projects[uid % 10], person=person)
            world.wait(small, since=now)
        if at == 3:
            big = gang(1, 1, replicas=size, project="p", person="ana", created=uid)
            world.wait(big, since=now)
        admitted = {d.uid for d in world.step(now).decisions if isinstance(d, Admit)}
        if 1 in admitted:
            assert at <= 60
            return
        ends |= {u: now + spans[u % 10] * 10 * SECOND for u in admitted}
    raise AssertionError("the big job never started")


Account = tuple[str, str | None]
"""A project, and a person in it ("" = it is not known), or None for all together."""
people = st.tuples(st.sampled_from(["p", "q", "r"]), st.sampled_from(["", "ana", "bo"]))


@given(
    st.lists(st.tuples(people, st.integers(1, 40), st.integers(0, 40)), max_size=4),
    st.lists(people, max_size=4),
    st.lists(people, min_size=2, max_size=12),
    st.sampled_from([[1], [1, 2, 3]]),
    st.dictionaries(people, st.sampled_from([0.5, 2.0, 3.0])),
    st.booleans(),
)
def test_who_used_least_of_what_they_are_due_goes_first(
    ran: Sequence[tuple[Account, int, int]],
    running: Sequence[Account],
    waiting: Sequence[Account],
    sizes: Sequence[int],
    due: dict[Account, float],
    is_quota_last: bool,
) -> None:
    """spec/queue#order: at each start, no project of those that wait has had less, now and lately; nor has
    anybody of theirs in that project; and what starts is the oldest of whoever it is."""
    are_equal = len(sizes) == 1
    policy = Policy(strict=True, half_life=10 * HOUR)
    world = World([node("a", 9 if are_equal else 99)], policy)
    had: defaultdict[Account, float] = defaultdict(float)

    def use(account: Account, cpus: float) -> None:
        project, person = account
        had[project, None] += cpus / due.get((project, ""), 1)
        had[account] += cpus / (due.get(account, 1) if person else 1)

    long_ago = MachineTime("p", "ana", (), "", "", "", cpu_hours=4)
    world.snapshot.past.add(long_ago, NOW - 20_001 * HOUR, NOW - 20_000 * HOUR)
    for account, length, ago in ran:  # four CPUs for some hours, some hours ago
        ended = NOW - ago * HOUR
        used = MachineTime(account[0], account[1] or "", (), "", "", "", cpu_hours=4 * length)
        world.snapshot.past.add(used, ended - length * HOUR, ended)
        use(account, 4 * (1 - 2 ** (-length / 10)) * 2 ** (-ago / 10))
    world.snapshot.past.set_time(NOW)
    left = dict(enumerate(waiting, 1))
    for uid, (project, person) in left.items():
        world.wait(gang(uid, sizes[uid % len(sizes)], project=project, person=person or ""))
    shares = {QuotaKey(who[0], GLOBAL, SHARE, who[1] or ""): due[who] for who in due}
    world.snapshot.set_quotas(dict.fromkeys(shares, 1.0))

    def run() -> None:
        for uid, (project, person) in enumerate(running, 100):
            world.run(gang(uid, 1, project=project, person=person or ""), "a")
            use((project, person), 1)

    changes = [run, partial(world.snapshot.set_quotas, shares)]
    for change in changes if is_quota_last else reversed(changes):
        assert all(position(world.snapshot, JobUid(uid)) for uid in left)
        change()
    for turn, uid in enumerate(world.admitted(), 1):
        project, person = left[uid]
        for other, account in left.items():
            assert had[project, None] <= had[account[0], None] + 1e-9
            if account[0] == project:
                assert had[project, person] <= had[account] + 1e-9
            assert uid <= other or account != (project, person)
        is_exact = are_equal and len({whose for _, whose in waiting}) == 1
        assert position(world.snapshot, JobUid(uid)) == turn or not is_exact
        use(left.pop(uid), sizes[uid % len(sizes)])
