"""The engine port: slots for an admitted gang, and what is seen of them.

One slot is one replica's "VM": a node, resources, an address. The verdict on a replica comes from its
shim's record, never from an engine. Conformance suite: `trainshed.engines.conformance`.
"""

import enum
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct

from trainshed.core.capacity import NOBODY_ELSE, Delay, OthersUse
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.replica_events import ReplicaEvent
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.routes import ANYBODY, Acceptance, MachineWanted
from trainshed.core.secrets import SecretRef
from trainshed.core.streams import Streams


class EngineUnavailable(Exception):
    """The engine cannot answer now; the same call may be made again."""


class StillWaiting(EngineUnavailable):
    """What was asked for has begun, and waits for something that `watch` tells of (`StartWaits`)."""


class LevelUnavailable(Exception):
    """The isolation that an operator demands cannot be had on this machine, or nobody can tell. The message
    says why, and what can."""


class LaunchRejected(Exception):
    """The engine will never run this. The message says why and what would run."""


class SecretMissing(LaunchRejected):
    """A secret that the job names is not there any more. That is the job's affair, not the service's."""


class StartFailed(Exception):
    """The attempt cannot be started, through no fault of a node or of what was asked for; another attempt may
    be."""


class Capabilities(Struct, frozen=True):
    """What the engine can promise on this host; `doctor` and the docs show it."""

    enforced_memory: bool
    oom_verdict: bool
    process_namespace: bool
    stable_hostname: bool
    #: "loopback" (own 127.x.y.z and hostname per replica) or "literal" (127.0.0.1, own ports).
    addresses: str
    durable: bool
    #: How it is held: "kernel" (control groups) or "polling" (looked at several times a second; the same
    #: verdict, a moment later).
    memory_limit: str = "kernel"
    #: It offers `engines.terminals`.
    terminals: bool = False
    #: What replicas leave that fail is kept (`engines.terminals`).
    autopsies: bool = False
    #: How far programs are kept apart, a level of the engine's.
    isolation: str = ""
    #: (level, why it does not work here) of those that would keep them further apart.
    not_stronger: tuple[tuple[str, str], ...] = ()
    #: Like `memory_limit`; "" = there is none.
    process_limit: str = ""
    #: Container images can be run.
    images: bool = False


class Node(Struct, frozen=True):
    """A place where replicas run."""

    name: str
    vcpus: float
    memory_bytes: int
    #: (public type, count) of what it has; the type is "" for a GPU that no public type stands for.
    accelerators: tuple[tuple[str, int], ...] = ()
    #: What of all that others have now, and may give back.
    others: OthersUse = NOBODY_ELSE
    #: Which replicas may be placed there.
    accepts: Acceptance = ANYBODY
    #: Set on an entry that stands for a whole cluster that does not answer: why; "" = a real node.
    unreached: str = ""


class NodeState(enum.StrEnum):
    """What an engine says of a node."""

    #: It takes work.
    UP = "UP"
    #: The engine wants it left.
    DRAINING = "DRAINING"
    #: The engine found it unfit, and wants it left for a while.
    QUARANTINED = "QUARANTINED"
    #: The cluster has not heard of it for a while and has not given it up: nothing new starts there, and what
    #: runs there is left alone.
    UNHEARD = "UNHEARD"
    #: It stopped answering, or does not exist any more.
    GONE = "GONE"


class SlotRequest(Struct, frozen=True):
    """What one replica needs."""

    replica: ReplicaId
    hostname: str
    #: Where it is to be; a wish where the cluster chooses (`NodesChosen`).
    node: str
    #: How many devices it gets for itself.
    accelerators: int = 0
    #: Their public type; "" = it needs none.
    accelerator: str = ""
    #: What of the node is to be held for it; 0 = whatever is left.
    vcpus: float = 0
    memory_bytes: int = 0
    #: Public machine type; "" = not known.
    machine: str = ""
    #: Reference of the container image that its program runs in; "" = in none. For engines whose cluster
    #: brings images itself (`BringsImages`).
    image: str = ""
    #: The job's project; "" = not known. A cluster may run each project's programs as a user of its own.
    project: str = ""
    #: The job's service account; "" = the project's default one.
    service_account: str = ""
    #: Where programs that run look for it already, so that no other one will do; 0 = nowhere yet.
    port: int = 0
    #: False: it has lost its place, and waits for another one. `node` is where it was; of a slot that it has,
    #: only what others were told of it has to stay.
    is_placed: bool = True

    @property
    def wanted(self) -> MachineWanted:
        return MachineWanted(self.machine, self.accelerator if self.accelerators else "")


class Slot(Struct, frozen=True):
    """A replica's place."""

    replica: ReplicaId
    node: str
    hostname: str
    #: What peers use to reach it: hostname or literal address.
    host: str
    #: The IP behind it.
    address: str
    #: The one that it may bind there.
    port: int
    #: What CUDA_VISIBLE_DEVICES is for it; None = it asked for no accelerators, "" = it asked, and there are
    #: none.
    devices: str | None = None
    #: The first of the machine's user numbers that are its own; 0 = none are.
    users: int = 0
    #: The loopback address of its endpoint, where `address` is one that other machines reach; "" = `address`.
    endpoint: str = ""


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
    """New log lines of a replica can be read. Coalesced: at most one in about 20 ms per replica."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId
    lines: int


class MetricsWritten(Struct, frozen=True):
    """Something that a trial's primary has measured can be read. Coalesced like `LinesWritten`; only of plans
    that say `watch_metrics`. What was measured last is readable before the replica's end is reported, whether
    told or not."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId


class CapacityChanged(Struct, frozen=True):
    """What `capacity` returns is something else now: nodes have come or gone, or others use more or less of
    them."""

    nodes: tuple[Node, ...]


class NodeChanged(Struct, frozen=True):
    """A node's state is another one now. Of the replicas on a node that is GONE, each is reported lost by
    itself, as soon as it is certain that it is dead (the fence), not before."""

    node: str
    state: NodeState
    #: Why; of one that is UP what is wrong with it all the same, "" = nothing.
    cause: str


class Fault(enum.StrEnum):
    """What `inject` does to a replica."""

    #: All of it dies by SIGKILL from outside.
    KILL = "kill"
    #: Its main process dies as if of its memory limit.
    OOM = "oom"
    #: Its main process gets SIGSEGV.
    SEGV = "segv"


class StartWaits(Struct, frozen=True):
    """What programs of an attempt that have, or are to have, slots wait for before they start; None = they
    wait no more. Told when it is something else than before, of one attempt every few seconds at most; again
    after a restart of the service. Engines that never make anybody wait never tell it."""

    job_uid: JobUid
    attempt: int
    delay: Delay | None


class NodesChosen(Struct, frozen=True):
    """The nodes that a cluster with a queue of its own has given an attempt's replicas, in place of those
    that their requests named. Told before any of them is reported started, and again after a restart of the
    service, of replicas that have not ended. Engines that take the named nodes never tell it."""

    job_uid: JobUid
    attempt: int
    #: By replica.
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
    #: Unix socket of the service's REST API, likewise; None = it answers for none of Google's hosts.
    rest_socket: Path | None = None
    #: The same for gRPC.
    grpc_socket: Path | None = None
    #: Address of the REST API on this machine, for programs that cannot be led to it by Google's names; "" =
    #: none.
    rest_url: str = ""
    #: PEM file, key and chain, by which Google's hosts are served to programs; None = they are not.
    certificate: Path | None = None
    #: File of certificate authorities that programs are to believe then.
    trust: Path | None = None


NO_ACCESS = ServiceAccess()
"""Programs reach neither."""


class SecretSource(Protocol):
    """Where an engine learns the secrets that launch plans hold marks of (`core.secrets`), at the last
    moment. What it learns goes to the program and to nothing that is stored or shown."""

    async def values(self, project_id: str, refs: Collection[SecretRef]) -> Mapping[SecretRef, str]:
        """The value of each. Fast: a start waits for it. Raises SecretMissing, LaunchRejected (it cannot be
        opened), EngineUnavailable."""
        ...


@runtime_checkable
class LogWriter(Protocol):
    """What an engine may offer besides: lines of others in the logs of its programs."""

    async def write_log(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, lines: Sequence[str]
    ) -> None:
        """Write lines into a live replica's log as if its program had printed them. Raises
        EngineUnavailable."""
        ...


@runtime_checkable
class KeepsQuarantine(Protocol):
    """What an engine may offer besides: nodes that it found unfit are QUARANTINED."""

    async def readmit(self, node: str) -> None:
        """Let such a node take work again before its time is over; others are left as they are. Raises
        EngineUnavailable."""
        ...


class RegistryAccess(Struct, frozen=True):
    """How a service reads what images say of themselves."""

    #: File with log-ins, as `docker login` writes it; None = there is none.
    auth: Path | None = None
    #: Hosts (`HOST[:PORT]`) that are spoken to without TLS.
    insecure: tuple[str, ...] = ()


@runtime_checkable
class BringsImages(Protocol):
    """What an engine may offer besides: its cluster brings the container images of jobs
    (`SlotRequest.image`), and programs run in them as they are."""

    @property
    def registry_access(self) -> RegistryAccess | None:
        """None = its cluster does not."""
        ...


@runtime_checkable
class TakesMemory(Protocol):
    """An engine whose own processes count against the memory that it asks for."""

    @property
    def memory_beside(self) -> int:
        """Bytes that they take on a node at most for each replica there, beside the replica's own."""
        ...


class Engine(Protocol):
    """All methods are idempotent per (job_uid, attempt[, replica, incarnation]) and survive a restart of
    the service: state is found again on disk or in the cluster, never only in memory."""

    def capabilities(self) -> Capabilities: ...

    @property
    def streams(self) -> Streams:
        """What comes home from the replicas beside events. Readable before `start`, and for as long as a
        job's log is kept. A line is readable before `LinesWritten` tells of it, and all of a stream before
        the replica's end is reported."""
        ...

    async def start(self) -> None:
        """Bring the engine up and adopt what an earlier service left running: every live or unreported
        replica is reported again through `watch` (started, exited or lost)."""
        ...

    async def close(self) -> None:
        """Let go of everything without stopping any replica."""
        ...

    async def capacity(self) -> tuple[Node, ...]: ...

    async def allocate(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        """Slots for the whole gang or none. The same call again returns the same slots; a replica for which
        it names another node moves there, with its hostname and without its files, if nothing of it lives.
        Raises EngineUnavailable (something of a replica that is to move lives, too), LaunchRejected,
        StartFailed."""
        ...

    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        """Start programs in their slots, all at once. Returns when each start was handed over; the outcome
        of each comes through `watch`. A plan whose incarnation already started, ended or was stopped is
        not started again, only reported again."""
        ...

    async def stop(self, job_uid: JobUid, attempt: int, grace: int) -> None:
        """SIGTERM to every live replica of the attempt, SIGKILL after `grace` ns. Every replica named in
        `allocate` is then reported: exited, or lost with cause "never started". Returns at once."""
        ...

    async def stop_replica(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, grace: int
    ) -> None:
        """SIGTERM to one incarnation, SIGKILL after `grace` ns; its end is reported, again if it is over
        already. If it never started it never will, and is reported lost with cause "never started". Other
        incarnations are not touched. Returns at once."""
        ...

    async def inject(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        fault: Fault,
    ) -> None:
        """Do a fault to one incarnation; what comes of it is seen through `watch`. Nothing if it is over."""
        ...

    async def drop_reducers(
        self, job_uid: JobUid, attempt: int, reducers: Collection[ReplicaId]
    ) -> None:
        """Tell every replica of the attempt that has a part in a Reduction Server, whether it runs or is
        still to start, which `reducers` will not come back: the file that `core.reduction.LOST_FILE` names
        holds their HOST:PORT, one a line, all that were ever lost in the attempt. Nothing if it has no
        slots."""
        ...

    async def allocations(self) -> tuple[tuple[JobUid, int], ...]:
        """Every (job_uid, attempt) that holds slots now, in no order; for reconciliation after a crash."""
        ...

    async def release(self, job_uid: JobUid, attempt: int) -> None:
        """Forget the slots and remove their scratch files (logs stay). Only after all are over."""
        ...

    def watch(self) -> AsyncIterator[EngineEvent]:
        """Events in the order seen, per replica: started, lines, metrics and notes…, exited|lost. One
        reader."""
        ...
