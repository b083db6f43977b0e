"""How a job's life is told: the timeline entries of each step, and the reasons of cancellations. Words only."""

from typing import assert_never

from trainshed.core.lifecycle.events import CancelCause, ReplicaLost, TimelineEntry
from trainshed.core.lifecycle.records import ExitRecord, Job, Outcome, Replica
from trainshed.core.names import public_replica_name


def admitted(job: Job, now: int) -> TimelineEntry:
    noun = "replica" if len(job.replicas) == 1 else "replicas"
    return TimelineEntry(
        now, "admitted", f"Attempt {job.attempt}: {len(job.replicas)} {noun} placed."
    )


def launching(now: int) -> TimelineEntry:
    return TimelineEntry(now, "launching", "The runtime is ready; starting all replicas.")


def started(job: Job, replica: Replica) -> TimelineEntry:
    place = f" on {replica.node}" if replica.node else ""
    return TimelineEntry(
        replica.started,
        "replica_started",
        f"{public_replica_name(job.name.api, replica.id)} started{place}.",
        _which(replica),
    )


def running(job: Job) -> TimelineEntry:
    return TimelineEntry(job.started, "running", "All replicas are running.")


def exited(job: Job, replica: Replica, exit_record: ExitRecord) -> TimelineEntry:
    return TimelineEntry(
        exit_record.ended,
        "replica_exited",
        f"{public_replica_name(job.name.api, replica.id)} {_how(exit_record)}.",
        {
            **_which(replica),
            "exit_code": exit_record.exit_code,
            "signal": exit_record.signal,
            "oom": exit_record.oom,
        },
    )


def lost(job: Job, replica: Replica, event: ReplicaLost, now: int) -> TimelineEntry:
    name = public_replica_name(job.name.api, replica.id)
    if event.by_service:
        message = f"The service could not run {name}: {event.cause}."
        return TimelineEntry(now, "internal_error", message, _which(replica))
    return TimelineEntry(now, "replica_lost", f"{name} was lost: {event.cause}.", _which(replica))


def verdict(rule: str, replica: Replica, now: int) -> TimelineEntry:
    details = {"rule": rule, "replica": str(replica.id)}
    return TimelineEntry(now, "verdict", f"Rule {rule}: the job fails.", details)


def cancel_requested(job: Job, cause: CancelCause, at: int) -> TimelineEntry:
    return TimelineEntry(at, "cancel_requested", cancel_message(job, cause))


def over(outcome: Outcome, now: int) -> TimelineEntry:
    message = outcome.error.message if outcome.error else "Job completed successfully."
    return TimelineEntry(now, outcome.state.value.lower(), message, {"rule": outcome.rule})


def cancel_message(job: Job, cause: CancelCause) -> str:
    """The public reason of a cancellation."""
    scheduling = job.spec.scheduling
    match cause:
        case CancelCause.USER:
            return "The job was cancelled by the user."
        case CancelCause.MAX_WAIT:
            return (
                "The job was cancelled because it was not running within its maximum wait time of "
                f"{_seconds(scheduling.max_wait or 0)} seconds."
            )
        case CancelCause.TIMEOUT:
            return (
                "The job was cancelled because it ran longer than its maximum running time of "
                f"{_seconds(scheduling.timeout)} seconds."
            )
        case _:
            assert_never(cause)


def _which(replica: Replica) -> dict[str, object]:
    return {"replica": str(replica.id), "incarnation": replica.incarnation}


def _how(exit_record: ExitRecord) -> str:
    if exit_record.oom:
        return "ran out of memory"
    if exit_record.signal is not None:
        return f"was ended by signal {exit_record.signal}"
    return f"exited with status {exit_record.exit_code}"


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 10**9:g}"
