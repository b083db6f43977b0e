"""Events of replicas, as engines report them. A separate module, because agents on nodes load only these
events."""

from typing import Final

from msgspec import Struct

from trainshed.core.failure.evidence import Cause
from trainshed.core.job import ExitRecord
from trainshed.core.names import ReplicaId
from trainshed.core.units import Nanos

NEVER_STARTED: Final = "never started"
"""The `cause` of a ReplicaLost event if the replica was stopped before its program started, so the program
will never start."""


class ReplicaStarted(Struct, frozen=True):
    """The replica's main process was started."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    at: Nanos


class ReplicaExited(Struct, frozen=True):
    """The replica's main process ended, and its log and attempt record are complete."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    exit: ExitRecord
    #: For a stopped replica: the cluster's reason for the stop, if known.
    loss: Cause = Cause.LOST
    #: The reason for the stop as text, or None if unknown.
    cause: str | None = None


class ReplicaLost(Struct, frozen=True):
    """The replica ended without an attempt record, or can never start."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    cause: str
    #: Whether a failure of the service itself caused the replica's loss.
    by_service: bool = False
    #: The cause of the loss, if the engine knows it: one of `CLUSTER_LOSSES`, or the memory or disk limit.
    loss: Cause = Cause.LOST


class ReplicaNoted(Struct, frozen=True):
    """A replica's program or shim reports a note for users (spec/reduction#reports)."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    #: Number of the note among those of the replica's run (incarnation), from 1.
    number: int
    at: Nanos
    #: The kind of the note (message to users).
    name: str
    #: The severity: INFO, WARNING or ERROR.
    severity: str
    text: str


ReplicaEvent = ReplicaStarted | ReplicaExited | ReplicaLost | ReplicaNoted
"""The events that engines report about replicas."""
