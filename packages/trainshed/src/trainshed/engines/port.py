"""The interface of all engines. An engine gives an admitted gang its slots, and reports their events.

A slot is a replica's "VM": a node, resources, an address. The result of a replica comes from its shim's
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
    """The engine cannot carry out a call now. The caller may repeat the call."""


class StillWaiting(EngineUnavailable):
    """The start of a request waits for a condition that `watch` reports (`StartWaits`). The caller repeats
    the call."""


class LevelUnavailable(Exception):
    """This machine does not offer the isolation that the operator requires, or the probe failed. The message
    contains the reason and the levels that work."""


class LaunchRejected(Exception):
    """The engine can never run this program. The message contains the reason and an alternative."""


class SecretMissing(LaunchRejected):
    """A secret of the job does not exist any more. This is a failure of the job, not of the service."""


class StartFailed(Exception):
    """The attempt cannot be started. Neither a node nor the request is the cause, so another attempt may
    succeed."""


class Capabilities(Struct, frozen=True):
    """The guarantees of the engine on this host, shown by `doctor` and the docs."""

    #: Each replica has its own processes, its own address, and its own port 2222.
    process_namespace: bool
    #: Replicas can resolve each other's hostnames.
    stable_hostname: bool
    #: Enforcement of the memory limit: "kernel" (control groups) or "polling" (several measurements per
    #: second; the same result, a moment later).
    memory_limit: str = "kernel"
    #: The engine keeps files of failed replicas (`core.terminals`).
    autopsies: bool = False
    #: Sandbox level of programs, in the engine's own terms.
    isolation: str = ""
    #: (level, reason why it does not work here) of each level that is stronger than `isolation`.
    not_stronger: tuple[tuple[str, str], ...] = ()
    #: Enforcement of the limit of processes, as in `memory_limit`; None = no enforcement.
    process_limit: str | None = None
    #: The engine can run container images.
    images: bool = False


class NodeState(enum.StrEnum):
    """The state of a node, as the engine reports it."""

    #: The node accepts new replicas.
    UP = "UP"
    #: The node accepts no new replicas, and its running replicas should move to other nodes.
    DRAINING = "DRAINING"
    #: The engine found the node unfit. The node accepts no replicas for a while.
    QUARANTINED = "QUARANTINED"
    #: The cluster lost contact with the node a while ago, but does not count it as gone. Nothing new starts
    #: there, and running replicas continue.
    UNHEARD = "UNHEARD"
    #: The node stopped responding, or no longer exists.
    GONE = "GONE"


class SlotRequest(Struct, frozen=True):
    """The requirements of one replica."""

    replica: ReplicaId
    hostname: str
    #: Node to run on. If the cluster chooses nodes (`NodesChosen`), this is only a preference.
    node: str
    #: Number of devices that the replica uses exclusively.
    accelerators: int = 0
    #: Number of the node's vCPUs to reserve; None = no reservation.
    vcpus: float | None = None
    memory_bytes: int = 0
    machine: MachineWanted = MachineWanted()
    #: Reference of the container image; None = no image. For engines whose cluster pulls images
    #: (`BringsImages`).
    image: str | None = None
    #: The job's project; "" = unknown. A cluster may run each project's programs as a separate user.
    project: str = ""
    #: Port at which running peers expect the replica, so that it must get this port; None = any port.
    port: int | None = None
    #: Whether the replica has a node. If False, it has lost its node and waits for another one: `node` is the
    #: former node, and its hostname, address and port must not change, because its peers know them.
    is_placed: bool = True
    #: Time limit of the job in seconds, for all attempts together; None = unknown.
    seconds: int | None = None


class Slot(Struct, frozen=True):
    """The position where one replica runs: its node, address, port, devices and users."""

    replica: ReplicaId
    node: str
    hostname: str
    #: Hostname or IP address for the replica's peers.
    host: str
    #: The IP address of `host`.
    address: str
    #: Port that the replica may bind at `address`.
    port: int
    #: Value of CUDA_VISIBLE_DEVICES. None: no accelerators were requested. "": accelerators were requested,
    #: but the node has none.
    devices: str | None = None
    #: First user ID of the range of the machine's user IDs that is reserved for the replica; None = no range.
    users: int | None = None
    #: Loopback address of the replica's endpoint, for an `address` that other machines can reach. None = the
    #: endpoint listens on `address`.
    endpoint: str | None = None


class ReplicaReport(Struct, frozen=True):
    """An observation of a replica, as the event of its job.

    - ReplicaStarted: its main process started.
    - ReplicaExited: its main process ended, and log and attempt record are sealed and synced.
    - ReplicaLost: its shim ended without a record (the program died with the shim), or it never started.
    - ReplicaNoted: for plans with `reduction`, and for disks (`core.lifecycle.notes`) if the engine measures
      the resources of replicas. Each note is reported at least once before the end of the replica's run, and
      again after a restart of the service.
    """

    job_uid: JobUid
    event: ReplicaEvent


class LinesWritten(Struct, frozen=True):
    """New log lines of a replica can be read. At most one event per replica is emitted in about 20 ms."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId
    lines: int


class MetricsWritten(Struct, frozen=True):
    """A new measurement of a trial's primary replica can be read. Emitted only if `watch_metrics` of the
    launch plan is set, and combined like `LinesWritten`. The last measurement is readable before the
    replica's end is reported, even without an event."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId


class CapacityChanged(Struct, frozen=True):
    """The result of `capacity` has changed. Nodes joined or left, or the use by other software changed."""

    nodes: tuple[Node, ...]


class NodeChanged(Struct, frozen=True):
    """A node's state has changed. The loss of each replica on a GONE node is reported separately, after the
    engine has ensured that the replica is dead (fencing)."""

    node: str
    state: NodeState
    #: The reason for the state, or a remaining problem of a node that is UP; None = no reason.
    cause: str | None


class Fault(enum.StrEnum):
    """The effect of `inject` on a replica."""

    #: An external SIGKILL ends all processes of the replica.
    KILL = "kill"
    #: The main process dies as if it had exceeded its memory limit.
    OOM = "oom"
    #: The main process gets SIGSEGV.
    SEGV = "segv"


class StartWaits(Struct, frozen=True):
    """The start of an attempt's programs waits, for the reason `delay`; None = it no longer waits.

    Emitted when the reason changes (at most every few seconds per attempt), and again after a restart of the
    service. Engines without such waits never emit it.
    """

    job_uid: JobUid
    attempt: int
    delay: Delay | None


class NodesChosen(Struct, frozen=True):
    """A cluster with its own queue has given these nodes, instead of the requested ones, to an attempt's
    replicas. Emitted before any of the replicas starts. Emitted again after a restart of the service, for
    replicas that have not ended. Engines that use the requested nodes never emit it."""

    job_uid: JobUid
    attempt: int
    #: Pairs of a replica and the node that the cluster gave it.
    nodes: tuple[tuple[ReplicaId, str], ...]


EngineEvent = (
    ReplicaReport | LinesWritten | MetricsWritten | NodeChanged | CapacityChanged | StartWaits | NodesChosen
)


class ServiceAccess(Struct, frozen=True):
    """The access of programs to the service's APIs and buckets. Paths are absolute."""

    #: Unix socket of the bucket process, for the endpoints of replicas; None = replicas have no endpoint.
    storage_socket: Path | None = None
    #: Unix socket of the service's REST API, for the endpoints of replicas; None = the endpoints serve no
    #: Google hosts.
    rest_socket: Path | None = None
    #: Unix socket of the service's gRPC API, for the endpoints of replicas; None = no gRPC.
    grpc_socket: Path | None = None
    #: PEM file with the key and certificate chain with which endpoints serve Google's hosts; None = the
    #: endpoints do not serve them.
    certificate: Path | None = None
    #: File of the certificate authorities that programs trust if endpoints serve Google's hosts.
    trust: Path | None = None


NO_ACCESS = ServiceAccess()
"""Access to neither APIs nor buckets."""


class ProgramRules(Struct, frozen=True):
    """The operator's rules for all programs, regardless of the engine (docs/settings.md)."""

    #: Required sandbox level; None = the strongest that works.
    isolation: str | None = None
    #: Maximum number of processes of a replica; None = unlimited.
    max_processes: int | None = None
    #: Whether to stop a replica whose files exceed its disk.
    enforce_disk: bool = False
    #: Paths that programs may read inside hidden directories.
    visible: tuple[str, ...] = ()
    #: How long to keep the files of failed replicas, in nanoseconds; None = keep none.
    autopsy_ttl: int | None = None


class SecretSource(Protocol):
    """Resolves the secret marks in launch plans (`core.secrets`) just before a start. An engine passes the
    values to the program only, and never stores or shows them."""

    async def values(self, project_id: str, refs: Collection[SecretRef]) -> Mapping[SecretRef, str]:
        """Return the value of each reference. Must be fast, because a start waits for it. Raises
        SecretMissing, LaunchRejected (a secret cannot be decrypted), EngineUnavailable."""
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
        """Release a node from quarantine before its time. Has no effect on other nodes. Raises
        EngineUnavailable."""
        ...


@runtime_checkable
class BringsImages(Protocol):
    """Optional interface of an engine whose cluster pulls the container images of jobs (`SlotRequest.image`)
    and runs programs in the unchanged images."""

    @property
    def read_image(self) -> Callable[[str], Image] | None:
        """A function that accepts an image reference. It returns the image's default command, or the reason
        why the image is unreadable. The function blocks. None = the cluster does not pull images."""
        ...


@runtime_checkable
class TakesMemory(Protocol):
    """Optional interface of an engine whose own processes use part of the memory that it requests from a
    cluster."""

    @property
    def memory_beside(self) -> int:
        """Maximum memory of the engine's processes on a node per replica, in bytes, in addition to the
        replica's own memory."""
        ...


class Engine(Protocol):
    """The interface of all engines. All methods are idempotent per (job_uid, attempt[, replica,
    incarnation]), and their effects survive a restart of the service: the state is on disk or in the cluster,
    never only in memory."""

    def capabilities(self) -> Capabilities: ...

    @property
    def streams(self) -> Streams:
        """The replicas' logs and measurements, which are readable even before `start`, and as long as a job's
        log is kept. A line is readable before its `LinesWritten` is emitted. The whole stream is readable
        before the replica's end is reported."""
        ...

    async def start(self) -> None:
        """Start the engine and adopt the replicas of an earlier service. `watch` then reports every replica
        that is live or whose end was not reported: started, exited or lost."""
        ...

    async def close(self) -> None:
        """Release all resources of this process without stopping any replica."""
        ...

    async def capacity(self) -> tuple[Node, ...]: ...

    async def allocate(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        """Return slots (positions on nodes) for the whole gang or for none of it. Repeated calls return the
        same slots. A replica whose request specifies another node moves there with its hostname and without
        its files. This requires that its processes have ended. Raises EngineUnavailable (also if a process of
        a moving replica is alive), LaunchRejected (also for a node that the engine never had), StartFailed.
        """
        ...

    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        """Start programs in their slots, all at once. Returns when each start was requested; `watch` reports
        the results. If the run (incarnation) of a launch plan already started, ended or was stopped, its
        state is only reported again. Raises EngineUnavailable. Raises LaunchRejected, and starts no program,
        if a replica has no slot."""
        ...

    async def stop(self, job_uid: JobUid, attempt: int, grace: int, notice: StopNotice | None = None) -> None:
        """Send SIGTERM to every live replica of the attempt, and SIGKILL after `grace` ns. Returns
        immediately.

        After that, the end of the latest run (incarnation) of every allocated replica is reported, even if it
        was reported before. A replica without a launch never starts: its incarnation 1 is reported lost with
        cause "never started". Does nothing if the attempt has no slots. `notice`: the notice that the
        programs' metadata server reports from now on.
        """
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
        """Send SIGTERM to one run (incarnation) of a replica, and SIGKILL after `grace` ns. Returns
        immediately. After that, its end is reported, even if it was reported before. A run that has not
        started never starts, and is reported lost with cause "never started". Other runs are not affected.
        Raises LaunchRejected if the replica has no slot."""
        ...

    async def inject(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, fault: Fault
    ) -> None:
        """Inject a fault into one run (incarnation) of a replica. `watch` reports the effect. Does nothing if
        the run has ended."""
        ...

    async def allocations(self) -> tuple[tuple[JobUid, int], ...]:
        """Return every (job_uid, attempt) whose replicas have slots (positions on nodes) now, in any order,
        for reconciliation after a crash."""
        ...

    async def release(self, job_uid: JobUid, attempt: int) -> None:
        """Release the slots (positions on nodes) of an attempt's replicas and delete their scratch files.
        Logs remain. Called only after all replicas have ended."""
        ...

    def watch(self) -> AsyncIterator[EngineEvent]:
        """Yield events in the order of their observation. Per replica, the order is: started, then lines,
        metrics and notes to users, then exited or lost. Supports one reader."""
        ...
