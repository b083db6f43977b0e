"""Declares the interface of a cluster, such as Slurm or Kubernetes. `RemoteEngine` uses it to allocate nodes
to attempts and to start agents on the nodes."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from trainshed.core.capacity import Delay, MachineWanted, Node
from trainshed.core.failure.evidence import Cause
from trainshed.core.held import Leftover
from trainshed.core.names import JobUid
from trainshed.engines.port import NodeState


class ClusterRefused(Exception):
    """The cluster rejected a request permanently. The message contains the cluster's reason and the accepted
    values."""


class ClusterUnavailable(Exception):
    """The cluster did not respond, or it cannot grant the request now. The caller may retry. The message
    contains the cluster's reason."""


class AgentEnded(ClusterUnavailable):
    """A process ended before it became an agent. The message contains the process's last output."""


class AgentsMayLive(ClusterUnavailable):
    """The cluster no longer lists an allocation, and its end was not observed. Its programs may run until its
    agents have had no contact with the service for a whole lease, and end them."""


class Owner(Struct, frozen=True):
    """The user and the cluster account of a project's allocations."""

    #: User on the nodes; "" = the service's own user.
    user: str = ""
    #: Account that the cluster charges; None = the cluster's default.
    account: str | None = None


SERVICE_OWNER = Owner()


class AllocationName(Struct, frozen=True, order=True, rename={"index": "part"}):
    """The name of an allocation, by which the service identifies it.

    The cluster's own job id is not used, because some clusters reuse ids after a crash. The name includes the
    user, because other users may give their jobs the same name.
    """

    #: Id of this service; unique among the services of the cluster.
    service: str
    job_uid: JobUid
    attempt: int
    #: Number of the allocation within its attempt. 0 = the first nodes of the gang. Higher numbers belong to
    #: further nodes, for example of replicas that moved.
    index: int
    #: The allocation's user (`Owner.user`), which is not part of `str(name)`.
    user: str = ""

    def __str__(self) -> str:
        return f"trainshed-{self.service}-{self.job_uid}-{self.attempt}-{self.index}"

    @staticmethod
    def parse(name: str) -> "AllocationName":
        """Parse the name of an allocation of the service's own user. Raises ValueError if the text is not an
        allocation's name."""
        prefix, service, *numbers = name.split("-")
        if prefix != "trainshed" or len(numbers) != 3 or not all(map(str.isdecimal, numbers)):
            raise ValueError(f"{name!r} is not the name of an allocation, such as trainshed-SERVICE-7-1-0")
        uid, attempt, index = map(int, numbers)
        return AllocationName(service, JobUid(uid), attempt, index)


class NodeNeed(Struct, frozen=True):
    """The total resources that the replicas of an attempt need on one node."""

    node: str
    replicas: int
    vcpus: float
    memory_bytes: int
    #: Number of devices.
    accelerators: int = 0
    #: Machine type of the replicas. If replicas with the same route have several machine types, this is the
    #: machine type of any of these replicas.
    machine: MachineWanted = MachineWanted()
    owner: Owner = SERVICE_OWNER
    #: Maximum run time of the job in seconds; None = unknown.
    seconds: int | None = None
    #: Name of the replica (such as workerpool0-1), and its hostname, if each replica has its own allocation
    #: (`RemoteOptions.apart`).
    replica: str = ""
    hostname: str = ""
    #: Container image of `replica`; None = the replica uses no image of the job.
    image: str | None = None
    #: Number of replicas in the gang of `replica`.
    gang_size: int = 1


class Allocation(Struct, frozen=True):
    """Resources that the cluster granted to an attempt."""

    name: AllocationName
    #: The cluster's own id of the allocation.
    cluster_id: str
    nodes: tuple[str, ...]


class NodeReport(Struct, frozen=True):
    """The state of a node, as reported by the cluster."""

    #: The node. Its field `others` contains the resources that are in use there, except those of this
    #: service's allocations.
    node: Node
    state: NodeState
    #: The cluster's reason why the node is not UP; None = the node is UP, or the cluster gives no reason.
    cause: str | None = None
    #: Name or address at which other nodes reach this node; None = the node's name.
    address: str | None = None
    #: The node is GONE, but the cluster still waits for its return, and programs there may be running.
    is_awaited: bool = False


class ClusterReport(Struct, frozen=True):
    """The result of one query of the cluster."""

    nodes: tuple[NodeReport, ...]
    #: All allocations of this service that have resources. The value for an allocation is the set of nodes on
    #: which one of its agents is known to run.
    agents: Mapping[AllocationName, frozenset[str]]
    #: Start time of the query in seconds of the monotonic clock. Clusters that report changes without queries
    #: set the current time.
    queried_at: float
    #: Why pending `acquire` calls are not granted yet, according to the cluster. If a reason changes, `watch`
    #: yields a new report.
    delays: Mapping[AllocationName, Delay] = field(default_factory=dict[AllocationName, Delay])
    #: This service's allocations without running processes: pending requests, and allocations that have ended
    #: but were not released.
    idle: frozenset[AllocationName] = frozenset()
    #: Allocations whose processes the cluster has suspended. Each value is the reason: a sentence without its
    #: full stop.
    suspensions: Mapping[AllocationName, str] = field(default_factory=dict[AllocationName, str])
    #: Allocations that may reach their time limit before another attempt with the same needs could finish. No
    #: attempt may adopt them.
    old: frozenset[AllocationName] = frozenset()


class AllocationEnd(Struct, frozen=True):
    """The cause of an allocation's end, if this service did not request the end."""

    loss: Cause
    #: The cause as one sentence, without its full stop.
    why: str


class Cluster(Protocol):
    """A cluster that runs agents. All methods except `watch` are idempotent, even after a restart of the
    service. No method blocks the event loop."""

    async def start(self) -> None:
        """Query the cluster for the first time. Raises ClusterUnavailable, or ClusterRefused if the cluster
        can never be queried."""
        ...

    async def close(self) -> None:
        """Close this process's connections to the cluster. Allocations and agents continue to exist."""
        ...

    def report(self) -> ClusterReport:
        """Return the result of the last query."""
        ...

    def watch(self) -> AsyncIterator[ClusterReport]:
        """Yield each report that differs from the previous report, until `close` is called. Only one caller
        is allowed at a time."""
        ...

    def detach(self) -> None:
        """Leave pending requests in the cluster's queue when this service process ends. The next service
        process continues to wait for the requests."""
        ...

    async def owner(self, project: str) -> Owner:
        """Return the owner of a project's allocations: the user on the nodes, and the cluster account. Raises
        ClusterRefused if the project has no user, or if that user does not exist."""
        ...

    async def acquire(
        self, name: AllocationName, needs: Sequence[NodeNeed], *, avoid: Collection[str] | None = None
    ) -> Allocation:
        """Allocate the requested resources, all or nothing.

        An existing allocation of that name is returned unchanged. The call waits until the cluster grants the
        request. A cancelled call allocates nothing.

        Args:
            avoid: If set, the cluster chooses the nodes, and avoids these. The first call for a name decides.

        Raises:
            ClusterRefused, ClusterUnavailable, AgentEnded.
        """
        ...

    async def start_agent(self, allocation: Allocation, node: str, argv: Sequence[str], stdin: bytes) -> None:
        """Start `argv` on a node of an allocation. The command is found on the node's PATH.

        Returns when the process confirms that it has read its input (`messages.DOCUMENT_READ`). After that,
        the agent does not depend on the service's process.

        Args:
            stdin: Standard input of the process. No other channel carries secrets.

        Raises:
            ClusterUnavailable, AgentEnded.
        """
        ...

    async def allocation_end(self, name: AllocationName) -> AllocationEnd | None:
        """Return the cause of the end of an allocation that the reports no longer contain; None = unknown.
        Raises ClusterUnavailable if the cause is not decided yet or the cluster does not respond. Raises
        AgentsMayLive if programs of the allocation may still run."""
        ...

    async def pending_end(self, name: AllocationName) -> AllocationEnd | None:
        """Return the expected end of an allocation whose agent received SIGTERM from the cluster; None =
        unknown. Waits for a few seconds, because the cluster may record the cause only after the signal."""
        ...

    async def require_reachable(self, name: AllocationName) -> None:
        """Raise ClusterUnavailable if a `release` of that allocation would fail now.

        Call this before the allocation's agents are shut down. Running agents can release the allocation even
        if this service is killed.
        """
        ...

    async def release(self, name: AllocationName) -> None:
        """Stop all processes of an allocation and release it. Does nothing if the allocation does not exist.
        Raises ClusterUnavailable."""
        ...

    async def wait_durable(self, names: Collection[AllocationName]) -> tuple[Leftover, ...]:
        """Wait until releases survive a crash of the cluster's controller, for a limited time. Call this
        before `close`.

        Args:
            names: Allocations whose release has failed so far.

        Returns:
            The allocations that may still exist on the cluster.
        """
        ...
