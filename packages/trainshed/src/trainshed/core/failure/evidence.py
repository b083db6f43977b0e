"""The evidence that rows of the failure table use: the cause of an end, and its known facts."""

import enum
from typing import Final

from msgspec import Struct

from trainshed.core.job import ExitRecord
from trainshed.core.names import JobName, ReplicaId, public_replica_name


class Cause(enum.StrEnum):
    """Why a replica, or a whole attempt, came to its end."""

    #: Its program ended with an exit code.
    EXITED = "exited"
    #: A signal ended its program.
    SIGNALLED = "signalled"
    #: It was ended at its memory limit.
    OUT_OF_MEMORY = "out_of_memory"
    #: It was ended at its disk limit.
    OUT_OF_DISK = "out_of_disk"
    #: The stall watchdog ended it.
    STALLED = "stalled"
    #: It was asked to leave its node, or its node ended it.
    LEFT = "left"
    #: It is gone without a record, and it is not known how.
    LOST = "lost"
    #: Its node failed, according to the cluster.
    NODE_FAILED = "node_failed"
    #: The agent on its node is gone.
    AGENT_LOST = "agent_lost"
    #: Somebody cancelled its allocation.
    ALLOCATION_REVOKED = "allocation_revoked"
    #: Its allocation came to its time limit.
    ALLOCATION_EXPIRED = "allocation_expired"
    #: The cluster gave its allocation to another job, or suspended it for too long.
    CLUSTER_PREEMPTED = "cluster_preempted"
    #: Its node evicted its Pod.
    POD_EVICTED = "pod_evicted"
    #: The job's own package cannot be installed.
    PACKAGE = "package"
    #: The job's dataset cannot be split.
    DATA = "data"
    #: The engine will never start it.
    REJECTED = "rejected"
    #: The service failed.
    SERVICE = "service"
    #: No node can take the job.
    STOCK_OUT = "stock_out"
    #: Its capacity went to another job of this service.
    PREEMPTED = "preempted"
    #: A hard budget is used up.
    BUDGET = "budget"
    #: A user or a time limit ended the job.
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
"""Causes of the loss of a replica on a cluster, where it is known how it was lost."""


class Evidence(Struct, frozen=True):
    """The end of a replica or of an attempt, with what is known of it."""

    cause: Cause
    name: JobName
    #: None = the end of the whole attempt.
    replica: ReplicaId | None = None
    #: The attempt record; None = there is none.
    exit: ExitRecord | None = None
    #: The replica's pool runs a Python package.
    is_package: bool = True
    #: The replica's pool runs reducers.
    is_reducer: bool = False
    #: The cause in words, for losses and failures of the service.
    text: str | None = None
    #: The job's region, for the stock-out message.
    region: str = ""
    #: Advice for the user; None = no advice is known.
    advice: str | None = None

    @property
    def exit_code(self) -> int | None:
        return self.exit.exit_code if self.exit else None

    @property
    def signal(self) -> int | None:
        return self.exit.signal if self.exit else None

    @property
    def public_name(self) -> str:
        """The replica as public messages name it; the primary where the whole attempt is meant."""
        return public_replica_name(self.name.api, self.replica or ReplicaId(0, 0))

    @property
    def status(self) -> int | None:
        """The exit status that public messages give; None without a record. A signal is published bare for
        package jobs (6, 11) and as 128 + n for containers (134, 139); an out-of-memory kill is 137 for both
        (spec/failures#messages, spec/failures#out-of-memory, facts/lifecycle#errors)."""
        if self.exit is None:
            return None
        if self.exit.oom:
            return 137
        if self.exit.exit_code is not None:
            return self.exit.exit_code
        number = self.exit.signal or 0
        return number if self.is_package else 128 + number


def cause_of_exit(exit_record: ExitRecord) -> Cause:
    """Return the cause that an attempt record shows. An end after a request to stop is due to that request,
    whoever made it and whatever the exit code: a program that saves its state and then exits 0 is not
    finished (docs/adr/0011)."""
    if exit_record.stopped:
        return Cause.LEFT
    if exit_record.oom:
        return Cause.OUT_OF_MEMORY
    if exit_record.out_of_disk:
        return Cause.OUT_OF_DISK
    if exit_record.stalled:
        return Cause.STALLED
    return Cause.EXITED if exit_record.signal is None else Cause.SIGNALLED
