"""The consequences of the end of a replica or an attempt: the verdict, and all changes that follow from it
(spec/failures#rules)."""

from typing import Any, assert_never

from msgspec.structs import replace

from trainshed.core.cluster import is_reducer
from trainshed.core.failure.advice import ON_TIME_LIMITS, advice_on_end
from trainshed.core.failure.evidence import Cause, Evidence
from trainshed.core.failure.rules import Action, Effect, Spent, Verdict, count, increment, judge, retry_budget
from trainshed.core.job import ExitRecord
from trainshed.core.lifecycle import timeline
from trainshed.core.lifecycle.records import Outcome, Replica, Retry, StopNotice
from trainshed.core.lifecycle.states import (
    AttemptState,
    AttemptTrigger,
    JobState,
    JobTrigger,
    ReplicaState,
    ReplicaTrigger,
)
from trainshed.core.lifecycle.transition import Transition
from trainshed.core.units import Nanos

_TIME_LIMIT_WARNING_COUNT = 2
"""After this number of ends at a cluster's time limit, the user receives a warning, because the program may
have made no progress."""
_NOTHING_RUNS = (AttemptState.WAITING, AttemptState.PREPARING)
_PREEMPTIONS = (Cause.PREEMPTED, Cause.CLUSTER_PREEMPTED, Cause.BUDGET)
"""Causes for which a job loses capacity that its programs still use."""


def evidence(
    transition: Transition,
    cause: Cause,
    replica: Replica | None = None,
    *,
    exit_record: ExitRecord | None = None,
    text: str | None = None,
) -> Evidence:
    """Return the evidence about an end for the failure table. `replica` is None for the end of the whole
    attempt."""
    spec = transition.job.spec
    pool = replica.id.pool if replica else 0
    known = Evidence(
        cause,
        transition.job.name,
        replica.id if replica else None,
        exit_record,
        is_package=spec.pool(pool).program.module is not None,
        is_reducer=is_reducer(spec, pool),
        text=text,
        region=spec.region,
        advice=ON_TIME_LIMITS if cause is Cause.ALLOCATION_EXPIRED else None,
    )
    if exit_record is None or known.advice:
        return known
    return replace(known, advice=advice_on_end(exit_record, known.status or 0, spec, pool))


def judge_end(
    transition: Transition, evidence: Evidence, replica: Replica | None = None, *, drill: int = 0
) -> None:
    """Find the verdict of the failure table for an end, record the verdict and carry it out.

    If the end of the attempt is already decided, a later event can change the outcome only if it reports the
    earlier end of a primary (spec/lifecycle#cancel).
    """
    spent = _spent_budget(transition, replica)
    verdict = judge(evidence, spent, transition.policy.rules)
    job = transition.job
    if job.outcome is not None or job.retry is not None:
        decided = job.outcome.at if job.outcome else job.retry.at if job.retry else 0
        may_turn = job.outcome is None or job.outcome.state is JobState.CANCELLED
        if job.retry is not None and retry_budget(verdict.rule, spent):
            # Do not replace the decision: the retry in progress also covers this replica's end.
            may_turn = False
        if may_turn and _ended_the_job_before(evidence, verdict, decided):
            _decide_by(transition, evidence, verdict)
        settle(transition)
        return
    transition.record(timeline.verdict(transition.job, evidence, verdict, transition.now, drill))
    if evidence.cause is Cause.ALLOCATION_EXPIRED and verdict.count == _TIME_LIMIT_WARNING_COUNT:
        _warn_of_time_limit(transition, evidence, verdict)
    match verdict.effect:
        case Effect.REPLICA_DONE:
            mark_running_if_all_up(transition)
        case Effect.REPLICA_RESTARTS:
            assert replica is not None
            _restart(transition, replica, verdict)
        case Effect.JOB_RETRIES:
            _retry(transition, evidence, verdict)
        case Effect.JOB_SUCCEEDS | Effect.JOB_FAILS | Effect.JOB_CANCELLED:
            _decide_by(transition, evidence, verdict)
        case _:
            assert_never(verdict.effect)
    settle(transition)


def _warn_of_time_limit(transition: Transition, evidence: Evidence, verdict: Verdict) -> None:
    """Record a warning that a program may never finish within the cluster's time limit. The caller calls this
    when a replica has ended `_TIME_LIMIT_WARNING_COUNT` times at the limit. Only one replica of a gang causes
    the warning, because all of them end at the same time."""
    name, replicas = verdict.rule.name, transition.job.replicas
    if all(count(replica.restarts, name) < _TIME_LIMIT_WARNING_COUNT for replica in replicas):
        ran = max((transition.now - r.started for r in replicas if r.id == evidence.replica), default=0)
        transition.record(timeline.time_limit(evidence, verdict, ran, transition.now))


def start_elsewhere(transition: Transition, replica: Replica) -> bool:
    """Start the next run (incarnation) of a replica that had to leave its node before it started. This is not
    counted as a restart. Return False if the attempt is about to end."""
    if transition.job.phase not in (AttemptState.STARTING, AttemptState.RUNNING):
        return False
    _start_again(transition, replica)
    return True


def mark_running_if_all_up(transition: Transition) -> None:
    """Set the attempt and the job to RUNNING once every replica runs or has ended (spec/lifecycle#start)."""
    job = transition.job
    if job.phase is not AttemptState.STARTING:
        return
    # Finished replicas also count, because the job continues without them.
    if not all(r.state is ReplicaState.RUNNING or r.state.is_over for r in job.replicas):
        return
    transition.fire_attempt(AttemptTrigger.ALL_UP)
    if transition.fire_job(JobTrigger.ALL_UP):
        started = max(r.started for r in job.replicas)
        transition.change(started=job.started or started)
        transition.record(timeline.running(transition.job, started))


def decide(transition: Transition, outcome: Outcome) -> None:
    """Set the outcome of the job, and stop the processes of its attempt."""
    transition.change(outcome=outcome, retry=None)
    end_attempt(transition)


def end_attempt(transition: Transition) -> None:
    """Request the stop of the attempt. A replica without a process becomes LOST at once, because no engine
    reports the end of such a replica."""
    nothing_runs = transition.job.phase in _NOTHING_RUNS
    if not transition.fire_attempt(AttemptTrigger.END_DECIDED):
        return
    for replica in transition.job.replicas:
        # A replica without a node has no process, so no engine reports its end.
        if not replica.state.is_over and (nothing_runs or not replica.node):
            transition.fire_replica(replica.id, ReplicaTrigger.LOST)


def settle(transition: Transition) -> None:
    """Finish the job, or start its next attempt, once all replicas of this attempt have ended
    (spec/lifecycle#end, spec/invariants#last-lines-first)."""
    job = transition.job
    if job.phase is not AttemptState.STOPPING or not all(r.state.is_over for r in job.replicas):
        return
    end = _last_end(transition)
    if job.outcome is not None:
        transition.fire_attempt(AttemptTrigger.ENDED)
        transition.fire_job(JobTrigger[job.outcome.state.name])
        transition.change(error=job.outcome.error, ended=end)
        transition.record(timeline.end(job.outcome, transition.now))
    elif job.retry is not None:
        transition.change(freed=end, began_before=job.began, began=0)
        _next_attempt(transition, job.retry)


def _last_end(transition: Transition) -> Nanos:
    """Return the time at which the last replica of the attempt ended, according to the attempt records. The
    current time is not exact, because a restarted service receives events about earlier ends late. It is used
    only if a replica has no attempt record, or if no attempt has nodes now. The result is never before the
    start of the job."""
    job, replicas = transition.job, transition.job.replicas if transition.job.placed else ()
    ends = [replica.exit.ended if replica.exit else transition.now for replica in replicas]
    return max(min(max(ends, default=transition.now), transition.now), job.started, job.created)


def _spent_budget(transition: Transition, replica: Replica | None) -> Spent:
    job = transition.job
    scheduling = job.spec.scheduling
    waits = {rule.name for rule in transition.policy.rules if rule.action is Action.WAIT}
    return Spent(
        now=transition.now,
        restarts=replica.restarts if replica else (),
        recent=replica.recent if replica else (),
        retries=job.retries,
        attempt=job.attempt - sum(many for name, many in job.retries if name in waits),
        max_attempts=transition.policy.max_attempts,
        may_retry=not scheduling.disable_retries,
        # disableRetries overrides restartJobOnWorkerRestart (facts/lifecycle#scheduling)
        whole_job=scheduling.restart_job_on_worker_restart and not scheduling.disable_retries,
        nothing_ran=job.phase in _NOTHING_RUNS,
        uptime=max(0, transition.now - replica.started) if replica and replica.started else 0,
    )


def _ended_the_job_before(evidence: Evidence, verdict: Verdict, decided: int) -> bool:
    """Return whether the primary ended, with a verdict that ends the job, before a cancel or a retry was
    decided. The primary's outcome then counts, although its end is reported later
    (spec/lifecycle#cancel)."""
    return (
        evidence.replica is not None
        and evidence.replica.is_primary
        and evidence.exit is not None
        and not evidence.exit.stopped
        and evidence.exit.ended <= decided
        and verdict.effect in (Effect.JOB_SUCCEEDS, Effect.JOB_FAILS)
    )


def _decide_by(transition: Transition, evidence: Evidence, verdict: Verdict) -> None:
    if verdict.effect is Effect.JOB_SUCCEEDS:
        at = evidence.exit.ended if evidence.exit else transition.now
        transition.change(started=transition.job.started or at)
        decide(transition, Outcome(JobState.SUCCEEDED, verdict.rule.name, at=transition.now))
    else:
        state = JobState.FAILED if verdict.effect is Effect.JOB_FAILS else JobState.CANCELLED
        outcome = Outcome(state, verdict.rule.name, verdict.error, transition.now, _stop_notice(evidence))
        decide(transition, outcome)


def _stop_notice(evidence: Evidence) -> StopNotice | None:
    return StopNotice.PREEMPTED if evidence.cause in _PREEMPTIONS else None


def _restart(transition: Transition, replica: Replica, verdict: Verdict) -> None:
    """Start the replica's next run (incarnation), at once or after a pause. The next run uses the same node
    unless the replica has to leave the node."""
    window = verdict.rule.window
    recent = (
        (*(at for at in replica.recent if at > transition.now - window), transition.now) if window else ()
    )
    _start_again(
        transition,
        replica,
        restarts=increment(replica.restarts, verdict.rule.name),
        recent=recent,
        not_before=transition.now + verdict.back_off if verdict.back_off else 0,
    )


def _start_again(transition: Transition, replica: Replica, **changes: Any) -> None:
    """Start the next run (incarnation) of a replica that has ended."""
    leaves = bool(replica.leaving)
    transition.fire_replica(
        replica.id,
        ReplicaTrigger.RESTARTED,
        incarnation=replica.incarnation + 1,
        node=None if leaves else replica.node,
        avoid=replica.node if leaves else replica.avoid,
        leaving=None,
        started=0,
        exit=None,
        notes=0,
        began=None,
        **changes,
    )


def _retry(transition: Transition, evidence: Evidence, verdict: Verdict) -> None:
    """End this attempt and prepare the next one, which starts once all replicas of this attempt have
    ended."""
    rule = verdict.rule
    growth = min(transition.job.memory_factor * rule.memory_growth, max(rule.memory_cap, 1.0))
    if transition.job.spec.persistent_resource is not None:
        growth = 1.0  # A persistent resource reserves its machines with a fixed memory size.
    # With more memory, the replicas may not fit on their nodes, so the scheduler must place them again.
    grows = growth > transition.job.memory_factor
    keeps_room = not rule.gives_room and not verdict.back_off and not grows
    transition.change(
        retry=Retry(
            rule.name, transition.now, keeps_room, transition.now + verdict.back_off, _stop_notice(evidence)
        ),
        retries=increment(transition.job.retries, rule.name),
        memory_factor=max(transition.job.memory_factor, growth),
    )
    transition.fire_job(JobTrigger.RETRIED)
    end_attempt(transition)


def _next_attempt(transition: Transition, retry: Retry) -> None:
    job = transition.job
    if not retry.keeps_room or not job.replicas:
        transition.fire_attempt(AttemptTrigger.RETRY_LATER)
        # Add this wait for capacity to `waited`, because it does not count as running time.
        waited = max(0, transition.now - job.not_before) if job.started and job.not_before else 0
        transition.change(retry=None, not_before=retry.not_before, waited=Nanos(job.waited + waited))
        transition.record(timeline.waits_again(transition.job, transition.now))
        return
    fresh = tuple(
        Replica(r.id, node=None if r.leaving else r.node, avoid=r.node if r.leaving else r.avoid)
        for r in job.replicas
    )
    transition.fire_attempt(AttemptTrigger.RETRY_IN_PLACE)
    transition.change(
        retry=None, attempt=job.attempt + 1, placed=transition.now, replicas=fresh, short_disks=()
    )
    transition.record(timeline.next_attempt(transition.job, transition.now))
