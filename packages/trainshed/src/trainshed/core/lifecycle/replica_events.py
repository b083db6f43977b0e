"""Events of replicas, as engines report them: the part of `events` that agents on nodes load as well."""

from typing import Final

from msgspec import Struct

from trainshed.core.failure.evidence import Cause
from trainshed.core.job import ExitRecord
from trainshed.core.names import ReplicaId
from trainshed.core.units import Nanos

NEVER_STARTED: Final = "never started"
"""Cause of the loss of a replica that was stopped before it started, and that will never start."""


class ReplicaStarted(Struct, frozen=True):
    """The replica's main process was started."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    at: Nanos


class ReplicaExited(Struct, frozen=True):
    """The replica's main process ended and its log and attempt record are sealed."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    exit: ExitRecord
    #: For a stopped replica: the cluster's plan for its place, if the cluster has announced it.
    loss: Cause = Cause.LOST
    #: The same in words.
    cause: str | None = None


class ReplicaLost(Struct, frozen=True):
    """The replica is gone without an attempt record, or never came up and never will."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    cause: str
    #: Whether it was lost because the service itself failed.
    by_service: bool = False
    #: How it was lost, as far as its engine knows: one of `CLUSTER_LOSSES`, or at the memory or disk limit.
    loss: Cause = Cause.LOST


class ReplicaNoted(Struct, frozen=True):
    """A replica's program, or its shim, has something to say to people (spec/reduction#reports)."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    #: Counts the incarnation's notes from 1.
    number: int
    at: Nanos
    #: The kind of the note.
    name: str
    #: INFO, WARNING or ERROR.
    severity: str
    text: str


ReplicaEvent = ReplicaStarted | ReplicaExited | ReplicaLost | ReplicaNoted
"""The events that engines report of replicas."""
