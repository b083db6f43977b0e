"""Chooses the colours of states, severities and replicas. `click.echo` removes them for pipes."""

import zlib
from typing import assert_never

import click

from trainshed.core.failure.rules import Effect
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.study.records import TrialState

_REPLICA_COLOURS = ("cyan", "magenta", "blue", "green", "yellow", "bright_cyan", "bright_magenta")
_SERVICE = "service"


def state_colour(state: JobState | ReplicaState) -> str:
    """Return the colour of a state: grey or yellow waits, cyan runs, magenta stops, green and red are
    over."""
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
    """Return the colour of a trial: of an active trial, that of its job, if that is not over."""
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


def trial_number_colour(number: int) -> str:
    """Return the colour of a trial's number, the same in every command. Neighbours differ."""
    return _REPLICA_COLOURS[number % len(_REPLICA_COLOURS)]


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
    """Return the colour of a timeline's entry: of a verdict by its effect, of warnings and ends; None for all
    others."""
    if kind == "verdict":
        return next((colour for known, colour in _EFFECTS.items() if known == effect), "yellow")
    for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED):
        if kind == state.value.lower():
            return state_colour(state)
    return "yellow" if kind in _ASKS_FOR_ATTENTION else None


def severity_colour(severity: str) -> str | None:
    """Return the colour of a severity; None below warnings."""
    if severity in ("ERROR", "CRITICAL", "ALERT", "EMERGENCY"):
        return "red"
    return "yellow" if severity == "WARNING" else None


def replica_colour(replica: str) -> str:
    """Return the colour of a replica, the same in every command. The first few of a job differ."""
    if replica == _SERVICE:
        return "bright_black"
    pool, _, index = replica.removeprefix("workerpool").partition("-")
    if pool.isdigit() and index.isdigit():
        return _REPLICA_COLOURS[(2 * int(pool) + int(index)) % len(_REPLICA_COLOURS)]
    return _REPLICA_COLOURS[zlib.crc32(replica.encode()) % len(_REPLICA_COLOURS)]


def faint(text: str) -> str:
    """Return a text in grey, for what is of minor interest."""
    return click.style(text, fg="bright_black")
