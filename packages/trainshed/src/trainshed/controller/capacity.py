"""Updates the scheduler's snapshot with stored jobs, nodes and quotas, runs the scheduler after changes or at
given times, and answers questions about capacity.

A decision takes effect in the snapshot immediately, before its job has applied the decision. The next
decision therefore does not assign the same capacity again. The job's next stored state corrects the snapshot.
If a job is stored again before it has applied a decision, the decision is undone and must not be applied any
more (`is_valid`).

Decisions are made on a copy of the snapshot. With many jobs and nodes, they are made in a thread, while the
event loop continues. Decisions that are still valid afterwards are used. All other decisions are made again.
Preflight checks run in the same way (docs/adr/0012).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from trainshed.controller.budgets import Budgets
from trainshed.controller.reserved_pools import ReservedPools
from trainshed.core.capacity import (
    Delay,
    Node,
    NodeCondition,
    NodeStatus,
    Preflight,
    QuotaKey,
    QuotaStatus,
    Waiting,
)
from trainshed.core.catalog.quotas import BUDGETS, GLOBAL, HARD_BUDGETS, JOBS, PRIORITY, QUEUED
from trainshed.core.errors import FailedPrecondition, ResourceExhausted
from trainshed.core.lifecycle.events import CapacityRefused, Event, JobAdmitted, Preempted, ReplicaPlaced
from trainshed.core.lifecycle.records import Job, person_of
from trainshed.core.lifecycle.states import AttemptState, ReplicaState
from trainshed.core.lifecycle.timeline import expected_start
from trainshed.core.names import JobUid
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.pipelines import Pipeline
from trainshed.core.reservations import PersistentResource, PersistentResourceName
from trainshed.core.tuning.records import TuningJob
from trainshed.core.units import Nanos
from trainshed.core.usage import MachineTime, Prices, Use
from trainshed.core.works import Work
from trainshed.engines.port import NodeState
from trainshed.eventloop.background import begin
from trainshed.scheduler import explaining
from trainshed.scheduler.fair_share import position
from trainshed.scheduler.model import (
    Decision,
    GangState,
    NodeCapacity,
    Plan,
    Policy,
    StockOut,
    gang,
    gang_state,
    hold_state,
)
from trainshed.scheduler.planning import NEVER, is_still_valid, plan, state_after
from trainshed.scheduler.snapshot import Snapshot
from trainshed.store.port import NodeDrain

MAX_INLINE_SIZE: Final = 1000
"""Maximum number of jobs and nodes for which decisions are made on the event loop. Such decisions take at
most about 20 ms."""
_CONDITIONS: Final = {
    NodeState.DRAINING: NodeCondition.DRAINED,
    NodeState.QUARANTINED: NodeCondition.QUARANTINED,
    NodeState.UNHEARD: NodeCondition.GONE,
    NodeState.GONE: NodeCondition.GONE,
}
"""The scheduler's condition of a node, by the state that the engine reports. UP is not included."""
T = TypeVar("T")

log = logging.getLogger(__name__)


class NodeNews(Struct, frozen=True):
    """The reason why a node accepts no replicas now."""

    condition: NodeCondition
    cause: str
    #: Whether running programs may stay on the node.
    running_stays: bool = False


class CapacityTracker:
    """The scheduler's snapshot with its sources. There is one per controller.

    `wake_at`: called with the time (ns) at which a job may start without other changes. `deliver`: receives
    the decisions that `decide` has postponed. `at_once`: the number of jobs and nodes above which decisions
    are made in a thread.
    """

    def __init__(
        self,
        policy: Policy,
        wake_at: Callable[[int], None],
        deliver: Callable[[Sequence[Decision]], None],
        at_once: int = MAX_INLINE_SIZE,
        budgets: Budgets | None = None,
    ) -> None:
        self.budgets = budgets or Budgets(Prices(), lambda now: ())
        self._wake_at = wake_at
        self._deliver = deliver
        self._at_once = at_once
        #: One thread, so that decisions and preflight checks do not run at the same time.
        self._thread = ThreadPoolExecutor(1, "planner")
        #: Locked during a preflight check, so that only one runs at a time.
        self._asking = asyncio.Lock()
        #: The decision that is being made in the thread, or None.
        self._deciding: asyncio.Task[None] | None = None
        #: Jobs that arrived after the decision in the thread began.
        self._arrivals: list[JobUid] = []
        #: The error for preflight checks, or None if they are possible.
        self._refusal: Exception | None = None
        self._snapshot = Snapshot(policy)
        #: The persistent resources with their jobs.
        self.reserved = ReservedPools(policy)
        self._policy = policy
        #: The nodes that the engine offers, by name.
        self.nodes: dict[str, Node] = {}
        self.accelerators: tuple[str, ...] = ()
        self._engine_says: dict[str, tuple[NodeState, str | None]] = {}
        self._drains: dict[str, NodeDrain] = {}
        #: Projects and users of jobs and tuning jobs that are being stored, that have no job in the snapshot
        #: yet, or that wait for other jobs.
        self._arriving: dict[JobUid, tuple[str, str]] = {}
        #: The number of these works by project and user. "" = all users.
        self._arriving_counts: Counter[tuple[str, str]] = Counter()
        #: (attempt, delay) of placed attempts that cannot start yet, as their engine reports.
        self._delays: dict[JobUid, tuple[int, Delay]] = {}
        #: The last state of each job in the snapshot, to skip calls of `put` without a change. Entries with
        #: later decisions are removed.
        self._put_last: dict[JobUid, Job] = {}
        self._changed = True
        #: Whether the scheduler's last plan made no decisions and no reservations.
        self._was_in_vain = False

    # --- changes ---

    def put(self, job: Job) -> None:
        """Update the snapshot with the state of a stored job, or of a job that is about to be stored."""
        if job.is_held:
            self._count_arrival(job)
            return
        self.forget_arrival(job.uid)
        if job.parent is not None:
            self.forget_arrival(job.parent.uid)
        if job.state.is_final:
            self.forget(job.uid)
            return
        if job.uid in self._delays and not _is_starting(job, self._delays[job.uid][0]):
            del self._delays[job.uid]
        before = self._state(job.uid)
        if self._put_last.get(job.uid) is job:
            return
        state = gang_state(job, before, self._policy)
        if (home := self.reserved.adopt(job)) is not None:
            home.put(state)
        elif state != before:
            self._snapshot.put(state)
            if before is not None:
                self._changed = True
            elif self._deciding is not None:
                self._arrivals.append(job.uid)
            else:
                self._register(job.uid)
        self._put_last[job.uid] = job

    def _register(self, uid: JobUid) -> None:
        """Register a new job. If it follows jobs that did not fit in the scheduler's last plan, it cannot
        change the next plan."""
        self._changed = self._changed or not (self._was_in_vain and self._snapshot.is_behind(uid))

    def releases_capacity(self, job: Job) -> bool:
        """Return whether the new state of the job uses less capacity than its last known state."""
        before = self._state(job.uid)
        if before is None or self._put_last.get(job.uid) is job:
            return False
        now = gang_state(job, before, self._policy)
        return bool(set(before.places) - set(now.places)) or now.leaving > before.leaving

    def set_delay(self, uid: JobUid, attempt: int, delay: Delay | None) -> None:
        """Set the delay of an attempt's start that the engine reports, or None."""
        if delay is not None and self._state(uid) is not None:
            self._delays[uid] = attempt, delay
        else:
            self._delays.pop(uid, None)

    def forget_arrival(self, uid: JobUid) -> None:
        """Stop counting an admitted job or tuning job separately, because its jobs are in the snapshot
        or it was not stored."""
        if (account := self._arriving.pop(uid, None)) is not None:
            self._arriving_counts.subtract(_counted_accounts(account))

    def _count_arrival(self, work: Job | TuningJob) -> None:
        if work.uid not in self._arriving:
            account = self._arriving[work.uid] = _account(work)
            self._arriving_counts.update(_counted_accounts(account))

    def forget(self, uid: JobUid) -> None:
        self.forget_arrival(uid)
        self._delays.pop(uid, None)
        self._put_last.pop(uid, None)
        self.reserved.forget(uid)
        if uid in self._snapshot.entries:
            self._snapshot.remove(uid)
            self._changed = True

    def set_nodes(self, nodes: Sequence[Node]) -> None:
        """Set the nodes that the engine offers."""
        self.nodes = {node.name: node for node in nodes}
        counts = Counter(kind for node in nodes for kind, n in node.accelerators for _ in range(n))
        self.accelerators = tuple(kind for kind, _ in counts.most_common())
        self._refresh_nodes()

    def set_node_state(self, node: str, state: NodeState, cause: str | None) -> None:
        """Set the state that the engine reports for a node."""
        self._engine_says[node] = (state, cause)
        if node in self.nodes:
            self._snapshot.set_node(self._capacity_of(self.nodes[node]))
            self._changed = True
        self._refresh_resources()

    def set_drains(self, drains: Iterable[NodeDrain]) -> None:
        """Set the nodes that operators have put under maintenance."""
        self._drains = {drain.node: drain for drain in drains}
        self._refresh_nodes()

    def set_quotas(self, quotas: Mapping[QuotaKey, float]) -> None:
        self._snapshot.set_quotas(dict(quotas))
        self.budgets.set_quotas(quotas)
        self._changed = True

    def set_resource(self, name: PersistentResourceName, resource: PersistentResource | None) -> None:
        """Set a persistent resource, or remove it (None). Its machines stay on their nodes, except on unfit
        nodes that run no job of the resource."""
        before = self.reserved.resources.get(name)
        self.reserved.set(name, resource, self.is_fit)
        holds = resource.holds if resource is not None and resource.error is None else ()
        there = {hold.uid for hold in holds}
        for hold in before.holds if before is not None else ():
            if hold.uid not in there:
                self._snapshot.remove(hold.uid)

        def keeps(node: str) -> bool:
            return self.is_fit(node) or self.reserved.uses_node(name, node)

        for hold in holds:
            if resource is not None and hold.uid not in self.reserved.pending:
                self._snapshot.put(hold_state(resource, hold, self._policy, keeps))
        self._changed = True

    def stop_jobs(self, name: PersistentResourceName, reason: str) -> list[tuple[JobUid, Event]]:
        """Request the jobs of a persistent resource to release the resource's machines. Return the events for
        these jobs."""
        stopped: list[tuple[JobUid, Event]] = []
        for uid in self.reserved.jobs(name):
            state, home = self._state(uid), self.reserved.snapshot_of(uid)
            if state is not None and home is not None and state.places and not state.leaving:
                home.put(replace(state, leaving=True))
                self._put_last.pop(uid, None)
                stopped.append((uid, Preempted(reason)))
        return stopped

    def count_usage(self, uses: Sequence[Use]) -> None:
        """Count the usage of an attempt that has ended."""
        self.budgets.add(uses)
        for use in uses:
            self.add_past_usage(use.within(use.began, use.ended), use.began, use.ended)

    def add_past_usage(self, used: MachineTime, began: Nanos, ended: Nanos) -> None:
        """Add the past usage of a project between two times to the fair share."""
        self._snapshot.past.add(used, began, ended)

    def time_passed(self) -> None:
        """Require new plans of the scheduler at the next call of `decide`, because the time that was passed
        to `wake_at` has come."""
        self._changed = True
        self.reserved.plan_all()

    # --- questions ---

    def decide(self, now: Nanos) -> tuple[Decision, ...]:
        """Return the decisions that follow from all changes since the last call. Each decision is returned
        only once. A call without changes is cheap. With many jobs and nodes, `deliver` receives the decisions
        later."""
        if self._refusal is not None:
            return ()
        return (*self._decide_reserved(now), *self._decide(now))

    def _decide_reserved(self, now: Nanos) -> Iterator[Decision]:
        for name, snapshot in self.reserved.take_unplanned():
            for decision in self._apply_decisions(plan(snapshot.copy(), now), of=snapshot):
                if not isinstance(decision, StockOut):
                    yield decision
                    continue
                fault = "it does not exist any more"
                if (resource := self.reserved.resources.get(name)) is not None:
                    fault = f"it is {resource.state}" if resource.error else decision.reason
                yield StockOut(decision.uid, f"{name}: {fault}")

    def _decide(self, now: Nanos) -> tuple[Decision, ...]:
        if not self._changed or self._deciding is not None or self._refusal is not None:
            return ()
        self._changed = self._was_in_vain = False
        if self.budgets.limits or self._snapshot.exhausted:
            self._snapshot.set_exhausted(*self.budgets.find_exhausted(now))
        if not (self._snapshot.queue or self._snapshot.unplaced or self._snapshot.stopped):
            self._snapshot.reservations = ()
            return ()
        self._snapshot.past.set_time(now)
        planned = self._snapshot.copy()
        if planned.size <= self._at_once:
            return self._apply_decisions(plan(planned, now))
        self._deciding = begin(self._decide_apart(planned, now), "scheduling jobs")
        return ()

    async def _decide_apart(self, planned: Snapshot, now: Nanos) -> None:
        try:
            made = await self._apart(partial(plan, planned, now))
        finally:
            self._deciding = None
            came, self._arrivals = self._arrivals, []
        decisions = self._apply_decisions(made, planned)
        for uid in came:
            if uid in self._snapshot.entries:
                self._register(uid)
        self._deliver(decisions)

    def _apart(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _apply_decisions(
        self, made: Plan, planned: Snapshot | None = None, of: Snapshot | None = None
    ) -> tuple[Decision, ...]:
        """Apply the decisions of a plan to the snapshot, and return them.

        `planned`: the snapshot of the plan, if the present snapshot may have changed since. Then only
        decisions that are still valid are applied. `of`: the snapshot of a persistent resource.
        """
        snapshot = of or self._snapshot
        if of is None:
            self._was_in_vain = not (made.decisions or made.reservations)
        taken: list[Decision] = []
        for decision in made.decisions:
            if planned is not None and not is_still_valid(self._snapshot, planned, decision):
                self._changed = True
                continue
            before = snapshot.entries[decision.uid].state
            snapshot.put(state_after(before, decision))
            self._put_last.pop(decision.uid, None)
            if self.reserved.hold_of(decision.uid) is not None:
                self.reserved.pending.add(decision.uid)
            taken.append(decision)
        snapshot.reservations = made.reservations
        held = self.budgets.month[1] if self._snapshot.exhausted else 0
        if look_again := min(filter(None, (made.next_plan_at, held)), default=0):
            self._wake_at(look_again)
        return tuple(taken)

    def is_valid(self, uid: JobUid, event: Event) -> bool:
        """Return whether the decision behind an event is still valid. Return True for events without a
        decision. If the result is False, another job may have the capacity, and a new decision follows."""
        state = self._state(uid)
        if state is None:
            return True  # The job has finished and ignores the event, so the result has no effect.
        match event:
            case JobAdmitted(nodes):
                return set(state.places) == set(nodes)
            case ReplicaPlaced(replica=replica, node=node):
                return (replica, node) in state.places
            case Preempted():
                return state.leaving
            case CapacityRefused():
                return state.not_before == NEVER
            case _:
                return True

    def unfit_reason(self, node: str) -> NodeNews | None:
        """Return the reason if a node accepts no replicas. Return None for any other node, and for unknown
        nodes."""
        if node in self._drains:
            drain = self._drains[node]
            reason = f": {drain.reason}" if drain.reason else ""
            return NodeNews(NodeCondition.DRAINED, f"{node} is under maintenance{reason}")
        state, cause = self._engine_says.get(node, (NodeState.UP, None))
        if state is NodeState.UP:
            return None
        is_unheard = state is NodeState.UNHEARD
        return NodeNews(_CONDITIONS[state], cause or f"{node} is out of service", is_unheard)

    def jobs_on_unfit_nodes(self) -> tuple[JobUid, ...]:
        """Return the jobs with replicas on unfit nodes, including replicas that were assigned just now."""
        snapshots = (self._snapshot, *self.reserved)
        there = (node for snapshot in snapshots for node in snapshot.nodes.values() if node.holders)
        return tuple(
            dict.fromkeys(uid for node in there if self.unfit_reason(node.name) for uid in node.holders)
        )

    @property
    def queue_length(self) -> int:
        return sum(len(snapshot.queue) for snapshot in (self._snapshot, *self.reserved))

    def explain_wait(self, uid: JobUid, now: Nanos) -> Waiting | None:
        """Return the reason why a job waits for capacity or for its start, or None if it does not wait."""
        waiting = self.reserved.explain_wait(uid, now, lambda hold: self.explain_wait(hold, now))
        if waiting is None and self.reserved.snapshot_of(uid) is None:
            waiting = explaining.explain_wait(self._snapshot, uid, now)
        if waiting is None and uid in self._delays:
            delay = self._delays[uid][1]
            return Waiting(
                delay.cause,
                delay.message,
                expected_start(delay.expected) if delay.expected else None,
                position=delay.position,
                expected=delay.expected,
            )
        return waiting

    def position(self, uid: JobUid) -> int:
        """Return a job's position in the queue: 1 = next, 0 = it does not wait."""
        return position(self.reserved.snapshot_of(uid) or self._snapshot, uid)

    def require_admissible(self, work: Job | TuningJob) -> None:
        """Raise ResourceExhausted if a project or user already has the maximum number of waiting jobs. Raise
        FailedPrecondition if a limit of the project or user forbids the job's priority."""
        spec = work.spec.trial if isinstance(work, TuningJob) else work.spec
        project, person = _account(work)
        priority = spec.scheduling.priority
        for key in (
            QuotaKey(project_id=project, region=GLOBAL, metric=QUEUED, person=who)
            for who in dict.fromkeys(("", person))
        ):
            whose, limit = key.person or f"project {project}", self._snapshot.limit
            highest = limit(of_priority := replace(key, metric=PRIORITY))
            if highest is not None and priority > highest:
                raise FailedPrecondition(
                    f"Jobs of {whose} may have a priority of at most {highest:g}, not {priority}; "
                    f"{explaining.raised_by(of_priority, priority)}"
                )
            most, meter = limit(key), self._snapshot.meters.get(replace(key, metric=JOBS))
            waiting = meter.waiting // 1000 if meter else 0
            waiting += self.reserved.count_waiting(project, key.person)
            waiting += self._arriving_counts[project, key.person]
            if most is not None and waiting >= most:
                raise ResourceExhausted(
                    f"{whose} has {waiting} waiting jobs; at most {most:g} are allowed. Submit the "
                    f"job when another one has started; {explaining.raised_by(key, waiting + 1)}"
                )

    def admit(self, work: Work) -> None:
        """Count a new job or tuning job that is about to be stored, so that simultaneous requests cannot
        exceed the limits together. Raises the errors of `require_admissible`."""
        if not isinstance(work, Pipeline | PipelineJob):  # Their jobs are counted instead.
            self.require_admissible(work)
            if fault := self.reserved.fault(work):
                raise FailedPrecondition(fault)
            self._count_arrival(work)

    def adopt(self, work: Work) -> None:
        """Count a stored tuning job or pipeline that has not created a job yet."""
        if isinstance(work, TuningJob) and not work.started_trials:
            self._count_arrival(work)

    async def preflight(self, job: Job, now: Nanos) -> Preflight:
        """Return whether a job like this would be admitted now. Raises the error that `refuse` has set."""
        async with self._asking:
            if self._refusal is not None:
                raise self._refusal
            wanted = gang(job, self._policy)
            home = self.reserved.adopt(job)
            planned = (home or self._snapshot).copy()
            self.reserved.forget(job.uid)
            if planned.size <= self._at_once:
                return explaining.preflight(planned, wanted, now)
            return await self._apart(partial(explaining.preflight, planned, wanted, now))

    def refuse(self, error: Exception) -> None:
        """Stop making decisions, and reject preflight checks with this error."""
        self._refusal = error
        self._thread.shutdown(wait=False)

    def node_statuses(self) -> tuple[NodeStatus, ...]:
        causes = {name: unfit.cause for name in self.nodes if (unfit := self.unfit_reason(name))}
        # Add the causes of nodes that accept replicas: such a node may have a warning, for example.
        causes = {name: cause for name, (_, cause) in self._engine_says.items() if cause} | causes
        shown = (self._snapshot, *self.reserved)
        entries = (entry for snapshot in shown for entry in snapshot.entries.values())
        jobs = (entry for entry in entries if self.reserved.hold_of(entry.gang.uid) is None)
        return explaining.node_statuses(self._snapshot, causes, jobs)

    def quota_statuses(self, now: Nanos, project_id: str | None = None) -> tuple[QuotaStatus, ...]:
        """Return the status of all quotas that have a limit, usage, or waiting jobs. `project_id`: None for
        all projects. Sorted by project, region, metric and user."""
        budget_used = self.budgets.usage(now)

        def used(status: QuotaStatus) -> float:
            key = status.key
            if key.metric == QUEUED:
                return status.used + self._arriving_counts[key.project_id, key.person]
            is_budget = key.metric in (*BUDGETS, *HARD_BUDGETS)
            return round(budget_used(key), 2) if is_budget else status.used

        return tuple(
            replace(status, used=used(status))
            for status in explaining.quota_statuses(self._snapshot, project_id)
        )

    # --- internal methods ---

    def _state(self, uid: JobUid) -> GangState | None:
        """Return the last known state of a job, including later decisions."""
        snapshot = self.reserved.snapshot_of(uid) or self._snapshot
        entry = snapshot.entries.get(uid)
        return entry.state if entry else None

    def _refresh_nodes(self) -> None:
        self._snapshot.set_nodes([self._capacity_of(node) for node in self.nodes.values()])
        self._changed = True
        self._refresh_resources()

    def _refresh_resources(self) -> None:
        for name, resource in tuple(self.reserved.resources.items()):
            self.set_resource(name, resource)

    def is_fit(self, node: str) -> bool:
        """Return whether a node accepts replicas."""
        return self.unfit_reason(node) is None

    def _capacity_of(self, node: Node) -> NodeCapacity:
        news = self.unfit_reason(node.name)
        condition = news.condition if news else NodeCondition.READY
        return NodeCapacity(**asdict(node), condition=condition)


def _account(work: Job | TuningJob) -> tuple[str, str]:
    return work.name.project_id, person_of(work.creator)


def _counted_accounts(account: tuple[str, str]) -> set[tuple[str, str]]:
    """Return the keys under which a work of this project and user is counted."""
    project, person = account
    return {(project, ""), (project, person)}


def _is_starting(job: Job, attempt: int) -> bool:
    """Return whether any replica of the attempt has not started yet."""
    return (
        job.attempt == attempt
        and job.phase in (AttemptState.STARTING, AttemptState.RUNNING)
        and any(replica.state is ReplicaState.WAITING for replica in job.replicas)
    )
