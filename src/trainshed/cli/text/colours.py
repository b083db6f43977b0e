"""Colours of states, severities and replicas; text for pipes and dumb terminals stays as it is."""

import zlib
from typing import assert_never

import click

from trainshed.core.capacity import NodeCondition
from trainshed.core.failure.rules import Effect
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.study.records import StudyState, TrialState

_REPLICA_COLOURS = ("cyan", "magenta", "blue", "green", "yellow", "bright_cyan", "bright_magenta")
_SERVICE = "service"


def state_colour(state: JobState | ReplicaState) -> str:
    """Grey waits, blue works, green and red are the ends."""
    match state:
        case JobState.QUEUED | ReplicaState.WAITING:
            return "bright_black"
        case JobState.PREPARING:
            return "yellow"
        case JobState.RUNNING | ReplicaState.RUNNING:
            return "cyan"
        case JobState.SUCCEEDED | ReplicaState.EXITED:
            return "green"
        case JobState.CANCELLING | JobState.CANCELLED | ReplicaState.STOPPING:
            return "magenta"
        case JobState.FAILED | ReplicaState.LOST:
            return "red"
        case _:
            assert_never(state)


def trial_colour(state: TrialState, job: JobState | None = None) -> str:
    """That of its job, as long as it has one that may go on."""
    match state:
        case TrialState.REQUESTED:
            return "bright_black"
        case TrialState.ACTIVE:
            return state_colour(job) if job and not job.is_final else "cyan"
        case TrialState.STOPPING:
            return "magenta"
        case TrialState.SUCCEEDED:
            return "green"
        case TrialState.INFEASIBLE:
            return "red"
        case _:
            assert_never(state)


def study_colour(state: StudyState) -> str:
    match state:
        case StudyState.ACTIVE:
            return "cyan"
        case StudyState.INACTIVE:
            return "magenta"
        case StudyState.COMPLETED:
            return "green"
        case _:
            assert_never(state)


def trial_number_colour(number: int) -> str:
    """The same trial has the same colour in every command; neighbours differ."""
    return _REPLICA_COLOURS[number % len(_REPLICA_COLOURS)]


def condition_colour(condition: NodeCondition) -> str:
    match condition:
        case NodeCondition.READY:
            return "green"
        case NodeCondition.DRAINED | NodeCondition.QUARANTINED:
            return "magenta"
        case NodeCondition.GONE:
            return "red"
        case _:
            assert_never(condition)


_EFFECTS = {
    Effect.JOB_SUCCEEDS: "green",
    Effect.REPLICA_DONE: "green",
    Effect.REPLICA_RESTARTS: "yellow",
    Effect.JOB_RETRIES: "yellow",
    Effect.JOB_FAILS: "red",
    Effect.JOB_CANCELLED: "magenta",
}
_ASKS_FOR_ATTENTION = frozenset(
    {
        "warning",
        "child_out_of_memory",
        "replica_asked_to_leave",
        "replica_lost",
        "service_failed",
        "limit_nears",
        "no_checkpoint",
        "reduction_warning",
        "disk_warning",
        "storage_warning",
        "cancel_requested",
        "drill_fired",
        "trial_infeasible",
        "trial_stopping",
    }
)


def entry_colour(kind: str, effect: str = "") -> str | None:
    """Verdicts by what they do, warnings, ends; None for the course of things."""
    if kind == "verdict":
        return next((colour for known, colour in _EFFECTS.items() if known == effect), "yellow")
    for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED):
        if kind == state.value.lower():
            return state_colour(state)
    return "yellow" if kind in _ASKS_FOR_ATTENTION else None


def severity_colour(severity: str) -> str | None:
    """Only what asks for attention has a colour."""
    if severity in ("ERROR", "CRITICAL", "ALERT", "EMERGENCY"):
        return "red"
    return "yellow" if severity == "WARNING" else None


def replica_colour(replica: str) -> str:
    """The same replica has the same colour in every command; the first few of a job differ."""
    if replica == _SERVICE:
        return "bright_black"
    pool, _, index = replica.removeprefix("workerpool").partition("-")
    if pool.isdigit() and index.isdigit():
        return _REPLICA_COLOURS[(2 * int(pool) + int(index)) % len(_REPLICA_COLOURS)]
    return _REPLICA_COLOURS[zlib.crc32(replica.encode()) % len(_REPLICA_COLOURS)]


def faint(text: str) -> str:
    """What is there to be found, not to be read."""
    return click.style(text, fg="bright_black")
