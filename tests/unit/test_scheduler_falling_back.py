"""Which waiting jobs take another of their choices, from labels to decisions and the job's own record
(spec/queue#fall-backs)."""

from msgspec.structs import replace

from tests.unit.jobs import CREATED, PRIMARY, SECOND, Life, job
from trainshed.controller.capacity import CapacityTracker, event_of_decision
from trainshed.core.capacity import QuotaKey
from trainshed.core.catalog.machines import machine_types
from trainshed.core.lifecycle.events import CapacityRefused, Event, FellBack, JobAdmitted
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.routes import Acceptance
from trainshed.core.specs.fallbacks import AFTER, MACHINE_TYPES, REGIONS, with_fallbacks
from trainshed.core.specs.machines import resolve
from trainshed.engines.port import Node
from trainshed.scheduler.deciding import MOST
from trainshed.scheduler.model import Policy

NOW = CREATED + 10 * SECOND


class Scene:
    """Nodes, and the moments at which the tracker wants to look again."""

    def __init__(self, *nodes: Node, strict: bool = True) -> None:
        self.wakes: list[int] = []
        self.tracker = CapacityTracker(Policy(strict=strict), self.wakes.append, lambda _: None)
        self.tracker.set_nodes(nodes)

    def decided(self, subject: Job, now: int = NOW) -> list[Event]:
        self.tracker.time_passed()
        found = [
            event_of_decision(decision, subject)
            for decision in self.tracker.decide(now)
            if decision.uid == subject.uid
        ]
        return [event for event in found if event is not None]


def asking(uid: int, machine: str = "n1-standard-16", **labels: str) -> Job:
    made = job(1)
    pool = replace(made.spec.pools[0], machine=resolve(machine_types()[machine]))
    names = {"types": MACHINE_TYPES, "regions": REGIONS, "after": AFTER}
    spec = with_fallbacks(
        replace(made.spec, pools=(pool,)), [(names[name], text) for name, text in labels.items()]
    )
    name = replace(made.name, job_id=str(uid))
    return replace(made, uid=JobUid(uid), name=name, spec=spec, created=CREATED + uid)


def a_node(name: str = "a", vcpus: int = 8, *regions: str) -> Node:
    return Node(name, vcpus, 2**40, accepts=Acceptance(regions=regions))


def test_what_can_never_be_had_is_left_at_once() -> None:
    scene, asks = Scene(a_node()), asking(7, types="n1-standard-32_n1-standard-8_n1-standard-4")
    scene.tracker.put(asks)
    fell, admitted = scene.decided(asks)
    assert fell == FellBack(2, "needs 16 CPUs on one node; the largest node has 8")
    assert isinstance(admitted, JobAdmitted)
    assert scene.tracker.counts(asks.uid, fell)
    life = Life(asks).see(fell, admitted)
    assert life.told[0].kind == "fallback"
    assert life.told[0].message == (
        "The job takes n1-standard-8 in us-central1 now, choice 3 of 4: "
        "needs 16 CPUs on one node; the largest node has 8."
    )
    assert life.job.spec.pools[0].machine.vcpus == 8 and life.job.attempt == 1
    scene.tracker.put(life.job)
    assert scene.decided(life.job) == []


def test_a_job_waits_for_what_it_asked_for_first_as_long_as_it_says() -> None:
    scene = Scene(a_node("a", 16), a_node("b", 8))
    other = asking(1)
    scene.tracker.put(Life(other).see(JobAdmitted(((PRIMARY, "a"),))).job)
    asks = asking(7, types="n1-standard-8", after="60")
    scene.tracker.put(asks)
    due = asks.created + 60 * SECOND
    assert scene.decided(asks, due - 1) == [] and scene.wakes[-1] == due
    fell, admitted = scene.decided(asks, due)
    assert isinstance(fell, FellBack) and fell.choice == 1
    assert fell.reason.startswith("has waited 60 s: needs 16 CPUs on one node")
    assert isinstance(admitted, JobAdmitted) and dict(admitted.nodes)[PRIMARY] == "b"


def test_while_nothing_else_is_free_it_stays_where_it_is() -> None:
    scene = Scene(a_node("a", 16))
    scene.tracker.put(Life(asking(1)).see(JobAdmitted(((PRIMARY, "a"),))).job)
    asks = asking(7, types="n1-standard-8", after="0")
    scene.tracker.put(asks)
    assert scene.decided(asks) == []
    scene.tracker.set_nodes((a_node("a", 16), a_node("b", 8)))
    assert [type(event) for event in scene.decided(asks)] == [FellBack, JobAdmitted]


def test_one_free_place_has_one_job_fall_back() -> None:
    scene = Scene(a_node("a", 16), a_node("b", 8))
    scene.tracker.put(Life(asking(1)).see(JobAdmitted(((PRIMARY, "a"),))).job)
    first, second = (asking(uid, types="n1-standard-8", after="0") for uid in (7, 8))
    for one in (first, second):
        scene.tracker.put(one)
    found = scene.tracker.decide(NOW)
    assert {decision.uid for decision in found} == {first.uid}


def test_another_region_has_nodes_and_quotas_of_its_own() -> None:
    scene = Scene(a_node("a", 16, "us-central1"), a_node("b", 16, "us-east1"))
    key = QuotaKey("demo", "us-central1", "cpus_n1_e2")
    scene.tracker.set_quotas({key: 8})
    asks = asking(7, regions="us-west1_us-east1", after="0")
    scene.tracker.put(asks)
    fell, admitted = scene.decided(asks)
    assert isinstance(fell, FellBack) and asks.spec.choices[fell.choice].region == "us-east1"
    assert isinstance(admitted, JobAdmitted) and dict(admitted.nodes)[PRIMARY] == "b"
    assert Life(asks).see(fell).job.spec.region == "us-east1"
    scene.tracker.put(Life(asks).see(fell, admitted).job)
    (used,) = (
        one
        for one in scene.tracker.quota_statuses(NOW, "demo")
        if one.key == QuotaKey("demo", "us-east1", "cpus_n1_e2")
    )
    assert used.used == 16


def test_if_nothing_will_do_it_is_refused_as_it_was_asked_for() -> None:
    scene, asks = Scene(a_node("a", 2)), asking(7, types="n1-standard-8")
    scene.tracker.put(asks)
    (refused,) = scene.decided(asks)
    assert isinstance(refused, CapacityRefused) and "needs 16 CPUs" in refused.reason


def test_what_is_decided_after_a_stock_out_undoes_it() -> None:
    scene, asks = Scene(a_node("a", 2)), asking(7, types="n1-standard-8")
    scene.tracker.put(asks)
    (refused,) = scene.decided(asks)
    scene.tracker.set_nodes((a_node("a", 8),))
    fell, _ = scene.decided(asks)
    assert scene.tracker.counts(asks.uid, fell) and not scene.tracker.counts(asks.uid, refused)


def test_a_job_that_runs_keeps_what_it_has() -> None:
    asks = asking(7, types="n1-standard-8")
    life = Life(asks).see(JobAdmitted(((PRIMARY, "a"),)), FellBack(1, "late"))
    assert life.job.choice == 0 and life.job.spec == asks.spec
    twice = Life(asks).see(FellBack(1, "none"), FellBack(1, "none"))
    assert [entry.kind for entry in twice.told] == ["fallback"]
    back = twice.see(FellBack(0, "it is free again")).job
    assert back.spec == asks.spec


def test_a_plan_looks_at_so_many_and_no_more() -> None:
    scene = Scene(a_node("a", 2, "us-east1"))
    for uid in range(1, MOST + 20):
        scene.tracker.put(asking(uid, types="n1-standard-8"))
    assert scene.tracker.decide(NOW)
    assert scene.tracker.decide(NOW) == ()
