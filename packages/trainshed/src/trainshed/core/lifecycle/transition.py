"""One step of a job: the changes of an event, the entries of its timeline, and the instructions that follow
from the new state (docs/adr/0003).

Every change of a state uses a transition table. A cell of `tables.toml` contains, for each (state, trigger),
the next state, or why the trigger has no effect, or why it is impossible. A table is total: building a table
with a missing cell raises ValueError. The diagrams in docs/lifecycle.md are generated from the tables, and
tests/unit/test_lifecycle_tables.py tests every cell. A `Transition` exists only for one step. Its result is
frozen.
"""

import enum
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.failure.evidence import Cause
from trainshed.core.failure.messages import CANCELLED
from trainshed.core.failure.rules import Rule
from trainshed.core.failure.table import MAX_ATTEMPTS, RULES
from trainshed.core.job import JobError
from trainshed.core.lifecycle import timeline
from trainshed.core.lifecycle.events import (
    CancelRequested,
    InjectFault,
    Instruction,
    PrepareRuntime,
    ReleaseSlots,
    StartReplicas,
    StopReplica,
    StopReplicas,
    TimelineEntry,
)
from trainshed.core.lifecycle.records import Job, Outcome, Replica, WorkRecord
from trainshed.core.lifecycle.states import (
    AttemptState,
    AttemptTrigger,
    JobState,
    JobTrigger,
    ReplicaState,
    ReplicaTrigger,
)
from trainshed.core.names import ReplicaId
from trainshed.core.units import Nanos

State = TypeVar("State", bound=enum.StrEnum)
Trigger = TypeVar("Trigger", bound=enum.StrEnum)


class IllegalTransition(Exception):
    """A trigger arrived in a state in which it is impossible. This is a bug of the service. The message
    contains the preceding events."""


class Next(Struct, Generic[State], frozen=True):
    """The trigger changes the state to `state`, which may be the same state."""

    state: State


class Ignore(Struct, frozen=True):
    """The trigger has no effect, for the reason `why`."""

    why: str


class Illegal(Struct, frozen=True):
    """The trigger is impossible in this state, for the reason `why`."""

    why: str


class Table(Generic[State, Trigger]):
    """All cells of one state machine.

    `rows`: for each state, the cells by trigger, as in `tables.toml`.
    """

    def __init__(
        self, name: str, states: type[State], triggers: type[Trigger], rows: Mapping[str, Mapping[str, str]]
    ) -> None:
        self.name = name
        self.states = tuple(states)
        self.triggers = tuple(triggers)
        by_state = {state: row for names, row in rows.items() for state in names.split(", ")}
        self.cells: dict[tuple[State, Trigger], Next[State] | Ignore | Illegal] = {}
        for state in states:
            row = by_state.get(state.name, {})
            for trigger in triggers:
                text = row.get("*") or row.get(trigger.name)
                if text is None:
                    raise ValueError(
                        f"{name}: the table has no cell for the trigger {trigger!r} in the state {state}"
                    )
                self.cells[state, trigger] = _cell(states, text)

    def fire(self, state: State, trigger: Trigger, timeline: Iterable[str] = ()) -> State | None:
        """Return the next state, or None if the trigger is ignored. Raise IllegalTransition if the trigger is
        impossible here. Its message contains the lines of `timeline`."""
        cell = self.cells[state, trigger]
        if isinstance(cell, Illegal):
            story = "".join(f"\n  {line}" for line in timeline)
            raise IllegalTransition(
                f"{self.name} in state {state}: {trigger!r} can never happen here: {cell.why}. "
                f"Events so far:{story or ' none'}"
            )
        return cell.state if isinstance(cell, Next) else None


def _cell(states: type[State], text: str) -> Next[State] | Ignore | Illegal:
    word, _, why = text.partition(": ")
    match word:
        case "ignored":
            return Ignore(why)
        case "never":
            return Illegal(why)
        case _:
            return Next(states[word])


ROWS: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = tomllib.loads(
    Path(__file__).with_name("tables.toml").read_text("utf-8")
)
"""The rows of `tables.toml`, by table and state."""

JOB: Final = Table("job", JobState, JobTrigger, ROWS["job"])
ATTEMPT: Final = Table("attempt", AttemptState, AttemptTrigger, ROWS["attempt"])
REPLICA: Final = Table("replica", ReplicaState, ReplicaTrigger, ROWS["replica"])


class FailurePolicy(Struct, frozen=True):
    """The effective failure table, and the maximum number of attempts of a job."""

    rules: tuple[Rule, ...] = RULES
    max_attempts: int = MAX_ATTEMPTS


W = TypeVar("W", bound=WorkRecord)


class Step(Struct, Generic[W], frozen=True):
    """The result of an event. An event without effect returns the same job and no entries."""

    job: W
    timeline: tuple[TimelineEntry, ...] = ()


class WorkTransition(Generic[W]):
    """Collects the changes of a record for one commit."""

    __slots__ = ("_before", "_entries", "job", "now")

    def __init__(self, job: W, now: Nanos) -> None:
        #: Always a valid record, because every method completes its change.
        self.job = job
        #: The time of the step, in nanoseconds since the epoch.
        self.now = now
        self._before = job
        self._entries: list[TimelineEntry] = []

    def record(self, *entries: TimelineEntry) -> None:
        """Add entries to the timeline."""
        self._entries.extend(entries)

    def change(self, **changes: Any) -> None:
        """Set fields of the record that are not subject to a transition table."""
        self.job = replace(self.job, **changes)

    def fire_job(self, trigger: JobTrigger) -> bool:
        """Apply a trigger to the state of the job. Return False if the trigger is ignored. Raise
        IllegalTransition if the trigger is impossible in this state."""
        state = JOB.fire(self.job.state, trigger, self._history_lines())
        if state is not None and state is not self.job.state:
            self.change(state=state)
        return state is not None

    def cancel(self, event: CancelRequested, message: str) -> None:
        """Accept a cancel: set the outcome CANCELLED with the public reason `message`."""
        self.fire_job(JobTrigger.CANCEL_ACCEPTED)
        self.record(timeline.cancel_requested(event, message))
        error = JobError(CANCELLED, message, cause=Cause.CANCELLED.value)
        rule = f"cancelled_{event.cause}"
        self.change(outcome=Outcome(JobState.CANCELLED, rule, error, event.at))

    def step(self) -> Step[W]:
        """Return the result of the transition."""
        if self.job is not self._before:
            self.change(updated=max(self.now, self.job.updated))
        return Step(self.job, tuple(self._entries))

    def _history_lines(self) -> Iterator[str]:
        """Yield lines for the error about an illegal transition: the original record and the new timeline
        entries."""
        before = self._before
        yield f"{type(before).__name__} {before.uid} ({before.name}): {before.state}"
        for entry in self._entries:
            yield f"{entry.kind}: {entry.message}"


class Transition(WorkTransition[Job]):
    """Collects the changes of a job while one event is applied."""

    __slots__ = ("policy",)

    def __init__(self, job: Job, now: Nanos, policy: FailurePolicy) -> None:
        super().__init__(job, now)
        self.policy = policy

    def step(self) -> Step[Job]:
        if self.job.placed and not self.job.is_placed:
            self.change(placed=0)
        return super().step()

    def fire_attempt(self, trigger: AttemptTrigger) -> bool:
        """Apply a trigger to the state of the attempt. Return False if the trigger is ignored. Raise
        IllegalTransition if the trigger is impossible in this state."""
        phase = ATTEMPT.fire(self.job.phase, trigger, self._history_lines())
        if phase is not None:
            self.change(phase=phase)
        return phase is not None

    def fire_replica(self, replica: ReplicaId, trigger: ReplicaTrigger, **changes: Any) -> Replica | None:
        """Apply a trigger to the state of a replica, set its `changes`, and return the replica. Return None
        if the trigger is ignored. Raise IllegalTransition if the trigger is impossible in this state."""
        before = self.replica(replica)
        state = REPLICA.fire(before.state, trigger, self._history_lines())
        if state is None:
            return None
        return self.change_replica(replica, state=state, **changes)

    def change_replica(self, replica: ReplicaId, **changes: Any) -> Replica:
        """Set fields of a replica that are not subject to a transition table, and return the replica."""
        changed = replace(self.replica(replica), **changes)
        if changed.started:
            self.change(began=min(self.job.began or changed.started, changed.started))
        self.change(replicas=tuple(changed if r.id == replica else r for r in self.job.replicas))
        return changed

    def replica(self, replica: ReplicaId) -> Replica:
        """Return the current state of a replica of the current attempt."""
        return next(r for r in self.job.replicas if r.id == replica)

    def _history_lines(self) -> Iterator[str]:
        job = self._before
        yield f"attempt {job.attempt} {job.phase}"
        for replica in job.replicas:
            yield (
                f"{replica.id}: {replica.state}, incarnation {replica.incarnation} on "
                f"{replica.node or 'no node'}"
            )
        yield from super()._history_lines()


def instructions(job: Job) -> tuple[Instruction, ...]:
    """Return the instructions that follow from a stored job, in order. Each instruction may be carried out
    repeatedly."""
    # Replicas that have a node but no known process.
    waiting = [r for r in job.replicas if r.state is ReplicaState.WAITING and r.node]
    match job.phase:
        case AttemptState.WAITING | AttemptState.OVER:
            return (ReleaseSlots(job.attempt),) if job.attempt else ()
        case AttemptState.PREPARING:
            return (PrepareRuntime(job.attempt),)
        case AttemptState.STARTING | AttemptState.RUNNING:
            return tuple(_while_running(job, [r for r in waiting if not r.not_before]))
        case AttemptState.STOPPING:
            # Include replicas that were requested to leave their node before they started, so that these runs
            # (incarnations) never start.
            waiting += [r for r in job.replicas if r.state is ReplicaState.STOPPING and not r.started]
            return (StopReplicas(job.attempt, _incarnations(waiting)),)


def _while_running(job: Job, due: Sequence[Replica]) -> Iterator[Instruction]:
    for replica in job.replicas:
        if replica.state is ReplicaState.STOPPING:
            yield StopReplica(job.attempt, replica.id, replica.incarnation)
    if due:
        yield StartReplicas(job.attempt, _incarnations(due))
    for drill in job.drills:
        if drill.kind.is_of_process and drill.fired and not drill.done:
            yield InjectFault(
                number=drill.number,
                kind=drill.kind,
                attempt=drill.attempt,
                replica=drill.replica,
                incarnation=drill.incarnation,
            )


def _incarnations(replicas: Sequence[Replica]) -> tuple[tuple[ReplicaId, int], ...]:
    return tuple((replica.id, replica.incarnation) for replica in replicas)
