"""One transition of a job: the job as an event finds it and as it becomes, and the entries of its timeline.

Every change of a state goes through a transition table here. The object lives as long as one `step`; what
comes out of it is frozen.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from trainshed.core.failure.rules import Rule
from trainshed.core.failure.table import MAX_ATTEMPTS, RULES
from trainshed.core.lifecycle import tables
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job, Replica
from trainshed.core.lifecycle.states import AttemptTrigger, JobTrigger, ReplicaTrigger
from trainshed.core.names import ReplicaId


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """The failure table in force and how many attempts a job gets in all."""

    rules: tuple[Rule, ...] = RULES
    max_attempts: int = MAX_ATTEMPTS


@dataclass(frozen=True, slots=True)
class Step:
    """What an event led to. An event that changes nothing gives the same job and no entries."""

    job: Job
    timeline: tuple[TimelineEntry, ...] = ()


class Transition:
    """A job while one event is applied to it."""

    __slots__ = ("_before", "_entries", "job", "now", "policy")

    def __init__(self, job: Job, now: int, policy: FailurePolicy) -> None:
        #: Always a valid record: between two calls nothing is half done.
        self.job = job
        #: Nanoseconds since the epoch.
        self.now = now
        self.policy = policy
        self._before = job
        self._entries: list[TimelineEntry] = []

    def step(self) -> Step:
        """What the transition came to."""
        if self.job is not self._before:
            self.job = replace(self.job, updated=max(self.now, self.job.updated))
        return Step(self.job, tuple(self._entries))

    def record(self, *entries: TimelineEntry) -> None:
        """Add entries to the job's timeline."""
        self._entries.extend(entries)

    def change(self, **changes: Any) -> None:
        """Set fields of the job that no table speaks of."""
        self.job = replace(self.job, **changes)

    def fire_job(self, trigger: JobTrigger) -> bool:
        """Fire the job's table; False if the trigger is ignored. Raises IllegalTransition."""
        state = tables.JOB.fire(self.job.state, trigger, self._so_far())
        if state is not None:
            self.change(state=state)
        return state is not None

    def fire_attempt(self, trigger: AttemptTrigger) -> bool:
        """Fire the attempt's table; False if the trigger is ignored. Raises IllegalTransition."""
        phase = tables.ATTEMPT.fire(self.job.phase, trigger, self._so_far())
        if phase is not None:
            self.change(phase=phase)
        return phase is not None

    def fire_replica(
        self, replica: ReplicaId, trigger: ReplicaTrigger, **changes: Any
    ) -> Replica | None:
        """Fire a replica's table, set its `changes`, and return it; None if the trigger is ignored.
        Raises IllegalTransition."""
        before = self.replica(replica)
        state = tables.REPLICA.fire(before.state, trigger, self._so_far())
        if state is None:
            return None
        return self.change_replica(replica, state=state, **changes)

    def change_replica(self, replica: ReplicaId, **changes: Any) -> Replica:
        """Set fields of a replica that no table speaks of."""
        changed = replace(self.replica(replica), **changes)
        self.change(replicas=tuple(changed if r.id == replica else r for r in self.job.replicas))
        return changed

    def replica(self, replica: ReplicaId) -> Replica:
        """A replica of the current attempt, as it is by now."""
        return next(r for r in self.job.replicas if r.id == replica)

    def _so_far(self) -> Iterable[str]:
        """What an illegal transition reports: the job before it, and the entries until then."""
        job = self._before
        yield f"job {job.uid} ({job.name}): {job.state}, attempt {job.attempt} {job.phase}"
        for replica in job.replicas:
            yield (
                f"{replica.id}: {replica.state}, incarnation {replica.incarnation} on "
                f"{replica.node or 'no node'}"
            )
        for entry in self._entries:
            yield f"{entry.kind}: {entry.message}"
