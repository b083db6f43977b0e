"""Invariants at every commit of a simulated service, under any events (spec/invariants, spec/lifecycle)."""

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from tests.sim.comparison import Judge
from tests.sim.engine.world import World
from tests.sim.operator_rules import OperatorRules
from tests.sim.tuning_invariants import Families
from trainshed.core.capacity import QuotaKey
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, Event
from trainshed.core.lifecycle.records import Drill, Job, Replica
from trainshed.core.lifecycle.states import AttemptState, JobState
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.usage import Use
from trainshed.scheduler.model import Policy, gang

SECOND = 10**9
_IDLE = 15 * 60 * SECOND
"""Maximum ns of a wait despite free capacity and a running service: back-offs, detection and delays."""
_SETTLES = 60 * SECOND
"""ns after a change of the quotas in which earlier admissions may still be stored."""


@dataclass(frozen=True, slots=True)
class AppliedStep:
    """A step of the machine as the controller applied it."""

    before: Job
    event: Event
    now: int
    after: Job


@dataclass(slots=True)
class Books:
    """The stored state of a simulation and the violations found.

    `jobs` contains the jobs as last committed. `admitted` contains the time of each first admission (ns).
    """

    world: World
    policy: Policy
    operator_rules: OperatorRules = field(default_factory=OperatorRules)
    quotas: dict[QuotaKey, float] = field(default_factory=dict[QuotaKey, float])
    jobs: dict[JobUid, Job] = field(default_factory=dict[JobUid, Job])
    judges: dict[JobUid, Judge] = field(default_factory=dict[JobUid, Judge])
    admissions: dict[JobUid, int] = field(default_factory=dict[JobUid, int])
    wrong: list[str] = field(default_factory=list[str])
    rules: Counter[str] = field(default_factory=Counter[str])
    steps: int = 0
    quotas_since: int = 0
    #: Nodes under maintenance, with its start (ns of true time).
    drain_times: dict[str, int] = field(default_factory=dict[str, int])
    #: Time until which other causes may withhold capacity: quotas, bad nodes, a dead service.
    blocked_until: int = 0
    families: Families = field(default_factory=Families)
    #: Released attempts of each job.
    uses: defaultdict[JobUid, list[Use]] = field(default_factory=lambda: defaultdict(list))
    #: The wall clock was never set.
    clock_is_true: bool = True
    _idle_since: int | None = None

    def record_creation(self, job: Job) -> None:
        self.jobs[job.uid] = job
        self.judges[job.uid] = Judge.of(job, self.operator_rules)

    def check_commit(self, job: Job, taken: list[AppliedStep]) -> None:
        """Check a commit. `taken`: the steps that led to it."""
        before = self.jobs[job.uid]
        if taken and not _same(taken[0].before, before):
            self._wrong(job, "it was stepped from a state that is not stored")
        judge = self.judges[job.uid]
        for step in taken:
            self.steps += 1
            judge.observe(step.before, step.event, step.now, step.after)
            self._check_limits(step)
            self._check_left(step)
            if AttemptState.RUNNING is step.after.phase is not step.before.phase:
                self._check_all_up(step.after)
        if judge.differences:
            self._wrong(job, "machine and reference differ\n" + judge.history_text())
            judge.differences.clear()
        self._check_truth(before, job)
        self._check_idle(job)
        if job.is_placed:
            self.admissions.setdefault(job.uid, self.world.clock.now)
        if _places(job) - _places(before):
            self._check_nodes(job)
            if not before.is_placed:
                self._check_quotas(job)
        if job.state.is_final and not before.state.is_final:
            self._check_end(job)

    def check_usage(self) -> None:
        """spec/queue#budgets: each attempt is charged once, from the start of its first program to the end of
        its last replica, including absences of the service.
        """
        spans = {uid: sorted({(use.began, use.ended) for use in self.uses[uid]}) for uid in self.jobs}
        for uid, job in self.jobs.items() if self.clock_is_true else ():
            counted = sum(len(use.replicas) for use in self.uses[uid])
            is_once = counted == len(spans[uid]) * len(job.replicas)
            if not is_once or any(earlier[1] > later[0] for earlier, later in pairwise(spans[uid])):
                self._wrong(job, f"it is counted twice: {self.uses[uid]}")
        for sim_slot, run in self.world.lived if self.clock_is_true else ():
            uid = sim_slot.job_uid
            is_counted = any(first <= run.start_time <= run.over <= last for first, last in spans[uid])
            if run.start_time and not is_counted:
                self._wrong(self.jobs[uid], f"{run} is not counted: {spans[uid]}")

    def blocks(self, lasts: int) -> None:
        """Record that faults may withhold capacity for this many ns from now on."""
        self.blocked_until = max(self.blocked_until, self.world.clock.now + lasts)

    def is_over(self, uid: JobUid | None = None) -> bool:
        """Return whether this work, or all works, are finished."""
        if uid is not None:
            return (self.jobs.get(uid) or self.families.works[uid]).state.is_final
        jobs = all(job.state.is_final for job in self.jobs.values())
        return jobs and all(work.state.is_final for work in self.families.works.values())

    def _check_limits(self, step: AppliedStep) -> None:
        """spec/queue#waiting: maxWaitTime runs from the creation to the first RUNNING. The running limit
        starts at the first RUNNING and excludes the waits of retries for capacity.
        """
        event, job = step.event, step.before
        if not isinstance(event, CancelRequested) or event.cause is CancelCause.USER:
            return
        scheduling = job.spec.scheduling
        # Limits use the monotonic clock, time stamps the wall clock.
        now = step.now if self.clock_is_true else math.inf
        if event.cause is CancelCause.MAX_WAIT:
            due = job.created + (scheduling.max_wait or 0)
            if scheduling.max_wait is None or event.at != due or now < due:
                self._wrong(job, f"{event} at {step.now}, created {job.created}")
            if job.started and step.after.state is JobState.CANCELLED:
                self._wrong(job, "maxWaitTime cancelled a job that has run")
        if event.cause is CancelCause.TIMEOUT:
            due = job.started + job.waited + scheduling.timeout
            if not job.started or event.at != due or now < due:
                self._wrong(job, f"{event} at {step.now}, started {job.started}")

    def _check_truth(self, before: Job, job: Job) -> None:
        """Check that every reported end of a replica really happened."""
        known = {(before.attempt, r.id, r.incarnation): r for r in before.replicas}
        for replica in job.replicas:
            old = known.get((job.attempt, replica.id, replica.incarnation))
            if replica.exit is None or (old is not None and old.exit is not None):
                continue
            sim_slot = self.world.sim_slot(job.uid, job.attempt, replica.id)
            life = sim_slot.incarnations.get(replica.incarnation) if sim_slot else None
            if life is None or life.exit != replica.exit:
                self._wrong(job, f"{replica.id} is said to have ended with {replica.exit}: {life}")
            elif self.world.clock.now - max(life.over, self.blocked_until) > _IDLE:
                self._wrong(job, f"only now it is known of {replica.id} that it ended at {life.over}")

    def _check_left(self, step: AppliedStep) -> None:
        """spec/failures#maintenance: an evicted replica restarts on the node that the scheduler selects."""
        leaving = {(r.id, r.incarnation): r.node for r in step.before.replicas if r.leaving}
        for replica in step.after.replicas:
            if replica.node and leaving.get((replica.id, replica.incarnation - 1)) == replica.node:
                self._wrong(step.after, f"{replica.id} stays on {replica.node}, which it was to leave")

    def _check_all_up(self, job: Job) -> None:
        """spec/lifecycle#start: RUNNING as soon as every replica is up or has been."""
        for replica in job.replicas:
            sim_slot = self.world.sim_slot(job.uid, job.attempt, replica.id)
            life = sim_slot.incarnations.get(replica.incarnation) if sim_slot else None
            if not replica.state.is_over and (life is None or not life.start_time):
                self._wrong(job, f"it is said to run, and {replica.id} has not started: {life}")

    def _check_quotas(self, job: Job) -> None:
        """spec/queue#quotas: an admitted job is within its quotas."""
        if self.world.clock.now - self.quotas_since < _SETTLES:
            return
        project, region = job.name.project_id, job.spec.region
        used: dict[str, float] = {}
        for other in self.jobs.values():
            if other.is_placed and (other.name.project_id, other.spec.region) == (project, region):
                for metric, amount in gang(other, Policy()).quota:
                    used[metric] = used.get(metric, 0) + amount
        for metric, _ in gang(job, Policy()).quota:
            limit = self.quotas.get(QuotaKey(project, region, metric))
            if limit is not None and used[metric] > limit:
                self._wrong(job, f"{used[metric]} of {limit} {metric} are used by {project}")

    def _check_nodes(self, job: Job) -> None:
        """spec/queue#capacity, strict mode: no node exceeds its capacity."""
        if not self.policy.strict:
            return
        for node in {r.node for r in job.replicas if r.node}:
            has = self.world.places[node].node
            there = [(j, r) for j in self.jobs.values() if j.is_placed for r in _replicas_on(j, node)]
            machines = [j.spec.pool(r.id.pool).machine for j, r in there]
            factors = [j.memory_factor for j, _ in there]
            devices = sum(m.accelerators.count for m in machines if m.accelerators)
            vcpus = sum(m.vcpus for m in machines)
            memory = sum(int(m.memory_bytes * f) for m, f in zip(machines, factors, strict=True))
            if (
                vcpus > has.vcpus
                or memory > has.memory_bytes
                or devices > sum(count for _, count in has.accelerators)
            ):
                names = ", ".join(f"{j.uid} {r.id}" for j, r in there)
                self._wrong(job, f"{node} ({has}) is given {vcpus} vCPUs, {memory} B: {names}")

    def _check_end(self, job: Job) -> None:
        if not max(job.created, job.started) <= job.ended <= job.updated:
            self._wrong(job, f"created {job.created}, ended {job.ended}")
        if job.state is JobState.SUCCEEDED:
            primary = next((r for r in job.replicas if r.id.is_primary), None)
            if primary is None or primary.exit is None or primary.exit.exit_code != 0:
                self._wrong(job, f"it succeeded; its primary is {primary}")
        for replica in job.replicas:
            sim_slot = self.world.sim_slot(job.uid, job.attempt, replica.id)
            if sim_slot is not None and sim_slot.latest is not None and sim_slot.latest.lives:
                self._wrong(job, f"it is over while {replica.id} lives")
        for drill in job.drills:
            if drill.is_armed and drill.at_line:
                self._check_unfired(job, drill, drill.at_line)

    def _check_unfired(self, job: Job, drill: Drill, pattern: str) -> None:
        """spec/operations#drills: a drill fires at its line, if the replica then runs long enough."""
        for line in self.world.journals.of(job.uid):
            if line.replica != drill.replica or not re.search(pattern, line.text):
                continue
            sim_slot = self.world.sim_slot(job.uid, line.attempt, line.replica)
            life = sim_slot.incarnations[line.incarnation] if sim_slot is not None else None
            calm = max(line.at, drill.ordered, self.blocked_until) + _SETTLES
            if line.at >= drill.ordered and life is not None and life.exit and life.exit.ended > calm:
                self._wrong(job, f"{drill} has not fired at {line}")

    def _check_idle(self, job: Job) -> None:
        """Check that no job waits while capacity is free and no fault exists."""
        now = self.world.clock.now
        since = self._idle_since
        if since is not None and now - max(since, self.blocked_until) > _IDLE:
            waiting = [job.uid for job in self.jobs.values() if _waits(job)]
            self.wrong.append(f"from {since} to {now} nothing ran, while {waiting} waited")
        self.jobs[job.uid] = job
        busy = any(job.is_placed for job in self.jobs.values() if not job.state.is_final)
        wall = self.world.clock.wall
        waits = any(_waits(job) and job.not_before <= wall for job in self.jobs.values())
        free = not busy and not self.quotas and not self.drain_times
        self._idle_since = now if waits and free else None

    def _wrong(self, job: Job, what: str) -> None:
        self.wrong.append(f"at {self.world.clock.now / SECOND:.3f} s, job {job.uid}: {what}")


def _same(job: Job, other: Job) -> bool:
    """Return whether two records of a job are equal, except for labels and `updated`, which requests
    change."""
    return (job.state, job.attempt, job.phase, job.replicas, job.outcome, job.retries) == (
        other.state,
        other.attempt,
        other.phase,
        other.replicas,
        other.outcome,
        other.retries,
    )


def _places(job: Job) -> set[tuple[ReplicaId, str]]:
    return {(r.id, r.node) for r in job.replicas if r.node and job.is_placed}


def _replicas_on(job: Job, node: str) -> list[Replica]:
    return [replica for replica in job.replicas if replica.node == node]


def _waits(job: Job) -> bool:
    return job.phase is AttemptState.WAITING and not job.state.is_final and job.outcome is None
