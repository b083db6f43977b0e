"""Events of replicas, as engines report them: the part of `events` that agents on nodes load as well."""

import enum
from typing import Final

from msgspec import Struct

from trainshed.core.job import ExitRecord
from trainshed.core.names import ReplicaId
from trainshed.core.units import Nanos

NEVER_STARTED: Final = "never started"
"""Cause of the loss of a replica that was stopped before it started, and that will never start."""


class Loss(enum.StrEnum):
    """How a replica was lost that left no record, as far as its engine knows. The values are those of the
    failure table's causes."""

    #: It is not known how.
    UNKNOWN = "lost"
    #: Its node failed, according to the cluster.
    NODE_FAILED = "node_failed"
    #: The agent on its node is gone, or is not heard of any more.
    AGENT_LOST = "agent_lost"
    #: Somebody cancelled the allocation that the cluster held for it.
    ALLOCATION_REVOKED = "allocation_revoked"
    #: That allocation came to its time limit.
    ALLOCATION_EXPIRED = "allocation_expired"
    #: The cluster gave that allocation to another job.
    CLUSTER_PREEMPTED = "cluster_preempted"
    #: Its node evicted its Pod.
    POD_EVICTED = "pod_evicted"
    #: The cluster ended all its processes at its memory limit.
    OUT_OF_MEMORY = "out_of_memory"
    #: The cluster ended all its processes at its disk limit.
    OUT_OF_DISK = "out_of_disk"


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
    #: For a replica that was stopped: what the cluster was about to do with its place, if it has said so.
    loss: Loss = Loss.UNKNOWN
    #: The same in words; "" = it has not.
    cause: str = ""


class ReplicaLost(Struct, frozen=True):
    """The replica is gone without an attempt record, or never came up and never will."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    cause: str
    #: Whether it was lost because the service itself failed.
    by_service: bool = False
    loss: Loss = Loss.UNKNOWN


class ReplicaNoted(Struct, frozen=True):
    """A replica's program, or its shim, has something to say to people (spec/reduction#reports)."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    #: Counts the incarnation's notes from 1.
    number: int
    at: Nanos
    #: What kind of note it is.
    name: str
    #: INFO, WARNING or ERROR.
    severity: str
    text: str


ReplicaEvent = ReplicaStarted | ReplicaExited | ReplicaLost | ReplicaNoted
"""The events that engines report of replicas."""
