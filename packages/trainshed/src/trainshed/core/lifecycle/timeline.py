"""The texts of a job's timeline: the entries of each step, and the reasons for cancellations. This module
makes no decisions."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from trainshed.core.capacity import Delay, Waiting
from trainshed.core.dependencies import Dependency
from trainshed.core.failure.evidence import Evidence
from trainshed.core.failure.rules import Effect, Verdict
from trainshed.core.job import ExitRecord, Scheduling
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, TimelineEntry
from trainshed.core.lifecycle.records import OUTLIVES_LABEL, Drill, Job, Outcome, Replica
from trainshed.core.lifecycle.replica_events import ReplicaLost
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import public_replica_name
from trainshed.core.units import Nanos

_MAX_NAMED_REPLICAS = 5
"""Maximum number of replica names in a message."""
_BECAUSE: Final = {
    JobState.SUCCEEDED: ": the job is done",
    JobState.CANCELLED: ": the job was cancelled",
    JobState.FAILED: ": the job has failed",
}
"""Why the service stopped a replica, by the outcome of its job."""
_EXIT_DETAILS: Final = (*("exit_code", "signal", "oom", "stopped", "stalled", "out_of_disk", "log_lines"),)
"""The fields of an attempt record that a timeline entry includes in its details."""


def _of_replica(
    at: Nanos, kind: str, job: Job, replica: Replica, text: str, **details: object
) -> TimelineEntry:
    """Return a timeline entry about a replica. `text` continues the sentence after the replica's name."""
    which = {"attempt": job.attempt, "replica": str(replica.id), "incarnation": replica.incarnation}
    message = f"{public_replica_name(job.name.api, replica.id)} {text}"
    return TimelineEntry(at, kind, message, which | details)


def admission(job: Job, now: Nanos) -> TimelineEntry:
    noun = "replica" if len(job.replicas) == 1 else "replicas"
    text = f"Attempt {job.attempt}: {len(job.replicas)} {noun} placed."
    nodes = {str(replica.id): replica.node for replica in job.replicas}
    return TimelineEntry(now, "admitted", text, {"attempt": job.attempt, "nodes": nodes})


def next_attempt(job: Job, now: Nanos) -> TimelineEntry:
    unplaced = sum(not replica.node for replica in job.replicas)
    missing = f"; {unplaced} of {len(job.replicas)} replicas wait for another node" * bool(unplaced)
    text = f"Attempt {job.attempt} starts in the same places{missing}."
    return TimelineEntry(now, "attempt", text, {"attempt": job.attempt})


def waiting_for(waiting: Waiting, now: Nanos) -> TimelineEntry:
    """Return the entry with the reason why a new job waits."""
    message = "; ".join(filter(None, (waiting.message, waiting.hint)))
    details = {"reason": waiting.reason.value, "blockers": list(waiting.blockers)}
    return TimelineEntry(now, "waiting", message, details)


def dependency_met(text: str, dependency: Dependency, now: Nanos) -> TimelineEntry:
    return TimelineEntry(now, "waiting", text, {"blockers": [str(dependency.name)]})


def waits_again(job: Job, now: Nanos) -> TimelineEntry:
    # Rounded up to tenths of a second, because the pause began a moment before `now`.
    pause = -(-max(0, job.not_before - now) // 10**8) * 10**8
    when = f" in {_duration(pause)}" if pause else ""
    details = {"not_before": job.not_before}
    return TimelineEntry(now, "waiting", f"The job requests capacity again{when}.", details)


def start_delayed(job: Job, delay: Delay, now: Nanos) -> TimelineEntry:
    more = {"word": delay.word, "position": delay.position, "expected": delay.expected}
    details = {"attempt": job.attempt, "cause": delay.cause.value}
    details |= {name: fact for name, fact in more.items() if fact}
    place = f"; number {delay.position} in its queue" if delay.position else ""
    start = f"; {expected_start(delay.expected)}" if delay.expected else ""
    return TimelineEntry(now, "delayed", f"{delay.message}{place}{start}.", details)


def nodes_given(job: Job, replicas: Sequence[Replica], now: Nanos) -> TimelineEntry:
    where = ", ".join(
        f"{public_replica_name(job.name.api, replica.id)} on {replica.node}"
        for replica in replicas[:_MAX_NAMED_REPLICAS]
    )
    more = f" and {len(replicas) - _MAX_NAMED_REPLICAS} more" if len(replicas) > _MAX_NAMED_REPLICAS else ""
    nodes = {str(replica.id): replica.node for replica in replicas}
    text = f"The cluster has placed {where}{more}."
    return TimelineEntry(now, "nodes_given", text, {"attempt": job.attempt, "nodes": nodes})


def expected_start(expected: int) -> str:
    """Return the expected start time of a cluster as text (`expected`: ns since the epoch). The time is
    rounded to the minute because it is an estimate."""
    moment = datetime.fromtimestamp(expected / 10**9, UTC)
    return f"start expected at {moment:%Y-%m-%d %H:%M} UTC"


def launching(took: Nanos, now: Nanos) -> TimelineEntry:
    after = f" after {_format_time(took)}" if took else ""
    text = f"The runtime is ready{after}; starting all replicas."
    return TimelineEntry(now, "launching", text, {"took": took} if took else {})


def placement(job: Job, replica: Replica, now: Nanos) -> TimelineEntry:
    text = f"continues on {replica.node}, with an empty working directory."
    return _of_replica(now, "replica_placed", job, replica, text, node=replica.node)


def asked_to_leave(job: Job, replica: Replica, reason: str, now: Nanos) -> TimelineEntry:
    text = f"must leave {replica.node or 'its place'}: {reason}."
    kind = "replica_asked_to_leave"
    return _of_replica(now, kind, job, replica, text, node=replica.node, reason=reason)


def start(job: Job, replica: Replica) -> TimelineEntry:
    place = f" on {replica.node}" if replica.node else ""
    number = replica.incarnation
    again = f" again, for the {_ordinal(number)} time" if number > 1 else ""
    text = f"started{place}{again}."
    return _of_replica(replica.started, "replica_started", job, replica, text, node=replica.node)


def running(job: Job, at: Nanos) -> TimelineEntry:
    return TimelineEntry(at, "running", "All replicas are running.", {"attempt": job.attempt})


def exit_entries(job: Job, replica: Replica, exit_record: ExitRecord) -> Iterator[TimelineEntry]:
    """Yield the timeline entries for a replica's exit. If child processes were killed at the memory limit,
    the first entry contains their number. Only the end of the main process affects the job
    (spec/failures#out-of-memory)."""
    ended = exit_record.ended
    if many := exit_record.child_oom:
        text = f"lost {many} child process{'es' * (many > 1)} to the memory limit."
        yield _of_replica(ended, "child_out_of_memory", job, replica, text, count=many)
    details = {name: getattr(exit_record, name) for name in _EXIT_DETAILS}
    # Why the service stopped the replica, if the outcome of its job is already known.
    why = _BECAUSE.get(job.outcome.state, "") if exit_record.stopped and job.outcome else ""
    yield _of_replica(ended, "replica_exited", job, replica, f"{_describe_end(exit_record)}{why}.", **details)


def loss(job: Job, replica: Replica, event: ReplicaLost, now: Nanos) -> TimelineEntry:
    if not event.by_service:
        return _of_replica(now, "replica_lost", job, replica, f"was lost: {event.cause}.")
    text = f"failed because of the service: {event.cause}."
    return _of_replica(now, "service_failed", job, replica, text)


def verdict(job: Job, evidence: Evidence, verdict: Verdict, now: Nanos, drill: int) -> TimelineEntry:
    """Return the timeline entry for a verdict. It contains the decision, the matching row of the failure
    table, and the evidence (spec/failures#rules)."""
    details: dict[str, object] = {
        "rule": verdict.rule.name,
        "effect": verdict.effect.value,
        "cause": evidence.cause.value,
        "attempt": job.attempt,
    }
    if evidence.replica is not None:
        details["replica"] = str(evidence.replica)
    if evidence.exit is not None:
        details |= {"exit_code": evidence.exit_code, "signal": evidence.signal, "status": evidence.status}
    if evidence.text:
        details["reason"] = evidence.text
    if verdict.budget:
        details |= {"count": verdict.count, "budget": verdict.budget}
    if drill:
        details["drill"] = drill
    subject = evidence.public_name if evidence.replica else "the attempt"
    reason = f" ({evidence.text})" if evidence.text else ""
    spent = f" {verdict.exhausted_limits};" if verdict.exhausted_limits else ""
    consequence = _describe_verdict(evidence, verdict)
    message = f"Rule {verdict.rule.name} for {subject}{reason}:{spent} {consequence}."
    return TimelineEntry(now, "verdict", message, details)


def time_limit(evidence: Evidence, verdict: Verdict, ran: Nanos, now: Nanos) -> TimelineEntry:
    """Return the warning about a replica that repeatedly ends at a time limit of the cluster. `ran`: how long
    the replica's last run (incarnation) took."""
    text = (
        f"A time limit of the cluster has stopped {evidence.public_name} "
        f"{verdict.count} times, most recently after {_format_time(ran)}. {evidence.advice}"
    )
    return TimelineEntry(now, "warning", text, {"rule": verdict.rule.name, "count": verdict.count})


def drill_ordered(job: Job, drill: Drill) -> TimelineEntry:
    name = public_replica_name(job.name.api, drill.replica)
    when = f"at a line that matches {drill.at_line!r}" if drill.at_line else "as soon as it runs"
    text = f"Drill {drill.number}: {drill.kind} for {name}, {when}."
    return TimelineEntry(drill.ordered, "drill_ordered", text, _which_drill(drill))


def drill_fired(job: Job, drill: Drill) -> TimelineEntry:
    name = public_replica_name(job.name.api, drill.replica)
    text = f"Drill {drill.number}: {drill.kind} is applied to {name}."
    details = {"attempt": drill.attempt, "incarnation": drill.incarnation}
    return TimelineEntry(drill.fired, "drill_fired", text, _which_drill(drill) | details)


def _which_drill(drill: Drill) -> dict[str, object]:
    return {"drill": drill.number, "drill_kind": drill.kind.value, "replica": str(drill.replica)}


def service_failure(name: str, message: str, now: Nanos) -> TimelineEntry:
    """Return the entry for an error of the service that ends a job, tuning job or pipeline. `name`: the type
    of the event that could not be applied, or the kind of the work. `message`: the error."""
    return TimelineEntry(now, "service_failed", f"{name}: {message}")


def cancel_requested(event: CancelRequested, message: str) -> TimelineEntry:
    """Return the entry for an accepted cancel. Its details contain the actor, if known."""
    details: dict[str, object] = {}
    if event.by is not None:
        details["principal"] = event.by.email
        if event.by.job is not None:
            details["job"] = str(event.by.job.name)
    return TimelineEntry(event.at, "cancel_requested", message, details)


def end(outcome: Outcome, now: Nanos) -> TimelineEntry:
    message = outcome.error.message if outcome.error else "Job completed successfully."
    return TimelineEntry(now, outcome.state.value.lower(), message, {"rule": outcome.rule})


def cancelled_by(event: CancelRequested) -> str:
    """Return the end of a sentence about a cancelled job: the user or job that cancelled it, or the reason. A
    person is called "the user", as in the public texts."""
    if event.by is None or event.by.job is None:
        return "was cancelled by the user."
    if event.cause is not CancelCause.CREATOR:
        return f"was cancelled by {event.by}."
    return (
        f"was cancelled because {event.by}, whose program created it, has ended. The "
        f"label {OUTLIVES_LABEL} = on prevents this."
    )


def cancel_reason(event: CancelRequested, scheduling: Scheduling) -> str:
    """Return the public reason for a cancellation. `scheduling` contains the time limits."""
    if event.cause in (CancelCause.USER, CancelCause.CREATOR):
        return f"The job {cancelled_by(event)}"
    limit = scheduling.max_wait if event.cause is CancelCause.MAX_WAIT else scheduling.timeout
    return _CANCELLED[event.cause].format(_seconds(limit or 0))


_CANCELLED: Final = {
    CancelCause.EARLY_STOP: "The trial was stopped early.",
    CancelCause.PARENT: ("The job was cancelled together with the tuning job or pipeline that created it."),
    CancelCause.IDLE: "The job was cancelled because it was idle for longer than this service allows.",
    CancelCause.MAX_WAIT: "The job was cancelled because it was not running within its maximum wait time of "
    "{} seconds.",
    CancelCause.TIMEOUT: "The job was cancelled because it ran longer than its maximum running time of {} "
    "seconds.",
}
"""The reasons for automatic cancellations."""


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


_FOLLOWS: Final = {
    Effect.REPLICA_RESTARTS: "the replica is restarted",
    Effect.JOB_RETRIES: "the job is retried",
    Effect.REPLICA_DONE: "the job continues without it",
    Effect.JOB_SUCCEEDS: "the job succeeds",
    Effect.JOB_FAILS: "the job fails",
    Effect.JOB_CANCELLED: "the job is cancelled",
}
"""The consequence of a verdict as text."""


def _describe_verdict(evidence: Evidence, verdict: Verdict) -> str:
    if verdict.effect is Effect.REPLICA_DONE and evidence.exit_code == 0:
        return "the replica is done"
    if verdict.effect is Effect.JOB_RETRIES and not verdict.budget:
        return "the job waits for its budget, and the count does not change"
    pause = round(verdict.back_off, -7)  # Rounded to a hundredth of a second.
    after = f" after {_duration(pause)}" if pause else ""
    which = f" ({verdict.count} of {verdict.budget})" if verdict.budget else ""
    return f"{_FOLLOWS[verdict.effect]}{after}{which}"


def _describe_end(exit_record: ExitRecord) -> str:
    if exit_record.oom:
        return "ran out of memory"
    if exit_record.out_of_disk:
        return "was stopped because its files exceeded the size of its disk"
    if exit_record.stalled:
        return "was stopped because it made no progress"
    if exit_record.signal is not None and exit_record.stopped:
        return "was stopped"
    if exit_record.signal is not None:
        return f"was terminated by signal {exit_record.signal}"
    return f"exited with status {exit_record.exit_code}"


def _format_time(nanoseconds: int) -> str:
    """Format a measured time: in tenths of a second below 10 s, otherwise in seconds."""
    seconds = nanoseconds / 10**9
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _duration(nanoseconds: int) -> str:
    return f"{_seconds(nanoseconds)} second{'' if nanoseconds == 10**9 else 's'}"


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 10**9:.12g}"
