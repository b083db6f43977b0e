"""The engine port is what every engine implements: it gives an admitted gang its slots and reports what
happens in them.

One slot is one replica's "VM": a node, resources, an address. The verdict on a replica comes from its
shim's record, never from an engine. Conformance suite: tests/engines/conformance.
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
    """The engine cannot answer now; the same call may be made again."""


class StillWaiting(EngineUnavailable):
    """The request has begun, and waits for something that `watch` reports (`StartWaits`)."""


class LevelUnavailable(Exception):
    """This machine cannot give the isolation that the operator demands, or whether it can is not known. The
    message says why, and which levels work."""


class LaunchRejected(Exception):
    """The engine will never run this. The message says why and what would run."""


class SecretMissing(LaunchRejected):
    """A secret that the job names does not exist any more. That counts as the job's failure, not the
    service's."""


class StartFailed(Exception):
    """The attempt cannot be started, though neither a node nor the request is at fault; another attempt may
    succeed."""


class Capabilities(Struct, frozen=True):
    """What the engine can promise on this host; `doctor` and the docs show it."""

    #: Each replica has its own processes, its own address, and port 2222 to itself.
    process_namespace: bool
    #: Replicas find each other by their hostnames.
    stable_hostname: bool
    #: How the memory limit is enforced: "kernel" (control groups) or "polling" (use is read several times a
    #: second; the same verdict, a moment later).
    memory_limit: str = "kernel"
    #: The files of failed replicas are kept (`core.terminals`).
    autopsies: bool = False
    #: Sandbox level that keeps programs apart, in the engine's own terms.
    isolation: str = ""
    #: (level, why it does not work here) of each stronger level.
    not_stronger: tuple[tuple[str, str], ...] = ()
    #: Like `memory_limit`; None = there is none.
    process_limit: str | None = None
    #: Container images can be run.
    images: bool = False


class NodeState(enum.StrEnum):
    """What an engine says of a node."""

    #: It accepts new replicas.
    UP = "UP"
    #: It accepts none, and replicas are to leave it.
    DRAINING = "DRAINING"
    #: The engine found it unfit, and it accepts none for a while.
    QUARANTINED = "QUARANTINED"
    #: The cluster has not heard of it for a while and has not given it up: nothing new starts there, and what
    #: runs there is left alone.
    UNHEARD = "UNHEARD"
    #: It stopped answering, or no longer exists.
    GONE = "GONE"


class SlotRequest(Struct, frozen=True):
    """What one replica needs."""

    replica: ReplicaId
    hostname: str
    #: Node that it is to run on; only a preference where the cluster chooses (`NodesChosen`).
    node: str
    #: Number of devices that it gets for itself.
    accelerators: int = 0
    #: How many of the node's vCPUs are reserved for it; None = whatever is left.
    vcpus: float | None = None
    memory_bytes: int = 0
    machine: MachineWanted = MachineWanted()
    #: Reference of the container image that its program runs in; None = in none. For engines whose cluster
    #: brings images itself (`BringsImages`).
    image: str | None = None
    #: The job's project; "" = not known. A cluster may run each project's programs as a user of its own.
    project: str = ""
    #: Port at which running peers already look for it, so that it must get the same; None = none yet.
    port: int | None = None
    #: False: it has lost its node and waits for another. `node` is then the former one, and of a slot that it
    #: has, only what peers were told has to stay.
    is_placed: bool = True
    #: Seconds for which its job may run, over all attempts; None = not known.
    seconds: int | None = None


class Slot(Struct, frozen=True):
    """A replica's place."""

    replica: ReplicaId
    node: str
    hostname: str
    #: Hostname or literal address by which peers reach it.
    host: str
    #: The IP behind it.
    address: str
    #: Port that it may bind there.
    port: int
    #: Value of CUDA_VISIBLE_DEVICES; None = it asked for no accelerators, "" = it asked and there are none.
    devices: str | None = None
    #: First of the machine's user ids that are reserved for it; None = none are.
    users: int | None = None
    #: The loopback address of its endpoint, where `address` is one that other machines reach; None =
    #: `address`.
    endpoint: str | None = None


class ReplicaReport(Struct, frozen=True):
    """What was seen of a replica, as the event of its job.

    ReplicaStarted: its main process was started. ReplicaExited: that ended, and log and attempt record are
    sealed and synced. ReplicaLost: its shim is gone without a record (its program died with it), or never
    came up. ReplicaNoted: only of plans that say `reduction`, and of disks (`core.lifecycle.notes`) if
    the engine looks at what replicas use; each note is reported at least once before the incarnation's end
    is, the same ones again after a restart of the service.
    """

    job_uid: JobUid
    event: ReplicaEvent


class LinesWritten(Struct, frozen=True):
    """New log lines of a replica can be read. Events are coalesced to at most one in about 20 ms per
    replica."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId
    lines: int


class MetricsWritten(Struct, frozen=True):
    """A new measurement of a trial's primary replica can be read. Events are coalesced like `LinesWritten`
    and come only for plans with `watch_metrics`. The last measurement is readable before the replica's end is
    reported, even if no event announced it."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId


class CapacityChanged(Struct, frozen=True):
    """The result of `capacity` has changed: nodes have come or gone, or others use more or less of them."""

    nodes: tuple[Node, ...]


class NodeChanged(Struct, frozen=True):
    """A node's state has changed. Each replica on a node that is GONE is reported lost separately, and only
    once it is certain to be dead (the fence)."""

    node: str
    state: NodeState
    #: Why it is in that state; for a node that is UP, what is nevertheless wrong with it; None = nothing.
    cause: str | None


class Fault(enum.StrEnum):
    """What `inject` does to a replica."""

    #: All its processes die by SIGKILL from outside.
    KILL = "kill"
    #: Its main process dies as if it had exceeded its memory limit.
    OOM = "oom"
    #: Its main process gets SIGSEGV.
    SEGV = "segv"


class StartWaits(Struct, frozen=True):
    """The start of an attempt's programs waits for `delay`; None = it waits no more. The engine emits this
    when the reason changes, at most every few seconds per attempt, and again after a restart of the service.
    An engine that never makes a start wait never emits it."""

    job_uid: JobUid
    attempt: int
    delay: Delay | None


class NodesChosen(Struct, frozen=True):
    """A cluster with its own queue has given an attempt's replicas these nodes instead of the requested ones.
    The engine emits this before it reports any of them started, and again after a restart of the service for
    replicas that have not ended. An engine that takes the requested nodes never emits it."""

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
    """How programs reach the service and its buckets. Paths are absolute."""

    #: Unix socket of the bucket process, for the endpoints of replicas; None = they get no endpoint.
    storage_socket: Path | None = None
    #: Unix socket of the service's REST API, for the same endpoints; None = they answer for none of Google's
    #: hosts.
    rest_socket: Path | None = None
    #: Unix socket of the service's gRPC API, likewise.
    grpc_socket: Path | None = None
    #: PEM file with the key and chain that endpoints show for Google's hosts; None = those are not served.
    certificate: Path | None = None
    #: File of the certificate authorities that programs trust in that case.
    trust: Path | None = None


NO_ACCESS = ServiceAccess()
"""Programs reach neither."""


class ProgramRules(Struct, frozen=True):
    """The operator's rules for all programs, whatever the engine (docs/settings.md)."""

    #: The sandbox level that is demanded; None = the strongest that works.
    isolation: str | None = None
    #: How many processes a replica may have; None = any number.
    max_processes: int | None = None
    #: A replica whose files take more than its disk is ended.
    enforce_disk: bool = False
    #: Paths that programs may read even inside directories that are hidden from them.
    visible: tuple[str, ...] = ()
    #: Nanoseconds for which the files of failed replicas are kept; None = they are not.
    autopsy_ttl: int | None = None


class SecretSource(Protocol):
    """Resolves the secrets that launch plans refer to by marks (`core.secrets`), just before a start. An
    engine passes the values to the program and to nothing that is stored or shown."""

    async def values(self, project_id: str, refs: Collection[SecretRef]) -> Mapping[SecretRef, str]:
        """Return the value of each reference. A start waits for this, so that it must be fast. Raises
        SecretMissing, LaunchRejected (a secret cannot be decrypted), EngineUnavailable."""
        ...


@runtime_checkable
class LogWriter(Protocol):
    """Optional part of an engine: it can write lines into the logs of its programs."""

    async def write_log(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, lines: Sequence[str]
    ) -> None:
        """Write lines into a live replica's log as if its program had printed them. Raises
        EngineUnavailable."""
        ...


@runtime_checkable
class KeepsQuarantine(Protocol):
    """Optional part of an engine: it puts nodes that it found unfit into QUARANTINED."""

    async def readmit(self, node: str) -> None:
        """Take a node out of quarantine before its time; any other node is left as it is. Raises
        EngineUnavailable."""
        ...


@runtime_checkable
class BringsImages(Protocol):
    """Optional part of an engine: its cluster pulls the container images of jobs (`SlotRequest.image`), and
    programs run in them unchanged."""

    @property
    def read_image(self) -> Callable[[str], Image] | None:
        """Reads what an image, by its reference, starts by itself, or why that cannot be read; blocks. None =
        the cluster does not pull images."""
        ...


@runtime_checkable
class TakesMemory(Protocol):
    """Optional part of an engine: its own processes count against the memory that it requests."""

    @property
    def memory_beside(self) -> int:
        """The most bytes that they take on a node per replica, beyond the replica's own memory."""
        ...


class Engine(Protocol):
    """What every engine implements. All methods are idempotent per (job_uid, attempt[, replica, incarnation])
    and survive a restart of the service: state is found again on disk or in the cluster, never only in
    memory."""

    def capabilities(self) -> Capabilities: ...

    @property
    def streams(self) -> Streams:
        """The replicas' logs and measurements. They are readable before `start`, and for as long as a
        job's log is kept. A line is readable before its `LinesWritten` is emitted, and the whole stream
        before the replica's end is reported."""
        ...

    async def start(self) -> None:
        """Bring the engine up and adopt what an earlier service left running: every live or unreported
        replica is reported again through `watch` (started, exited or lost)."""
        ...

    async def close(self) -> None:
        """Release everything that this process holds without stopping any replica."""
        ...

    async def capacity(self) -> tuple[Node, ...]: ...

    async def allocate(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        """Return slots for the whole gang or none. The same call again returns the same slots; a replica for
        which it names another node moves there, with its hostname and without its files, if none of its
        processes lives. Raises EngineUnavailable (also if a process of a replica that is to move lives),
        LaunchRejected (also if a node is named that the engine never had), StartFailed."""
        ...

    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        """Start programs in their slots, all at once. Returns when each start was handed over; the outcome
        of each comes through `watch`. A plan whose incarnation already started, ended or was stopped is
        not started again, only reported again. Raises LaunchRejected if a replica has no slot, and then
        starts none of the programs; EngineUnavailable."""
        ...

    async def stop(
        self, job_uid: JobUid, attempt: int, grace: int, notice: StopNotice | None = None
    ) -> None:
        """Send SIGTERM to every live replica of the attempt, and SIGKILL after `grace` ns. Of every replica
        named in `allocate` the end of its latest incarnation is then reported, again if it has ended already.
        One that was never launched never will be: its incarnation 1 is reported lost with cause "never
        started". Does nothing if the attempt has no slots. `notice`: what the programs' metadata server
        reports from now on. Returns at once."""
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
        """Send SIGTERM to one incarnation, and SIGKILL after `grace` ns; its end is reported, again if it has
        ended already. One that never started never will, and is reported lost with cause "never started".
        Other incarnations are not touched. Raises LaunchRejected if the replica has no slot. Returns at
        once."""
        ...

    async def inject(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, fault: Fault
    ) -> None:
        """Inject a fault into one incarnation; its effect comes through `watch`. Does nothing if the
        incarnation has ended."""
        ...

    async def allocations(self) -> tuple[tuple[JobUid, int], ...]:
        """Return every (job_uid, attempt) that holds slots now, in no order, for reconciliation after a
        crash."""
        ...

    async def release(self, job_uid: JobUid, attempt: int) -> None:
        """Give back the slots and remove their scratch files (logs stay). Called only after all replicas have
        ended."""
        ...

    def watch(self) -> AsyncIterator[EngineEvent]:
        """Yield events in the order in which they were seen; per replica: started, lines, metrics and notes,
        then exited or lost. There is one reader."""
        ...
