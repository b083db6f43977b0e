"""The evidence that rows of the failure table match: why a replica or an attempt ended, and the known facts
about its end."""

import enum
from typing import Final

from msgspec import Struct

from trainshed.core.job import ExitRecord
from trainshed.core.names import JobName, ReplicaId, public_replica_name


class Cause(enum.StrEnum):
    """Why a replica or a whole attempt ended."""

    #: The program ended with an exit code.
    EXITED = "exited"
    #: A signal ended the program.
    SIGNALLED = "signalled"
    #: The program was killed at its memory limit.
    OUT_OF_MEMORY = "out_of_memory"
    #: The program was ended at its disk limit.
    OUT_OF_DISK = "out_of_disk"
    #: The stall watchdog ended the program.
    STALLED = "stalled"
    #: The replica was requested to leave its node, or the node itself stopped the replica.
    LEFT = "left"
    #: The replica disappeared without an attempt record and for an unknown reason.
    LOST = "lost"
    #: The cluster reports that the replica's node failed.
    NODE_FAILED = "node_failed"
    #: The agent on the replica's node disappeared.
    AGENT_LOST = "agent_lost"
    #: A user or administrator of the cluster cancelled the allocation.
    ALLOCATION_REVOKED = "allocation_revoked"
    #: The allocation reached its time limit.
    ALLOCATION_EXPIRED = "allocation_expired"
    #: The cluster gave the allocation to another job, or suspended it for too long.
    CLUSTER_PREEMPTED = "cluster_preempted"
    #: The node evicted the replica's Pod.
    POD_EVICTED = "pod_evicted"
    #: A package of the job cannot be installed.
    PACKAGE = "package"
    #: The rows of the job's dataset cannot be assigned to splits.
    DATA = "data"
    #: The engine can never start the job.
    REJECTED = "rejected"
    #: The service itself failed.
    SERVICE = "service"
    #: No node can run the job.
    STOCK_OUT = "stock_out"
    #: The scheduler gave the job's capacity to another job of this service.
    PREEMPTED = "preempted"
    #: A hard budget of the job's project or user is used up.
    BUDGET = "budget"
    #: A user or a time limit cancelled the job.
    CANCELLED = "cancelled"


CLUSTER_LOSSES: Final = frozenset(
    {
        Cause.NODE_FAILED,
        Cause.AGENT_LOST,
        Cause.ALLOCATION_REVOKED,
        Cause.ALLOCATION_EXPIRED,
        Cause.CLUSTER_PREEMPTED,
        Cause.POD_EVICTED,
    }
)
"""The causes of a replica's loss on a cluster, except LOST, for which the reason is unknown."""


class Evidence(Struct, frozen=True):
    """The known facts about the end of a replica or of an attempt."""

    cause: Cause
    name: JobName
    #: The replica that ended, or None for the whole attempt.
    replica: ReplicaId | None = None
    #: The attempt record, or None if it does not exist.
    exit: ExitRecord | None = None
    #: Whether the replica's pool runs a Python package.
    is_package: bool = True
    #: Whether the replica's pool runs reducers.
    is_reducer: bool = False
    #: A description of the cause, if the end is a loss or a failure of the service.
    text: str | None = None
    #: The region of the job, for the message about a stock-out.
    region: str = ""
    #: Advice for the user, or None if no advice is known.
    advice: str | None = None

    @property
    def exit_code(self) -> int | None:
        return self.exit.exit_code if self.exit else None

    @property
    def signal(self) -> int | None:
        return self.exit.signal if self.exit else None

    @property
    def public_name(self) -> str:
        """Return the replica's name in public messages. For a whole attempt, return the name of the
        primary."""
        return public_replica_name(self.name.api, self.replica or ReplicaId(0, 0))

    @property
    def status(self) -> int | None:
        """Return the exit status for public messages, or None without an attempt record
        (spec/failures#messages, spec/failures#out-of-memory, facts/lifecycle#errors).

        A signal is published as its number for package jobs (6, 11) and as 128 plus its number for containers
        (134, 139). An out-of-memory kill is 137 for both.
        """
        if self.exit is None:
            return None
        if self.exit.oom:
            return 137
        if self.exit.exit_code is not None:
            return self.exit.exit_code
        number = self.exit.signal or 0
        return number if self.is_package else 128 + number


def cause_of_exit(exit_record: ExitRecord) -> Cause:
    """Return the cause that an attempt record shows.

    If the replica received a request to stop, the request is the cause, for every exit code. A program that
    saves its state and then exits with 0 is not finished (docs/adr/0011).
    """
    if exit_record.stopped:
        return Cause.LEFT
    if exit_record.oom:
        return Cause.OUT_OF_MEMORY
    if exit_record.out_of_disk:
        return Cause.OUT_OF_DISK
    if exit_record.stalled:
        return Cause.STALLED
    return Cause.EXITED if exit_record.signal is None else Cause.SIGNALLED
