"""The scheduler's snapshot, kept up to date from stored jobs, nodes and quotas; and what is asked of it.

A decision counts from the moment it is made: it is put into the snapshot before the job has taken it, so that
the next one does not give the same capacity away again. Whatever a job then makes of it corrects the
snapshot; a job that is stored anew before it has taken the decision undoes it, and the decision must not be
taken any more (`counts`).

What would hold up the event loop is decided in turns, and so is what a pre-flight asks for. All that is told
meanwhile counts as told after it, and changes the snapshot when the decision is made; what is asked meanwhile
is answered from before.
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
"""Seconds of processor time after which a decision goes on in another turn of the event loop."""
_NEVER = 2**62
"""`not_before` of a job that has not taken its stock-out yet: it is not refused twice."""


class NodeNews(Struct, frozen=True):
    """A node that takes no work now, and why."""

    condition: NodeCondition
    cause: str
    #: What runs there is left alone.
    running_stays: bool = False


class _Question(Struct, eq=False):
    """A pre-flight whose answer is waited for."""

    job: Job
    now: Nanos
    answer: asyncio.Future[Preflight]


class CapacityTracker:
    """One per controller. `wake_at`: called with the moment (ns) at which the passing of time alone may let a
    job start. `go_on_soon`: called when `go_on` is to be, in another turn of the event loop. `spent`: the
    seconds of processor time that were used so far."""

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
        #: What is being decided; None = nothing.
        self._deciding: Iterator[Decision | None] | None = None
        #: The plan of it, which has the snapshot for itself.
        self._planning: Planning | PreflightPlanning | None = None
        #: Pre-flights that are not answered yet; the first of them may be begun.
        self._questions: deque[_Question] = deque()
        #: Whether the last that was begun is one: then a decision comes before the next.
        self._has_answered = False
        #: What was told since that began, in order.
        self._told_since: list[Callable[[], None]] = []
        #: By job, what was told of it last since then; None = it is over.
        self._latest: dict[JobUid, Job | None] = {}
        self._snapshot = Snapshot()
        self._snapshot.set_policy(policy)
        self._policy = policy
        self._nodes: dict[str, Node] = {}
        self._engine_says: dict[str, tuple[NodeState, str]] = {}
        self._drains: dict[str, NodeDrain] = {}
        #: By attempt: why what is placed does not start, as its engine tells it.
        self._delays: dict[JobUid, tuple[int, Delay]] = {}
        #: What was told last of jobs of which nothing was decided since: most are told several times as they
        #: are.
        self._told: dict[JobUid, Job] = {}
        self._changed = True
        #: Whether the last plan decided and reserved nothing: nobody who waits was provided for.
        self._was_in_vain = False

    # --- what is told ---

    def put(self, job: Job) -> None:
        """Take note of where a stored job, or one that is about to be stored, stands."""
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
        """Whether the job stands where those who decide believe it to: it would otherwise undo what they have
        decided of it by then."""
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
            # Nothing can come of one more behind those for whom there was no room a moment ago.
            is_in_vain = before is None and self._was_in_vain and self._snapshot.is_behind(job.uid)
            self._changed = self._changed or not is_in_vain
        self._told[job.uid] = job

    def gives_back(self, job: Job) -> bool:
        """Whether the job, as it is about to be stored, holds less capacity than was told last."""
        before = self._state(job.uid)
        if job.uid in self._latest:
            latest = self._latest[job.uid]
            before = gang_state(latest, before, self._policy) if latest is not None else None
        if before is None or (job.uid not in self._latest and self._told.get(job.uid) is job):
            return False
        now = gang_state(job, before, self._policy)
        return bool(set(before.places) - set(now.places)) or now.leaving > before.leaving

    def set_delay(self, uid: JobUid, attempt: int, delay: Delay | None) -> None:
        """What the engine says of an attempt that it is to start; None = nothing keeps it."""
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
        """What the engine offers."""
        self._nodes = {node.name: node for node in nodes}
        self._tell(self._refresh_nodes)

    def set_node_state(self, node: str, state: NodeState, cause: str) -> None:
        """What the engine says of a node."""
        self._engine_says[node] = (state, cause)
        self._tell(partial(self._refresh_node, node))

    def _refresh_node(self, node: str) -> None:
        if node in self._nodes:
            self._snapshot.set_node(self._node_room(self._nodes[node]))
            self._changed = True

    def set_drains(self, drains: Iterable[NodeDrain]) -> None:
        """The nodes that operators put under maintenance."""
        self._drains = {drain.node: drain for drain in drains}
        self._tell(self._refresh_nodes)

    def set_quotas(self, quotas: Mapping[QuotaKey, float]) -> None:
        self._tell(partial(self._set_quotas, dict(quotas)))

    def _set_quotas(self, quotas: dict[QuotaKey, float]) -> None:
        self._snapshot.set_quotas(quotas)
        self._changed = True

    def time_passed(self) -> None:
        """The moment of `wake_at` has come."""
        self._changed = True

    # --- what is asked ---

    def decide(self, now: Nanos) -> tuple[Decision, ...]:
        """What follows from everything that was told; each decision once. Costs nothing to speak of if
        nothing changed. If it takes long, this is a part, and `go_on` returns the others."""
        if not self._changed or self._deciding is not None:
            return ()
        self._changed = self._has_answered = False
        self._deciding = self._decisions(now)
        return self._decided(self._deciding)

    def go_on(self, now: Nanos) -> tuple[Decision, ...]:
        """As `decide`, when `go_on_soon` was called."""
        is_answered_next = self._questions and not (self._changed and self._has_answered)
        if self._deciding is None and is_answered_next:
            self._begin_answer()
        return self._decided(self._deciding) if self._deciding is not None else self.decide(now)

    def _decided(self, deciding: Iterator[Decision | None]) -> tuple[Decision, ...]:
        """What can be decided in one turn."""
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
        """The decisions, and None after each step that leads to some."""
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
        """It is decided: what was told meanwhile counts now."""
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
        """The snapshot as it was before what is being decided."""
        if self._planning is not None:
            self._planning.step_back()
        return self._snapshot

    def counts(self, uid: JobUid, event: Event) -> bool:
        """Whether the decision that `event` reports still counts; True for events that report none. If not,
        its capacity may be another job's by now, and whatever is true instead has been, or will be, decided
        anew."""
        state = self._state(uid)
        if state is None:
            return True  # the job is over, and takes no notice
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
        """Why a node takes no work; None if it does, or is not known."""
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
        """The jobs that have, or were just given, places on nodes that take no work."""
        there = (node for node in self._snapshot.nodes.values() if node.holders)
        return tuple(
            dict.fromkeys(uid for node in there if self.unfit(node.name) for uid in node.holders)
        )

    @property
    def queue_length(self) -> int:
        """How many jobs wait."""
        return len(self._settled.queue)

    def why(self, uid: JobUid, now: Nanos) -> Waiting | None:
        """Why a job waits for its places, or to be started there; None if it does not."""
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
        """1 = next; 0 = it does not wait."""
        return position(self._settled, uid)

    def preflight(self, job: Job, now: Nanos, answer: asyncio.Future[Preflight]) -> None:
        """Whether a job like this would be admitted now. It is answered in turns, after what is being
        decided."""
        self._questions.append(_Question(job, now, answer))
        if self._deciding is None:
            self._begin_answer()
            assert self._deciding is not None
            self._decided(self._deciding)

    def refuse(self, error: Exception) -> None:
        """Answer none of the pre-flights that wait."""
        for question in self._questions:
            _refuse(question, error)

    def _begin_answer(self) -> None:
        self._has_answered = True
        self._deciding = self._answering(self._questions[0])

    def _answering(self, question: _Question) -> Iterator[None]:
        """The steps that lead to an answer. What goes wrong is told to whoever asked."""
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
        # What is wrong with one that takes work all the same.
        causes = {name: said for name, (_, said) in self._engine_says.items() if said} | causes
        return explaining.node_statuses(self._settled, causes)

    def quota_statuses(self, project_id: str, region: str) -> tuple[QuotaStatus, ...]:
        """Every quota of the project in the region that has a limit, is used, or is waited for; by metric."""
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
        """Every quota of any project that is set, used or waited for."""
        return explaining.quota_statuses(self._settled)

    # --- inside ---

    def _state(self, uid: JobUid) -> GangState | None:
        """What was told of a job, or decided since."""
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
    """Whether something of that attempt is still to be started."""
    return (
        job.attempt == attempt
        and job.phase in (AttemptState.STARTING, AttemptState.RUNNING)
        and any(replica.state is ReplicaState.WAITING for replica in job.replicas)
    )


def gang_state(job: Job, before: GangState | None, policy: Policy = PLAIN) -> GangState:
    """A job as the scheduler sees it."""
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
    # While it is shut down nothing of it is placed: its next attempt asks, once it has begun.
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
    """The event of the job that a decision is; None if the job has moved on since."""
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
