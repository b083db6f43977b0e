"""Compares the machine with the reference: both receive every step of a job, and every difference is
recorded.
"""

from dataclasses import dataclass, field

from tests.sim import reference as spec
from tests.sim.operator_rules import OperatorRules
from tests.sim.reference import Member, Reference
from tests.sim.reference_rows import CAUSES, Rows
from trainshed.core.cluster import has_reducers
from trainshed.core.failure.evidence import Cause
from trainshed.core.lifecycle.events import (
    CancelCause,
    CancelRequested,
    CapacityRefused,
    Event,
    NodeLeft,
    Preempted,
    PreparationFailed,
)
from trainshed.core.lifecycle.records import DrillKind, Job
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost
from trainshed.core.lifecycle.states import AttemptState, JobState, ReplicaState
from trainshed.core.names import Api, ReplicaId

SECOND = 10**9
_LINES = 60
"""Number of lines shown from the end of a history."""
_UP = (AttemptState.STARTING, AttemptState.RUNNING)
_ATTEMPT_DRILLS = {
    DrillKind.PREEMPT: spec.Evicted(),
    DrillKind.STOCKOUT: spec.NoRoom(ran=True),
    DrillKind.INTERNAL: spec.Failed(),
}


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A line of a job's history, for debugging."""

    now: int
    event: object
    became: str

    def __str__(self) -> str:
        return f"{self.now / SECOND:14.3f}  {self.event}\n{'':16}-> {self.became}"


@dataclass(slots=True)
class Judge:
    """Compares machine and reference for one job. `differences` describes the differences found."""

    reference: Reference
    story: list[HistoryEntry] = field(default_factory=list[HistoryEntry])
    differences: list[str] = field(default_factory=list[str])
    _requested: set[tuple[int, Member, int]] = field(default_factory=set[tuple[int, Member, int]])

    @classmethod
    def of(cls, job: Job, operator_rules: OperatorRules | None = None) -> "Judge":
        """Create a judge of a job. `operator_rules` are the machine's rules."""
        rules = operator_rules or OperatorRules()
        scheduling = job.spec.scheduling
        members = tuple((r.pool, r.index) for r in job.spec.replicas())
        reducers = frozenset(m for m in members if m[0] == 2 and has_reducers(job.spec))
        return cls(
            Reference(
                members,
                reducers,
                scheduling.restart_job_on_worker_restart,
                scheduling.disable_retries,
                Rows(rules.entries),
                rules.attempts,
            )
        )

    def observe(self, before: Job, event: Event, now: int, after: Job) -> None:
        """Pass an event of the machine to the reference, and compare the results."""
        if before.state.is_final:
            if after != before:
                self._differ("a job that was over has changed")
            return
        self.story.append(HistoryEntry(now, event, _state_name(after)))
        for fact in self._facts(before, event, now):
            self.reference.learn(fact, now)
        self._drills(before, after, now)
        if after.attempt > self.reference.attempts:
            self._begins(before, after, now)
        self._compare(after)

    def _facts(self, before: Job, event: Event, now: int) -> list[spec.Fact]:
        """Return the event as facts of the reference, or no facts if the event is not new."""
        running = before.phase in _UP
        match event:
            case ReplicaExited(attempt, replica, incarnation, ended):
                member = _member(replica)
                if not self._is_news(attempt, member, incarnation):
                    return []
                leaving = ended.stopped
                return [
                    spec.Ended(
                        member,
                        ended.exit_code,
                        ended.signal,
                        ended.oom,
                        ended.ended,
                        ended.stopped,
                        leaving,
                        ended.stalled,
                    )
                ]
            case ReplicaLost(attempt, replica, incarnation, why, by_service, loss):
                member = _member(replica)
                if not self._is_news(attempt, member, incarnation):
                    return []
                is_asked = (attempt, member, incarnation) in self._requested
                taker = None if loss is Cause.LOST else loss.value
                began = any(r.id == replica and r.started for r in before.replicas)
                never = why == "never started" and not began and not taker
                return [spec.Vanished(member, by_service, is_asked, taker, never)]
            case PreparationFailed(attempt, _, cause):
                waits = any(r.state is ReplicaState.WAITING for r in before.replicas)
                here = before.phase is AttemptState.PREPARING or (running and waits)
                return [spec.Unprepared(cause.value)] if attempt == before.attempt and here else []
            case CapacityRefused():
                homeless = any(not r.node for r in before.replicas)
                waits = before.phase is AttemptState.WAITING or homeless
                asks = before.phase is not AttemptState.STOPPING and now >= before.not_before
                return [spec.NoRoom(ran=running)] if waits and asks else []
            case Preempted(_, cause):
                is_placed = before.is_placed and before.phase is not AttemptState.STOPPING
                return [spec.Evicted(cause is Cause.BUDGET, running)] if is_placed else []
            case CancelRequested(cause) if cause is CancelCause.MAX_WAIT and before.started:
                return []  # spec/lifecycle#cancel: it cancels a job that is not RUNNING by then
            case CancelRequested():
                return [spec.Cancelled(event.at)]
            case NodeLeft(node, staying=()):
                if running:
                    self._requested.update(
                        (before.attempt, _member(r.id), r.incarnation)
                        for r in before.replicas
                        if r.node == node and not r.state.is_over
                    )
                return []
            case _:
                return []

    def _is_news(self, attempt: int, member: Member, incarnation: int) -> bool:
        return self.reference.concerns(attempt, member, incarnation)

    def _drills(self, before: Job, after: Job, now: int) -> None:
        """Pass the effects of the drills that fired in this step to the reference, as facts."""
        known = {drill.number: drill for drill in before.drills}
        for drill in after.drills:
            old = known.get(drill.number)
            if not drill.fired or (old is not None and old.fired):
                continue
            if drill.kind in _ATTEMPT_DRILLS:
                self.reference.learn(_ATTEMPT_DRILLS[drill.kind], now)
            elif drill.kind is DrillKind.MAINTENANCE:
                self._requested.add((drill.attempt, _member(drill.replica), drill.incarnation))

    def _begins(self, before: Job, after: Job, now: int) -> None:
        expected = self.reference
        if now < expected.not_before:
            early = (expected.not_before - now) / SECOND
            self._differ(f"an attempt begins {early} s before the pause of its retry is over")
        if expected.verdict is not None:
            self._differ(f"an attempt begins although the job is {expected.verdict.state}")
        if expected.attempts and not expected.giving_up:
            self._differ("an attempt begins although the one before was not given up")
        if before.phase in (*_UP, AttemptState.STOPPING):
            alive = set(expected.members) - expected.over
            homeless = {_member(r.id) for r in before.replicas if not r.node}
            if alive - homeless:
                self._differ(f"an attempt begins while {sorted(alive)} of the last one live")
        if after.attempt != expected.attempts + 1:
            self._differ(f"attempt {after.attempt} follows attempt {expected.attempts}")
        expected.begins()

    def _compare(self, job: Job) -> None:
        expected = self.reference
        verdict = expected.verdict
        outcome = job.outcome
        if (outcome is None) != (verdict is None):
            self._differ(f"decided: {outcome}; the reference says {verdict}")
        elif outcome is not None and verdict is not None:
            code = outcome.error.code if outcome.error else None
            if (outcome.state.value, code) != (verdict.state, verdict.code):
                self._differ(f"decided: {outcome}; the reference says {verdict}")
            self._compare_words(job, verdict)
        if job.state.is_final and (outcome is None or job.state is not outcome.state):
            self._differ(f"the job is {job.state}, its outcome {outcome}")
        if job.state is JobState.CANCELLED and verdict is not None and verdict.state != "CANCELLED":
            self._differ("cancelled, though nobody asked for it")
        retries = {CAUSES.get(rule, rule): count for rule, count in job.retries}
        if retries != dict(expected.retries):
            self._differ(f"retries {retries}; the reference counts {expected.retries}")
        if job.memory_factor != expected.memory:
            self._differ(f"memory grew to {job.memory_factor}; the reference says {expected.memory}")
        if verdict is None and not expected.giving_up and expected.attempts == job.attempt:
            for replica in job.replicas:
                member = _member(replica.id)
                if replica.incarnation != expected.incarnations[member]:
                    self._differ(
                        f"{replica.id} is at incarnation {replica.incarnation}; "
                        f"the reference at {expected.incarnations[member]}"
                    )
                if replica.state.is_over != (member in expected.over):
                    self._differ(f"{replica.id} is {replica.state}; the reference disagrees")

    def _compare_words(self, job: Job, verdict: spec.Verdict) -> None:
        """Compare the public message, where the specification contains it word for word."""
        message = job.outcome.error.message if job.outcome and job.outcome.error else ""
        name = _public_name(job.name.api, verdict.member) if verdict.member is not None else ""
        gives = self.reference.rows.gives.get(verdict.cause)
        if gives is not None and gives.text:
            wanted = gives.text
        elif verdict.cause in ("no room", "preempted", "outranked"):
            wanted = f"Resources are insufficient in region: {job.spec.region}."
        elif verdict.cause == "budget":
            wanted = "The job was stopped because "
        elif verdict.cause == "rejected":
            wanted = "The job cannot be started on this service: "
        elif verdict.cause == "service":
            wanted = "Internal error occurred for the current attempt"
        elif verdict.cause in ("exit", "crash"):
            wanted = f"The replica {name} exited with a non-zero status of "
        elif verdict.cause == "oom":
            wanted = f"The replica {name} ran out of memory and exited with a non-zero status of "
        else:
            return
        if not message.startswith(wanted):
            self._differ(f"the message is {message!r}, not {wanted!r}")

    def _differ(self, what: str) -> None:
        self.differences.append(what)

    def history_text(self) -> str:
        """Return the history and the differences."""
        lines = [str(line) for line in self.story[-_LINES:]]
        return "\n".join([*lines, *(f"!! {what}" for what in dict.fromkeys(self.differences))])


def _member(replica: ReplicaId) -> Member:
    return (replica.pool, replica.index)


def _public_name(api: Api, member: Member) -> str:
    """spec/failures#messages, "Replica names in messages"."""
    pool, index = member
    if api is Api.VERTEX:
        return f"workerpool{pool}-{index}"
    return f"{('master', 'worker', 'ps', 'evaluator')[pool]} {index}"


def _state_name(job: Job) -> str:
    replicas = " ".join(f"{r.id}.{r.incarnation}:{r.state}@{r.node or '-'}" for r in job.replicas)
    decided = f" outcome {job.outcome.state}" if job.outcome else ""
    again = f" retry {job.retry.rule}" if job.retry else ""
    return f"{job.state} attempt {job.attempt} {job.phase}{decided}{again} | {replicas}"
