"""Resource usage of jobs, usage budgets, and limits of users (docs/team.md)."""

import calendar
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tests.unit.clusters import NOW, SECOND, SimulatedCluster, gang, node
from tests.unit.jobs import PRIMARY, WORKER, Life, job
from trainshed.controller.budgets import Budgets
from trainshed.controller.capacity import CapacityTracker
from trainshed.core.capacity import EACH, Node, QuotaKey, WaitReason
from trainshed.core.catalog.quotas import COST, CPU_HOURS, GLOBAL, GPU_HOURS, JOBS
from trainshed.core.job import Accelerators
from trainshed.core.lifecycle.events import JobAdmitted, Preempted, RuntimePrepared
from trainshed.core.lifecycle.records import Actor, Job
from trainshed.core.names import JobUid
from trainshed.core.usage import HOUR, Prices, Use, released_use, uses
from trainshed.scheduler.explaining import explain_wait
from trainshed.scheduler.model import Admit, Policy, Preempt

ANA, BO = "ana@corp.example", "bo@corp.example"


def time_of(year: int, month: int, day: int = 1, hour: int = 0) -> int:
    return calendar.timegm((year, month, day, hour, 0, 0)) * SECOND


# --- usage of a job ---


def test_usage_of_an_attempt_counts_from_first_program_start_to_attempt_end() -> None:
    """An attempt occupies capacity while its runtimes are built, but that time is not usage."""
    life = Life(replace(job(1), creator=Actor(ANA), labels=(("team", "vision"),)))
    life.see(JobAdmitted(((PRIMARY, "a"),)))
    preparing = life.job
    assert preparing.placed and uses(preparing, life.now + HOUR, {}) == ()
    life.see(RuntimePrepared(1))
    starting = life.job
    assert uses(starting, life.now + HOUR, {}) == (), "the cluster has not allocated nodes yet"
    life.up()
    began = life.job.started
    assert preparing.placed < began
    (use,) = uses(life.job, life.now, {})
    assert (use.person, use.labels, use.machines) == (ANA, (("team", "vision"),), 1)
    running = life.job
    assert use.node == running.replicas[0].node
    life.exits().up()
    assert (life.job.placed, life.job.state.is_final) == (0, True)
    (use,) = released_use(running, life.job, {})
    assert (use.began, use.ended, use.machine) == (began, life.job.ended, "n1-standard-4")
    assert released_use(starting, life.job, {}) == (use,), "the program started and ended between two commits"
    assert released_use(life.job, life.job, {}) == ()


def test_attempt_that_ends_before_the_program_starts_has_no_usage() -> None:
    for events in ((), (RuntimePrepared(1),)):
        life = Life(job(1)).see(JobAdmitted(((PRIMARY, "a"),)), *events)
        before = life.job
        life.cancel().up()
        assert life.job.state.is_final and released_use(before, life.job, {}) == ()


def test_usage_of_a_retried_job_is_recorded_separately_for_each_attempt() -> None:
    """spec/failures#lost-replicas: a restarted replica belongs to the same attempt."""
    life = Life(job(1, 1)).up()
    began = life.job.began
    life.loses(WORKER).up()
    assert (life.job.attempt, life.job.began) == (1, began), "a restart in place"
    running = life.job
    life.see(Preempted("gone")).exits(PRIMARY, 143, stopped=True)
    before = life.job
    life.exits(WORKER, 143, stopped=True)
    (use, *_) = released_use(before, life.job, {})
    assert (use.began, use.ended) == (began, life.job.freed)
    waiting = life.job
    assert not waiting.placed
    life.see(JobAdmitted(((PRIMARY, "a"), (WORKER, "b"))))
    assert uses(life.job, life.now + HOUR, {}) == (), "the next attempt is prepared"
    preparing = life.job
    ended = Life(preparing)
    ended.now = life.now
    ended.cancel().up()
    assert released_use(preparing, ended.job, {}) == (), "the first attempt was already counted"
    life.up()
    assert life.job.began > running.began and life.job.attempt == 2


def test_usage_on_a_node_is_limited_by_the_capacity_of_the_node() -> None:
    """spec/queue#capacity: in relaxed mode, a machine type may be larger than the node."""
    life = Life(job(3)).up()
    on_one = [replace(replica, node="a") for replica in life.job.replicas]
    running = replace(life.job, replicas=tuple(on_one))
    small = {"a": Node("a", 2, 4 * 10**9)}
    held = uses(running, running.began + HOUR, small)
    assert (sum(use.vcpus for use in held), sum(use.memory_bytes for use in held)) == (2, 4 * 10**9)
    used = held[0].within(0, running.began + HOUR)
    assert (used.machine_hours, used.cpu_hours) == (3, 2)
    assert Prices({"n1-standard-4": 3}).cost(used) == 1.5, "half of a machine's processors"
    large = {"a": Node("a", 64, 10**12)}
    assert sum(use.vcpus for use in uses(running, life.now, large)) == 12
    assert sum(use.vcpus for use in uses(running, life.now, {})) == 12, "the node no longer exists"


def test_accelerator_usage_is_limited_by_the_accelerators_of_the_node() -> None:
    life = Life(job(1)).up()
    pool = life.job.spec.pools[0]
    machine = replace(pool.machine, accelerators=Accelerators("NVIDIA_TESLA_T4", 4))
    spec = replace(life.job.spec, pools=(replace(pool, machine=machine),))
    running, node_name = replace(life.job, spec=spec), life.job.replicas[0].node or ""
    for there, counted in (((), 0), ((("NVIDIA_L4", 1),), 1), ((("NVIDIA_L4", 8),), 4)):
        (use,) = uses(running, life.now, {node_name: Node(node_name, 64, 10**12, there)})
        assert use.accelerators == counted


def test_usage_of_a_worker_pool_is_split_by_node() -> None:
    life = Life(job(3)).up()
    moved = replace(life.job.replicas[2], node=life.job.replicas[0].node)
    holds = uses(replace(life.job, replicas=(*life.job.replicas[:2], moved)), life.now, {})
    assert [(use.node, use.machines, len(use.replicas)) for use in holds] == [
        (life.job.replicas[0].node, 2, 2),
        (life.job.replicas[1].node, 1, 1),
    ]
    assert sum(use.vcpus for use in holds) == 3 * life.job.spec.pools[0].machine.vcpus


# --- limits of a user ---


def test_used_up_job_limit_of_a_user_does_not_affect_other_users() -> None:
    key = QuotaKey("p", GLOBAL, JOBS, ANA)
    cluster = SimulatedCluster([node("a", 8)], quotas={key: 1})
    cluster.run(gang(1, person=ANA), "a")
    cluster.wait(gang(2, person=ANA), gang(3, person=BO))
    assert cluster.admitted_jobs() == [3]
    waiting = explain_wait(cluster.snapshot, JobUid(2), NOW)
    assert waiting is not None and waiting.reason is WaitReason.QUOTA
    assert waiting.message == f"{ANA} may have at most 1 job at once, and has job 1"
    assert waiting.hint and waiting.hint.endswith(f"quotas set jobs 2 --project p --user {ANA}")


def test_default_user_limit_applies_only_to_users_without_a_personal_limit() -> None:
    metric = QuotaKey("p", "us-central1", "cpus_n1_e2", EACH)
    quota = (("cpus_n1_e2", 1.0),)
    cluster = SimulatedCluster([node("a", 8)], quotas={metric: 1, replace(metric, person=BO): 2})
    gangs = [gang(uid, person=person, quota=quota) for uid, person in enumerate([ANA, ANA, BO, BO, BO], 1)]
    cluster.wait(*gangs)
    assert cluster.admitted_jobs() == [1, 3, 4]
    waiting = explain_wait(cluster.snapshot, JobUid(2), NOW)
    assert waiting is None or waiting.reason is not WaitReason.STOCK_OUT


def test_new_user_limit_counts_running_jobs() -> None:
    cluster = SimulatedCluster([node("a", 8)])
    cluster.run(gang(1, person=ANA), "a")
    cluster.wait(gang(2, person=ANA))
    key = QuotaKey("p", GLOBAL, JOBS, ANA)
    cluster.snapshot.set_quotas({key: 1})
    assert cluster.admitted_jobs() == []
    cluster.end(1)
    assert cluster.admitted_jobs() == [2]
    cluster.snapshot.set_quotas({})
    assert key not in cluster.snapshot.meters or cluster.snapshot.meters[key].limit is None
    cluster.check()


# --- budgets ---


class Month:
    """A capacity tracker with a monthly budget and jobs of two users, Ana and Bo."""

    def __init__(self, metric: str, limit: float, person: str = "", prices: Prices | None = None) -> None:
        self.running: list[Job] = []
        self.wakes: list[int] = []
        budgets = Budgets(prices or Prices(), self._uses, (50, 90))
        self.tracker = CapacityTracker(
            Policy(strict=True), self.wakes.append, lambda _: None, budgets=budgets
        )
        self.tracker.set_nodes([Node("a", 16, 2**40)])
        self.key = QuotaKey("demo", GLOBAL, metric, person)
        self.tracker.set_quotas({self.key: limit})

    def _uses(self, now: int) -> list[Use]:
        return [use for job in self.running for use in uses(job, now, {})]

    def wait(self, uid: int, person: str = ANA) -> Job:
        waiting = replace(job(1), uid=JobUid(uid), creator=Actor(person))
        self.tracker.put(waiting)
        return waiting

    def admitted_jobs(self, now: int) -> Sequence[int]:
        self.tracker.time_passed()
        return [d.uid for d in self.tracker.decide(now) if isinstance(d, Admit)]


def hour_of(person: str, began: int, hours: int = 1) -> Use:
    ended = began + hours * HOUR
    return Use("demo", person, (), "job", "", (), began, ended, "n1-standard-4", "", 1, 4, 0, 0)


def test_used_up_budget_blocks_starts_until_the_next_month() -> None:
    month = Month(CPU_HOURS, 6)
    at = time_of(2026, 11, 30)
    month.tracker.count_usage((hour_of(BO, at),))
    month.wait(1)
    assert month.admitted_jobs(at + HOUR) == [1]
    month.tracker.count_usage((hour_of(BO, at),))
    month.wait(2)
    assert month.admitted_jobs(at + 2 * HOUR) == []
    waiting = month.tracker.explain_wait(JobUid(2), at)
    assert waiting is not None and waiting.reason is WaitReason.QUOTA
    assert waiting.message == "project demo has used 8 of 6 CPU-hours of this month's budget"
    (status,) = (s for s in month.tracker.quota_statuses(at, "demo") if s.key == month.key)
    assert (status.used, status.limit) == (8, 6)
    assert month.wakes == [time_of(2026, 12)]
    assert month.admitted_jobs(time_of(2026, 12)) == [2]


def test_budget_usage_is_unchanged_after_a_temporarily_advanced_clock() -> None:
    month = Month(CPU_HOURS, 6)
    at = time_of(2026, 11, 20)
    month.tracker.count_usage((hour_of(BO, at), hour_of(BO, at)))
    budgets = month.tracker.budgets
    before = budgets.find_exhausted(at + 2 * HOUR)
    assert before[0] and not budgets.find_exhausted(time_of(2026, 12, 3))[0]
    assert budgets.find_exhausted(at + 3 * HOUR) == before
    assert budgets.usage(at + 3 * HOUR)(month.key) == 8


def test_budget_counts_running_jobs_from_the_start_of_the_month() -> None:
    month = Month(CPU_HOURS, 40)
    running = replace(Life(job(1)).up().job, began=time_of(2026, 10, 20), creator=Actor(ANA))
    month.running = [running]
    month.wait(1)
    assert month.admitted_jobs(time_of(2026, 11, 1, 9)) == [1], "36 of 40 CPU-hours"
    month.wait(2)
    assert month.admitted_jobs(time_of(2026, 11, 1, 10)) == []
    assert month.tracker.budgets.usage(time_of(2026, 11, 1, 10))(month.key) == 40


def test_budget_of_a_user_can_limit_costs_and_affects_only_that_user() -> None:
    prices = Prices({"n1-standard-4": 3})
    month = Month(COST, 5, ANA, prices)
    at = time_of(2026, 11, 3)
    month.tracker.count_usage((hour_of(ANA, at, hours=2), hour_of(BO, at, hours=9)))
    month.wait(1, ANA)
    month.wait(2, BO)
    assert month.admitted_jobs(at + 9 * HOUR) == [2]
    waiting = month.tracker.explain_wait(JobUid(1), at)
    assert waiting is not None
    assert waiting.message == f"{ANA} has used 6 of 5 of this month's budget"


@pytest.mark.parametrize("person", ["", EACH])
def test_zero_budget_blocks_all_jobs_until_the_budget_is_raised(person: str) -> None:
    month = Month(GPU_HOURS, 0, person)
    month.wait(1)
    assert month.admitted_jobs(time_of(2026, 11, 3)) == []
    waiting = month.tracker.explain_wait(JobUid(1), time_of(2026, 11, 3))
    assert waiting is not None and "budget" in waiting.message
    month.tracker.set_quotas({month.key: 1})
    assert month.admitted_jobs(time_of(2026, 11, 3)) == [1]


def test_used_up_hard_budget_preempts_running_jobs_once() -> None:
    month = Month(f"{CPU_HOURS}_hard", 40, ANA)
    at = time_of(2026, 11, 1, 9)
    month.wait(1)
    assert month.admitted_jobs(at) == [1]
    month.running = [replace(Life(job(1)).up().job, began=time_of(2026, 11), creator=Actor(ANA))]
    month.wait(2, BO)
    assert month.tracker.decide(at + HOUR // 2)[0].uid == 2
    month.tracker.time_passed()
    reason = f"{ANA} has used 40 of 40 CPU-hours of this month's budget"
    assert month.tracker.decide(at + HOUR) == (Preempt(JobUid(1), reason),)
    month.tracker.time_passed()
    assert month.tracker.decide(at + HOUR) == (), "the job already ends"


def test_budget_status_is_reported_for_each_user_of_a_default_limit() -> None:
    month = Month(CPU_HOURS, 8, EACH)
    at = time_of(2026, 11, 3)
    month.tracker.count_usage((hour_of(ANA, at), hour_of(BO, at, hours=2)))
    (ana, bo) = sorted(month.tracker.budgets.statuses(at), key=lambda b: b.key.person)
    assert (ana.key.person, ana.usage, ana.reached_mark) == (ANA, 4, 50)
    assert (bo.key.person, bo.usage, bo.reached_mark) == (BO, 8, 90)
