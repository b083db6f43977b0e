"""One turn of the machine: the job as the event finds it and as it becomes, and what is told of it.

Every change of a state goes through a transition table here. The object lives as long as one `step`; what comes out
of it is frozen.
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


class Turn:
    """`now`: ns. `job` is always a valid record: between two calls nothing is half done."""

    __slots__ = ("_before", "_told", "job", "now", "policy")

    def __init__(self, job: Job, now: int, policy: FailurePolicy) -> None:
        self.job = job
        self.now = now
        self.policy = policy
        self._before = job
        self._told: list[TimelineEntry] = []

    def step(self) -> Step:
        """What the turn came to."""
        if self.job is not self._before:
            self.job = replace(self.job, updated=max(self.now, self.job.updated))
        return Step(self.job, tuple(self._told))

    def tell(self, *entries: TimelineEntry) -> None:
        self._told.extend(entries)

    def change(self, **changes: Any) -> None:
        """Set fields of the job that no table speaks of."""
        self.job = replace(self.job, **changes)

    def job_goes(self, trigger: JobTrigger) -> bool:
        """Fire the job's table; False if the trigger is ignored. Raises IllegalTransition."""
        state = tables.JOB.fire(self.job.state, trigger, self._story())
        if state is not None:
            self.change(state=state)
        return state is not None

    def attempt_goes(self, trigger: AttemptTrigger) -> bool:
        """Fire the attempt's table; False if the trigger is ignored. Raises IllegalTransition."""
        phase = tables.ATTEMPT.fire(self.job.phase, trigger, self._story())
        if phase is not None:
            self.change(phase=phase)
        return phase is not None

    def replica_goes(
        self, replica: ReplicaId, trigger: ReplicaTrigger, **changes: Any
    ) -> Replica | None:
        """Fire a replica's table, set its `changes`, and return it; None if the trigger is ignored.
        Raises IllegalTransition."""
        before = self.replica(replica)
        state = tables.REPLICA.fire(before.state, trigger, self._story())
        if state is None:
            return None
        return self.change_replica(replica, state=state, **changes)

    def change_replica(self, replica: ReplicaId, **changes: Any) -> Replica:
        """Set fields of a replica that no table speaks of."""
        changed = replace(self.replica(replica), **changes)
        self.change(replicas=tuple(changed if r.id == replica else r for r in self.job.replicas))
        return changed

    def replica(self, replica: ReplicaId) -> Replica:
        return next(r for r in self.job.replicas if r.id == replica)

    def _story(self) -> Iterable[str]:
        """What an illegal transition tells: how the job came into the turn, and the turn until then."""
        job = self._before
        yield f"job {job.uid} ({job.name}): {job.state}, attempt {job.attempt} {job.phase}"
        for replica in job.replicas:
            yield f"{replica.id}: {replica.state}, incarnation {replica.incarnation} on {replica.node or 'no node'}"
        for entry in self._told:
            yield f"{entry.kind}: {entry.message}"
