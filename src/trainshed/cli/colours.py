"""Which colour a state, a severity, a replica has; text for pipes and dumb terminals stays as it is."""

import zlib
from typing import assert_never

import click

from trainshed.core.lifecycle.states import JobState, ReplicaState

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
        case JobState.CANCELLING | JobState.CANCELLED:
            return "magenta"
        case JobState.FAILED | ReplicaState.LOST:
            return "red"
        case _:
            assert_never(state)


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
