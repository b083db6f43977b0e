"""Computes the next stored state of a job from its events, with new entries of its timeline. Writes
nothing."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from trainshed.controller.carrier import is_ready, preparation_message
from trainshed.controller.decisions import Decisions
from trainshed.controller.jobs_of_jobs import JobsOfJobs
from trainshed.core.failure.rules import Counters
from trainshed.core.lifecycle import timeline
from trainshed.core.lifecycle.events import Event, NodeLeft, RuntimePrepared, TimelineEntry
from trainshed.core.lifecycle.machine import give_up, step
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.replica_events import ReplicaLost
from trainshed.core.lifecycle.states import AttemptState, ReplicaState
from trainshed.core.lifecycle.transition import FailurePolicy
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.units import Nanos
from trainshed.runtimes.port import Runtimes
from trainshed.store.port import LiveJob, NewWork
from trainshed.telemetry.lines import about
from trainshed.telemetry.meters import Labels, Meters

log = logging.getLogger(__name__)

_MAX_EXPLAINED_QUEUE = 100
"""Maximum length of the queue up to which waiting jobs receive the reason on their timelines."""


class JobSteps:
    """Computes the steps of jobs."""

    def __init__(
        self,
        now: Callable[[], int],
        failures: FailurePolicy,
        *,
        decisions: Decisions,
        jobs_of_jobs: JobsOfJobs,
        runtimes: Runtimes,
        report: Callable[[JobUid, Event], None],
    ) -> None:
        """`report`: receives an event of another job."""
        self._now = now
        self._failures = failures
        self._decisions = decisions
        self._capacity = decisions.capacity
        self._jobs_of_jobs = jobs_of_jobs
        self._runtimes = runtimes
        self._report = report

    def admit(self, made: NewWork, decided: Sequence[Event]) -> NewWork | None:
        """Return a new job after the decision that admits it. Return None if it cannot be stored as admitted,
        for example because it has to wait."""
        job, entries = made.job, list(made.timeline)
        assert isinstance(job, Job)
        before = job
        for event in decided:
            job = self._fold(job, event, entries)
        if job.phase is AttemptState.PREPARING:
            job = self._prepare(before, job, entries)
        if job.phase in (AttemptState.PREPARING, AttemptState.STARTING):
            return NewWork(job, tuple(entries))
        return None

    def advance(self, live: LiveJob[Job], events: Sequence[Event]) -> tuple[Job, tuple[TimelineEntry, ...]]:
        """Return the job after its intents and these events, and the new entries of its timeline."""
        job, entries = live.job, list[TimelineEntry]()
        # Remove lost replicas from unfit nodes before their losses are processed. Otherwise they would be
        # restarted on these nodes, only to be requested to leave them.
        lost = frozenset(event.replica for event in events if isinstance(event, ReplicaLost))
        if lost:
            job = self._leave(job, lost, entries)
        current = (event for event in events if self._capacity.is_valid(job.uid, event))
        cancels = self._jobs_of_jobs.cancels(job, self._now())
        for event in (*(i.event for i in live.intents if i.event), *current, *cancels):
            job = self._fold(job, event, entries)
        job = self._leave(job, frozenset(), entries)
        job = self._schedule(job, entries)
        if job.phase is AttemptState.PREPARING:
            job = self._prepare(live.job, job, entries)
        is_new = live.generation == 1 and not entries
        is_new = (is_new or live.job.is_held) and job.attempt == 0 and job.outcome is None
        # Not in a long queue, where each job would need a commit for little information. Responses about a
        # job always contain the reason.
        waiting = (
            self._capacity.explain_wait(job.uid, self._now()) if is_new and not self.is_queue_long else None
        )
        if waiting is not None:
            entries.append(timeline.waiting_for(waiting, self._now()))
        return job, tuple(entries)

    def _leave(self, job: Job, lost: Collection[ReplicaId], entries: list[TimelineEntry]) -> Job:
        """Request the job's replicas to leave unfit nodes. `lost`: replicas whose loss the job has not
        processed yet."""
        for node in sorted({r.node for r in job.replicas if r.node and not r.leaving}):
            if job.is_placed and (news := self._capacity.unfit_reason(node)) is not None:
                staying = tuple(
                    r.id for r in job.replicas if r.state is ReplicaState.RUNNING and r.id not in lost
                )
                left = NodeLeft(node, news.cause, staying if news.running_stays or lost else ())
                job = self._fold(job, left, entries)
        return job

    def _fold(self, job: Job, event: Event, entries: list[TimelineEntry]) -> Job:
        try:
            outcome = step(job, event, self._now(), self._failures)
        except Exception as failure:
            # All exceptions are caught. An event that raises an error would raise it again each time, and the
            # job would never end.
            about(log, job.uid, attempt=job.attempt).exception(
                "%r could not be applied; ending the job", event
            )
            outcome = give_up(job, event, str(failure) or repr(failure), self._now())
        entries.extend(outcome.timeline)
        return outcome.job

    def _schedule(self, job: Job, entries: list[TimelineEntry]) -> Job:
        """Pass the job to the scheduler, and apply the decisions about the job in the same commit. A job that
        releases capacity is passed only after it is stored. Otherwise another job could receive the capacity
        too early."""
        if job.state.is_final or self._capacity.releases_capacity(job):
            return job
        self._capacity.put(job)
        for uid, event in self._decisions.new_decisions(job):
            if uid == job.uid:
                job = self._fold(job, event, entries)
            else:
                self._report(uid, event)
        return job

    def _prepare(self, before: Job, job: Job, entries: list[TimelineEntry]) -> Job:
        """If the job's runtime is ready, start the job in the same commit. Otherwise, add a timeline entry
        about the preparation of a new attempt."""
        if is_ready(self._runtimes, job):
            return self._fold(job, RuntimePrepared(job.attempt), entries)
        if job.attempt != before.attempt:
            entries.append(TimelineEntry(self._now(), "preparing", preparation_message(job)))
        return job

    @property
    def is_queue_long(self) -> bool:
        """Return whether too many jobs wait to record the reason on each timeline."""
        return self._capacity.queue_length > _MAX_EXPLAINED_QUEUE


def count_step(meters: Meters, before: Job, after: Job, now: Nanos) -> None:
    """Update the meters for a stored step. `now`: ns since the epoch."""
    api = after.name.api.value
    if before.phase is AttemptState.WAITING and after.is_placed:
        meters.waits.observe((now - max(after.eligible, before.not_before)) / 1e9, api)
    if not before.started and after.started:
        meters.starts.observe((after.started - after.eligible) / 1e9, api)
    if after.state.is_final and not before.state.is_final:
        rule = after.outcome.rule if after.outcome else ""
        meters.ends[api, after.state.value, rule] += 1
    _add(meters.retries, before.retries, after.retries)
    then = {replica.id: replica for replica in before.replicas}
    for replica in after.replicas:
        was = then.get(replica.id)
        if was is replica:
            continue
        if was is not None and before.attempt == after.attempt:
            _add(meters.restarts, was.restarts, replica.restarts)
        if replica.exit and not (was and was.state is ReplicaState.EXITED):
            meters.lines += replica.exit.log_lines


def _add(counter: "Counter[Labels]", before: Counters, after: Counters) -> None:
    then = dict(before)
    for rule, count in after:
        if (more := count - then.get(rule, 0)) > 0:
            counter[(rule,)] += more
