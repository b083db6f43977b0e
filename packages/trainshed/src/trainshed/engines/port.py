"""The interface of all engines: an engine gives an admitted gang its slots and reports the events in them.

A slot is a replica's "VM": a node, resources, an address. The verdict on a replica comes from its shim's
record, never from an engine. Conformance suite: tests/engines/conformance.
"""

import enum
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct

from trainshed.core.capacity import Delay, MachineWanted, Node
from trainshed.core.errors import Unavailable
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.records import StopNotice
from trainshed.core.lifecycle.replica_events import ReplicaEvent
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.runtime import Image
from trainshed.core.secrets import SecretRef
from trainshed.core.streams import Streams


class EngineUnavailable(Unavailable):
    """The engine cannot answer now; the caller may repeat the call."""


class StillWaiting(EngineUnavailable):
    """The request has begun, and waits for a condition that `watch` reports (`StartWaits`)."""


class LevelUnavailable(Exception):
    """This machine does not offer the isolation that the operator demands, or the probe failed. The message
    contains the reason and the levels that work."""


class LaunchRejected(Exception):
    """The engine will never run this. The message contains the reason and an alternative."""


class SecretMissing(LaunchRejected):
    """A secret of the job does not exist any more. That counts as the job's failure, not the service's."""


class StartFailed(Exception):
    """The attempt cannot be started, through no fault of a node or the request; another attempt may
    succeed."""


class Capabilities(Struct, frozen=True):
    """The guarantees of the engine on this host, shown by `doctor` and the docs."""

    #: Each replica has its own processes, its own address, and its own port 2222.
    process_namespace: bool
    #: Replicas resolve each other's hostnames.
    stable_hostname: bool
    #: Enforcement of the memory limit: "kernel" (control groups) or "polling" (several measurements per
    #: second; the same verdict, a moment later).
    memory_limit: str = "kernel"
    #: The engine keeps files of failed replicas (`core.terminals`).
    autopsies: bool = False
    #: Sandbox level that separates programs, in the engine's own terms.
    isolation: str = ""
    #: (level, reason why it does not work here) of each stronger level.
    not_stronger: tuple[tuple[str, str], ...] = ()
    #: Like `memory_limit`; None = no enforcement.
    process_limit: str | None = None
    #: The engine can run container images.
    images: bool = False


class NodeState(enum.StrEnum):
    """The state of a node, as the engine reports it."""

    #: It accepts new replicas.
    UP = "UP"
    #: It accepts no replicas, and running ones should leave it.
    DRAINING = "DRAINING"
    #: The engine found it unfit. It accepts no replicas for a while.
    QUARANTINED = "QUARANTINED"
    #: The cluster lost contact a while ago, but has not given it up: nothing new starts there, and running
    #: replicas continue.
    UNHEARD = "UNHEARD"
    #: It stopped answering, or no longer exists.
    GONE = "GONE"


class SlotRequest(Struct, frozen=True):
    """The needs of one replica."""

    replica: ReplicaId
    hostname: str
    #: Node to run on; only a preference if the cluster chooses (`NodesChosen`).
    node: str
    #: Number of devices for its exclusive use.
    accelerators: int = 0
    #: Number of the node's vCPUs to reserve; None = no reservation.
    vcpus: float | None = None
    memory_bytes: int = 0
    machine: MachineWanted = MachineWanted()
    #: Reference of its container image; None = no image. For engines whose cluster pulls images
    #: (`BringsImages`).
    image: str | None = None
    #: The job's project; "" = unknown. A cluster may run each project's programs as a separate user.
    project: str = ""
    #: Port at which running peers expect it, so that it must get the same; None = any.
    port: int | None = None
    #: False: it has lost its node and waits for another. `node` is then the former one, and only the parts of
    #: its slot that peers know must not change.
    is_placed: bool = True
    #: Time limit of its job in seconds, over all attempts; None = unknown.
    seconds: int | None = None


class Slot(Struct, frozen=True):
    """The place of a replica."""

    replica: ReplicaId
    node: str
    hostname: str
    #: Hostname or literal address for its peers.
    host: str
    #: The IP address of `host`.
    address: str
    #: Port that it may bind there.
    port: int
    #: Value of CUDA_VISIBLE_DEVICES; None = no accelerators requested, "" = requested, but the node has none.
    devices: str | None = None
    #: First of its reserved user IDs of the machine; None = none.
    users: int | None = None
    #: The loopback address of its endpoint, if other machines reach `address`; None = `address`.
    endpoint: str | None = None


class ReplicaReport(Struct, frozen=True):
    """An observation of a replica, as the event of its job.

    ReplicaStarted: its main process started. ReplicaExited: its main process ended, and log and attempt
    record are sealed and synced. ReplicaLost: its shim is gone without a record (its program died with it),
    or never started. ReplicaNoted: for plans with `reduction`, and for disks (`core.lifecycle.notes`) if the
    engine measures the resources of replicas. Each note is reported at least once before the end of the
    incarnation, and again after a restart of the service.
    """

    job_uid: JobUid
    event: ReplicaEvent


class LinesWritten(Struct, frozen=True):
    """New log lines of a replica can be read. Events are coalesced to at most one per replica in about 20
    ms."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId
    lines: int


class MetricsWritten(Struct, frozen=True):
    """A new measurement of a trial's primary replica can be read. Only for plans with `watch_metrics`, and
    coalesced like `LinesWritten`. The last measurement is readable before the replica's end is reported, even
    without an event."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId


class CapacityChanged(Struct, frozen=True):
    """The result of `capacity` has changed: nodes joined or left, or the use by other software changed."""

    nodes: tuple[Node, ...]


class NodeChanged(Struct, frozen=True):
    """A node's state has changed. The loss of each replica on a GONE node is reported separately, and only
    after it is certain to be dead (fencing)."""

    node: str
    state: NodeState
    #: Reason for the state; for a node that is UP, a remaining problem; None = no reason.
    cause: str | None


class Fault(enum.StrEnum):
    """The effect of `inject` on a replica."""

    #: An external SIGKILL ends all its processes.
    KILL = "kill"
    #: Its main process dies as if it had exceeded its memory limit.
    OOM = "oom"
    #: Its main process gets SIGSEGV.
    SEGV = "segv"


class StartWaits(Struct, frozen=True):
    """The start of an attempt's programs waits for `delay`; None = it does not wait any more. Emitted when
    the reason changes, at most every few seconds per attempt, and again after a restart of the service.
    Engines without such waits never emit it."""

    job_uid: JobUid
    attempt: int
    delay: Delay | None


class NodesChosen(Struct, frozen=True):
    """A cluster with its own queue has given an attempt's replicas these nodes instead of the requested ones.
    Emitted before any of them starts, and again after a restart of the service for replicas that have not
    ended. Engines that use the requested nodes never emit it."""

    job_uid: JobUid
    attempt: int
    #: (replica, its node).
    nodes: tuple[tuple[ReplicaId, str], ...]


EngineEvent = (
    ReplicaReport
    | LinesWritten
    | MetricsWritten
    | NodeChanged
    | CapacityChanged
    | StartWaits
    | NodesChosen
)


class ServiceAccess(Struct, frozen=True):
    """The access of programs to the service and its buckets. Paths are absolute."""

    #: Unix socket of the bucket process, for the endpoints of replicas; None = replicas have no endpoint.
    storage_socket: Path | None = None
    #: Unix socket of the service's REST API, for the same endpoints; None = they serve no Google hosts.
    rest_socket: Path | None = None
    #: Unix socket of the service's gRPC API, likewise.
    grpc_socket: Path | None = None
    #: PEM file with the key and chain of the endpoints for Google hosts; None = these are not served.
    certificate: Path | None = None
    #: File of the certificate authorities that programs then trust.
    trust: Path | None = None


NO_ACCESS = ServiceAccess()
"""No access to either."""


class ProgramRules(Struct, frozen=True):
    """The operator's rules for all programs, whatever the engine (docs/settings.md)."""

    #: Required sandbox level; None = the strongest that works.
    isolation: str | None = None
    #: Maximum number of processes of a replica; None = unlimited.
    max_processes: int | None = None
    #: End a replica whose files exceed its disk.
    enforce_disk: bool = False
    #: Paths that programs may read inside hidden directories.
    visible: tuple[str, ...] = ()
    #: How long to keep the files of failed replicas, in nanoseconds; None = not at all.
    autopsy_ttl: int | None = None


class SecretSource(Protocol):
    """Resolves the secret marks in launch plans (`core.secrets`), just before a start. An engine passes the
    values to the program only, and never stores or shows them."""

    async def values(self, project_id: str, refs: Collection[SecretRef]) -> Mapping[SecretRef, str]:
        """Return the value of each reference, quickly, because a start waits for it. Raises SecretMissing,
        LaunchRejected (a secret cannot be decrypted), EngineUnavailable."""
        ...


@runtime_checkable
class LogWriter(Protocol):
    """Optional interface of an engine that can write lines into the logs of its programs."""

    async def write_log(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, lines: Sequence[str]
    ) -> None:
        """Write lines into a live replica's log as if its program had printed them. Raises
        EngineUnavailable."""
        ...


@runtime_checkable
class KeepsQuarantine(Protocol):
    """Optional interface of an engine that moves unfit nodes to QUARANTINED."""

    async def readmit(self, node: str) -> None:
        """Release a node from quarantine early. No effect on other nodes. Raises EngineUnavailable."""
        ...


@runtime_checkable
class BringsImages(Protocol):
    """Optional interface of an engine whose cluster pulls the container images of jobs (`SlotRequest.image`)
    and runs programs in them unchanged."""

    @property
    def read_image(self) -> Callable[[str], Image] | None:
        """Reads the default command of an image, by its reference, or the reason why it is unreadable.
        Blocks. None = the cluster does not pull images."""
        ...


@runtime_checkable
class TakesMemory(Protocol):
    """Optional interface of an engine whose own processes count against its requested memory."""

    @property
    def memory_beside(self) -> int:
        """Their maximum memory on a node per replica, in bytes, in addition to the replica's own."""
        ...


class Engine(Protocol):
    """The interface of all engines. All methods are idempotent per (job_uid, attempt[, replica, incarnation])
    and survive a restart of the service: the state is on disk or in the cluster, never only in memory."""

    def capabilities(self) -> Capabilities: ...

    @property
    def streams(self) -> Streams:
        """The replicas' logs and measurements, readable even before `start`, and as long as a job's log is
        kept. A line is readable before its `LinesWritten` is emitted, and the whole stream before the
        replica's end is reported."""
        ...

    async def start(self) -> None:
        """Start the engine and adopt the replicas of an earlier service: `watch` reports every live or
        unreported replica again (started, exited or lost)."""
        ...

    async def close(self) -> None:
        """Release all resources of this process without stopping any replica."""
        ...

    async def capacity(self) -> tuple[Node, ...]: ...

    async def allocate(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        """Return slots for the whole gang or none. The same call again returns the same slots. A replica
        whose request has another node moves there, with its hostname and without its files, if its processes
        have ended. Raises EngineUnavailable (also if a process of a moving replica is alive), LaunchRejected
        (also for a node that the engine never had), StartFailed."""
        ...

    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        """Start programs in their slots, all at once. Returns when each start was requested; `watch` reports
        the outcomes. A plan whose incarnation already started, ended or was stopped is only reported again.
        Raises EngineUnavailable. Raises LaunchRejected, and starts no program, if a replica has no slot."""
        ...

    async def stop(
        self, job_uid: JobUid, attempt: int, grace: int, notice: StopNotice | None = None
    ) -> None:
        """Send SIGTERM to every live replica of the attempt, and SIGKILL after `grace` ns. Returns
        immediately.

        The end of the latest incarnation of every allocated replica is then reported, even if it was before.
        A replica without a launch never starts: its incarnation 1 is reported lost with cause "never
        started". Does nothing if the attempt has no slots. `notice`: what the programs' metadata server
        reports from now on."""
        ...

    async def stop_replica(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        grace: int,
        *,
        notice: StopNotice | None = None,
    ) -> None:
        """Send SIGTERM to one incarnation, and SIGKILL after `grace` ns. Returns immediately. Its end is
        reported, even if it was before. An incarnation that has not started never will, and is reported lost
        with cause "never started". Other incarnations are not affected. Raises LaunchRejected if the replica
        has no slot."""
        ...

    async def inject(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, fault: Fault
    ) -> None:
        """Inject a fault into one incarnation; `watch` reports the effect. Does nothing if the incarnation
        has ended."""
        ...

    async def allocations(self) -> tuple[tuple[JobUid, int], ...]:
        """Return every (job_uid, attempt) that has slots now, in any order, for reconciliation after a
        crash."""
        ...

    async def release(self, job_uid: JobUid, attempt: int) -> None:
        """Release the slots and remove their scratch files (logs remain). Called only after all replicas have
        ended."""
        ...

    def watch(self) -> AsyncIterator[EngineEvent]:
        """Yield events in the order of their observation. Per replica: started, then lines, metrics and
        notes, then exited or lost. Supports one reader."""
        ...
