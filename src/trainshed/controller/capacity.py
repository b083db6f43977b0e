"""Keeps the scheduler's snapshot up to date with stored jobs, nodes and quotas, and answers questions about
it.

A decision counts from the moment it is made: it is put into the snapshot before its job has applied it, so
that the next decision does not give the same capacity away again. The job's next stored state corrects the
snapshot. If a job is stored anew before it has applied a decision, the decision is undone and must not be
applied any more (`counts`).

Decisions that would hold up the event loop are made in several turns of it, and so are the answers to
pre-flights. Changes that arrive between these turns are applied to the snapshot at the end; questions between
them are answered from the snapshot as it was at the beginning.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, assert_never

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.capacity import (
    UNLIMITED,
    Delay,
    NodeCondition,
    NodeStatus,
    Preflight,
    QuotaKey,
    QuotaStatus,
    Waiting,
    WaitReason,
)
from trainshed.core.catalog.quotas import metrics
from trainshed.core.lifecycle.events import (
    CapacityRefused,
    Event,
    FellBack,
    JobAdmitted,
    Preempted,
    ReplicaPlaced,
)
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import AttemptState, ReplicaState
from trainshed.core.lifecycle.timeline import expected_start
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed.engines.port import Node, NodeState
from trainshed.scheduler import explaining
from trainshed.scheduler.explaining import PreflightPlanning
from trainshed.scheduler.fair_share import position
from trainshed.scheduler.falling_back import fall_backs
from trainshed.scheduler.model import (
    PLAIN,
    Admit,
    Decision,
    FallBack,
    GangState,
    NodeCapacity,
    Place,
    Policy,
    Preempt,
    StockOut,
    gang,
    with_choice,
)
from trainshed.scheduler.planning import Planning
from trainshed.scheduler.snapshot import Snapshot
from trainshed.store.port import NodeDrain

_TURN: Final = 0.01
"""Seconds of processor time after which a decision continues in another turn of the event loop."""
_NEVER = 2**62
"""`not_before` of a job that has not applied its stock-out yet, so that it is not refused twice."""


class NodeNews(Struct, frozen=True):
    """Why a node takes no work now."""

    condition: NodeCondition
    cause: str
    #: Whether programs that run there are left alone.
    running_stays: bool = False


class _Question(Struct, eq=False):
    """A pre-flight that waits for its answer."""

    job: Job
    now: Nanos
    answer: asyncio.Future[Preflight]


class CapacityTracker:
    """The scheduler's snapshot with what it is built from; one per controller.

    `wake_at`: called with the moment (ns) at which the passing of time alone may let a job start.
    `go_on_soon`: called when `go_on` has to be called in another turn of the event loop. `spent`: seconds of
    processor time used so far.
    """

    def __init__(
        self,
        policy: Policy,
        wake_at: Callable[[int], None],
        go_on_soon: Callable[[], None],
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._wake_at = wake_at
        self._go_on_soon = go_on_soon
        self._spent = spent
        #: The decision or answer in progress; None = none.
        self._deciding: Iterator[Decision | None] | None = None
        #: Its plan, which works on the snapshot alone meanwhile.
        self._planning: Planning | PreflightPlanning | None = None
        #: Pre-flights that are not answered yet; the first of them may be in progress.
        self._questions: deque[_Question] = deque()
        #: Whether the last thing begun was a pre-flight: then a decision comes before the next one.
        self._has_answered = False
        #: Changes that arrived since that began, in order.
        self._told_since: list[Callable[[], None]] = []
        #: The last state of each job that arrived since then; None = the job is over.
        self._latest: dict[JobUid, Job | None] = {}
        self._snapshot = Snapshot()
        self._snapshot.set_policy(policy)
        self._policy = policy
        self._nodes: dict[str, Node] = {}
        self._engine_says: dict[str, tuple[NodeState, str]] = {}
        self._drains: dict[str, NodeDrain] = {}
        #: Why an attempt that is placed does not start, as its engine reports it: (attempt, delay).
        self._delays: dict[JobUid, tuple[int, Delay]] = {}
        #: The last job that was put and about which nothing was decided since: most are put several times
        #: unchanged.
        self._told: dict[JobUid, Job] = {}
        self._changed = True
        #: Whether the last plan neither decided nor reserved anything.
        self._was_in_vain = False

    # --- changes ---

    def put(self, job: Job) -> None:
        """Take in the state of a stored job, or of one that is about to be stored."""
        if job.state.is_final:
            self.forget(job.uid)
            return
        if job.uid in self._delays and not _is_starting(job, self._delays[job.uid][0]):
            del self._delays[job.uid]
        if self._deciding is not None:
            if self._is_no_news(job):
                return
            self._latest[job.uid] = job
        self._tell(partial(self._put, job))

    def _is_no_news(self, job: Job) -> bool:
        """Whether the job's state is the one that the decision in progress is based on. To apply it
        afterwards would undo what has been decided about the job by then."""
        known = self._state(job.uid)
        return (
            job.uid not in self._latest
            and known is not None
            and gang_state(job, known, self._policy) == known
        )

    def _put(self, job: Job) -> None:
        before = self._state(job.uid)
        if self._told.get(job.uid) is job:
            return
        state = gang_state(job, before, self._policy)
        if state != before:
            self._snapshot.put(state)
            # Behind jobs that did not fit a moment ago, a further one cannot change the next plan.
            is_in_vain = before is None and self._was_in_vain and self._snapshot.is_behind(job.uid)
            self._changed = self._changed or not is_in_vain
        self._told[job.uid] = job

    def gives_back(self, job: Job) -> bool:
        """Whether the job, as it is about to be stored, holds less capacity than in its last known state."""
        before = self._state(job.uid)
        if job.uid in self._latest:
            latest = self._latest[job.uid]
            before = gang_state(latest, before, self._policy) if latest is not None else None
        if before is None or (job.uid not in self._latest and self._told.get(job.uid) is job):
            return False
        now = gang_state(job, before, self._policy)
        return bool(set(before.places) - set(now.places)) or now.leaving > before.leaving

    def set_delay(self, uid: JobUid, attempt: int, delay: Delay | None) -> None:
        """Set what the engine reports of an attempt that it is to start; None = nothing delays it."""
        if delay is not None and uid in self._snapshot.entries:
            self._delays[uid] = attempt, delay
        else:
            self._delays.pop(uid, None)

    def forget(self, uid: JobUid) -> None:
        self._delays.pop(uid, None)
        if self._deciding is not None:
            self._latest[uid] = None
        self._tell(partial(self._forget, uid))

    def _forget(self, uid: JobUid) -> None:
        self._told.pop(uid, None)
        if uid in self._snapshot.entries:
            self._snapshot.remove(uid)
            self._changed = True

    def set_nodes(self, nodes: Sequence[Node]) -> None:
        """Set the nodes that the engine offers."""
        self._nodes = {node.name: node for node in nodes}
        self._tell(self._refresh_nodes)

    def set_node_state(self, node: str, state: NodeState, cause: str) -> None:
        """Set the state that the engine reports of a node."""
        self._engine_says[node] = (state, cause)
        self._tell(partial(self._refresh_node, node))

    def _refresh_node(self, node: str) -> None:
        if node in self._nodes:
            self._snapshot.set_node(self._node_room(self._nodes[node]))
            self._changed = True

    def set_drains(self, drains: Iterable[NodeDrain]) -> None:
        """Set the nodes that operators put under maintenance."""
        self._drains = {drain.node: drain for drain in drains}
        self._tell(self._refresh_nodes)

    def set_quotas(self, quotas: Mapping[QuotaKey, float]) -> None:
        self._tell(partial(self._set_quotas, dict(quotas)))

    def _set_quotas(self, quotas: dict[QuotaKey, float]) -> None:
        self._snapshot.set_quotas(quotas)
        self._changed = True

    def time_passed(self) -> None:
        """Take note that the moment of `wake_at` has come."""
        self._changed = True

    # --- questions ---

    def decide(self, now: Nanos) -> tuple[Decision, ...]:
        """Return the decisions that follow from all changes, each once. Cheap if nothing has changed. If
        deciding takes long, this returns a part, and `go_on` the rest."""
        if not self._changed or self._deciding is not None:
            return ()
        self._changed = self._has_answered = False
        self._deciding = self._decisions(now)
        return self._decided(self._deciding)

    def go_on(self, now: Nanos) -> tuple[Decision, ...]:
        """Return further decisions, as `decide`; to be called after `go_on_soon` was."""
        is_answered_next = self._questions and not (self._changed and self._has_answered)
        if self._deciding is None and is_answered_next:
            self._begin_answer()
        return self._decided(self._deciding) if self._deciding is not None else self.decide(now)

    def _decided(self, deciding: Iterator[Decision | None]) -> tuple[Decision, ...]:
        """Return what can be decided in one turn of the event loop."""
        made: list[Decision] = []
        until = self._spent() + _TURN
        try:
            for decision in deciding:
                if decision is not None:
                    made.append(decision)
                if self._spent() >= until:
                    self._go_on_soon()
                    return tuple(made)
        except BaseException:
            self._end()
            raise
        self._end()
        return tuple(made)

    def _decisions(self, now: Nanos) -> Iterator[Decision | None]:
        """Yield the decisions, and None after each step on the way to them."""
        self._was_in_vain = False
        if not (self._snapshot.queue or self._snapshot.unplaced):
            self._snapshot.set_reservations(())
            return
        fallen, soonest = fall_backs(self._snapshot, now)
        for decision in fallen:
            self._count(decision)
            yield decision
        self._planning = Planning(self._snapshot, now)
        while (made := self._planning.go_on()) is None:
            yield None
        self._planning = None
        self._snapshot.set_reservations(made.reservations)
        self._was_in_vain = not (fallen or made.decisions or made.reservations)
        for decision in made.decisions:
            self._count(decision)
            yield decision
        if moments := [at for at in (soonest, made.look_again) if at]:
            self._wake_at(min(moments))

    def _end(self) -> None:
        """End the decision in progress, and apply the changes that arrived meanwhile."""
        self._deciding = self._planning = None
        self._latest.clear()
        told, self._told_since = self._told_since, []
        for tell in told:
            tell()
        if self._changed or self._questions:
            self._go_on_soon()

    def _tell(self, change: Callable[[], None]) -> None:
        """Change the snapshot, now or when nothing is being decided."""
        if self._deciding is None:
            change()
        else:
            self._told_since.append(change)

    @property
    def _settled(self) -> Snapshot:
        """The snapshot as it was before the plan in progress."""
        if self._planning is not None:
            self._planning.step_back()
        return self._snapshot

    def counts(self, uid: JobUid, event: Event) -> bool:
        """Whether the decision that `event` reports still counts; True for events that report none. If it
        does not, another job may have its capacity by now, and a new decision has been, or will be, made."""
        state = self._state(uid)
        if state is None:
            return True  # the job is over, and ignores events
        match event:
            case JobAdmitted(nodes):
                return set(state.places) == set(nodes)
            case ReplicaPlaced(replica=replica, node=node):
                return (replica, node) in state.places
            case Preempted():
                return state.leaving
            case CapacityRefused():
                return state.not_before == _NEVER
            case FellBack(choice):
                return state.gang.choice == choice
            case _:
                return True

    def unfit(self, node: str) -> NodeNews | None:
        """Return why a node takes no work; None if it does, or is not known."""
        if node in self._drains:
            drain = self._drains[node]
            reason = f": {drain.reason}" if drain.reason else ""
            return NodeNews(NodeCondition.DRAINED, f"{node} is under maintenance{reason}")
        state, cause = self._engine_says.get(node, (NodeState.UP, ""))
        match state:
            case NodeState.UP:
                return None
            case NodeState.DRAINING:
                return NodeNews(NodeCondition.DRAINED, cause or f"{node} is to be left")
            case NodeState.QUARANTINED:
                return NodeNews(NodeCondition.QUARANTINED, cause or f"{node} was found unfit")
            case NodeState.UNHEARD:
                why = cause or f"{node} is not heard of"
                return NodeNews(NodeCondition.GONE, why, running_stays=True)
            case NodeState.GONE:
                return NodeNews(NodeCondition.GONE, cause or f"{node} does not answer")

    def on_unfit_nodes(self) -> tuple[JobUid, ...]:
        """Return the jobs that have, or were just given, places on nodes that take no work."""
        there = (node for node in self._snapshot.nodes.values() if node.holders)
        return tuple(
            dict.fromkeys(uid for node in there if self.unfit(node.name) for uid in node.holders)
        )

    @property
    def queue_length(self) -> int:
        """How many jobs wait."""
        return len(self._settled.queue)

    def why(self, uid: JobUid, now: Nanos) -> Waiting | None:
        """Return why a job waits for its places, or for its start there; None if it does not wait."""
        waiting = explaining.why(self._settled, uid, now)
        if waiting is None and uid in self._delays:
            delay = self._delays[uid][1]
            return Waiting(
                WaitReason(delay.cause.value),
                delay.message,
                expected_start(delay.expected) if delay.expected else "",
                position=delay.position,
                expected=delay.expected,
            )
        return waiting

    def position(self, uid: JobUid) -> int:
        """Return a job's position in the queue: 1 = next, 0 = it does not wait."""
        return position(self._settled, uid)

    def preflight(self, job: Job, now: Nanos, answer: asyncio.Future[Preflight]) -> None:
        """Set `answer` to whether a job like this would be admitted now. It is worked out in several turns of
        the event loop, after the decision in progress."""
        self._questions.append(_Question(job, now, answer))
        if self._deciding is None:
            self._begin_answer()
            assert self._deciding is not None
            self._decided(self._deciding)

    def refuse(self, error: Exception) -> None:
        """Fail all pre-flights that wait."""
        for question in self._questions:
            _refuse(question, error)

    def _begin_answer(self) -> None:
        self._has_answered = True
        self._deciding = self._answering(self._questions[0])

    def _answering(self, question: _Question) -> Iterator[None]:
        """Work out an answer, one step per item. Failures go to the caller who asked."""
        try:
            if question.answer.done():
                return
            self._planning = asking = PreflightPlanning(
                self._snapshot, gang(question.job, self._policy), question.now
            )
            while (found := asking.go_on()) is None:
                yield None
                if question.answer.done():
                    asking.close()
                    return
            question.answer.set_result(found)
        except Exception as error:
            _refuse(question, error)
        finally:
            self._questions.popleft()

    def node_statuses(self) -> tuple[NodeStatus, ...]:
        news = {name: self.unfit(name) for name in self._nodes}
        causes = {name: one.cause for name, one in news.items() if one is not None}
        # Includes what is wrong with nodes that take work all the same.
        causes = {name: said for name, (_, said) in self._engine_says.items() if said} | causes
        return explaining.node_statuses(self._settled, causes)

    def quota_statuses(self, project_id: str, region: str) -> tuple[QuotaStatus, ...]:
        """Return every quota of the project in the region that has a limit, is used, or is waited for; by
        metric."""
        told = {
            one.key: one
            for one in explaining.quota_statuses(self._settled, project_id)
            if one.key.region == region
        }
        for key in (QuotaKey(project_id, region, metric) for metric in metrics()):
            limit, source = self._snapshot.limit(key)
            if key not in told and limit != UNLIMITED:
                told[key] = QuotaStatus(key, limit, 0, 0, source)
        return tuple(told[key] for key in sorted(told, key=lambda key: key.metric))

    def all_quota_statuses(self) -> tuple[QuotaStatus, ...]:
        """Return every quota of any project that is set, used or waited for."""
        return explaining.quota_statuses(self._settled)

    # --- inside ---

    def _state(self, uid: JobUid) -> GangState | None:
        """Return the last known state of a job, including decisions made since."""
        entry = self._snapshot.entries.get(uid)
        return entry.state if entry else None

    def _count(self, decision: Decision) -> None:
        before = self._snapshot.entries[decision.uid].state
        match decision:
            case Admit(_, nodes):
                state = replace(before, places=nodes, unplaced=())
            case Place(_, replica, node):
                unplaced = tuple(one for one in before.unplaced if one[0] != replica)
                state = replace(before, places=(*before.places, (replica, node)), unplaced=unplaced)
            case Preempt():
                state = replace(before, leaving=True)
            case StockOut():
                state = replace(before, not_before=_NEVER)
            case FallBack(_, choice):
                state = replace(before, gang=with_choice(before.gang, choice), not_before=0)
        self._snapshot.put(state)
        self._told.pop(decision.uid, None)

    def _refresh_nodes(self) -> None:
        self._snapshot.set_nodes([self._node_room(node) for node in self._nodes.values()])
        self._changed = True

    def _node_room(self, node: Node) -> NodeCapacity:
        news = self.unfit(node.name)
        condition = news.condition if news else NodeCondition.READY
        return NodeCapacity(
            node.name,
            node.vcpus,
            node.memory_bytes,
            node.accelerators,
            condition,
            node.others,
            node.accepts,
            node.unreached,
        )


def _refuse(question: _Question, error: Exception) -> None:
    if not question.answer.done():
        question.answer.set_exception(error)


def _is_starting(job: Job, attempt: int) -> bool:
    """Whether some replica of that attempt has yet to be started."""
    return (
        job.attempt == attempt
        and job.phase in (AttemptState.STARTING, AttemptState.RUNNING)
        and any(replica.state is ReplicaState.WAITING for replica in job.replicas)
    )


def gang_state(job: Job, before: GangState | None, policy: Policy = PLAIN) -> GangState:
    """Return a job as the scheduler sees it. `before`: how it saw the job last."""
    is_same = before is not None and job.memory_factor == 1.0 and before.gang.choice == job.choice
    asked = before.gang if before and is_same else gang(job, policy)
    if not job.is_placed:
        return GangState(
            asked,
            waiting_since=max(job.created, job.not_before),
            not_before=job.not_before,
            leaving=job.outcome is not None,
        )
    keeps = job.outcome is None and (job.retry is None or job.retry.keeps_room)
    leaving = job.phase is AttemptState.STOPPING and not keeps
    end = job.started + job.spec.scheduling.timeout if job.started else 0
    # A stopping job's replicas are not placed again: its next attempt asks for places once it has begun.
    stopping = job.phase is AttemptState.STOPPING
    return GangState(
        asked,
        tuple((r.id, r.node) for r in job.replicas if r.node),
        () if stopping else tuple((r.id, r.avoid) for r in job.replicas if not r.node),
        waiting_since=job.created,
        until=end,
        leaving=leaving,
    )


def event_of_decision(decision: Decision, job: Job | None) -> Event | None:
    """Return a decision as an event of its job; None if the job has moved on since."""
    match decision:
        case Admit(_, nodes):
            return JobAdmitted(nodes, job.attempt + 1) if job else None
        case Place(_, replica, node):
            incarnations = {r.id: r.incarnation for r in job.replicas} if job else {}
            if job is None or replica not in incarnations:
                return None
            return ReplicaPlaced(job.attempt, replica, incarnations[replica], node)
        case Preempt(_, by):
            return Preempted(by)
        case StockOut(_, reason):
            return CapacityRefused(reason)
        case FallBack(_, choice, reason):
            return FellBack(choice, reason)
        case _:
            assert_never(decision)
