"""Declares what a cluster has to do so that `RemoteEngine` can run replicas on its nodes: hold resources for
attempts, and start a process on each held node."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from trainshed.core.capacity import Delay, MachineWanted, Node
from trainshed.core.failure.evidence import Cause
from trainshed.core.held import Leftover
from trainshed.core.names import JobUid
from trainshed.engines.port import NodeState


class ClusterRefused(Exception):
    """The cluster will never grant this. The message is the cluster's own, and says what it would grant."""


class ClusterUnavailable(Exception):
    """The cluster cannot answer, or cannot grant this now. The same call may be made again. The message is
    the cluster's reason."""


class AgentEnded(ClusterUnavailable):
    """An agent's process has ended before it became the agent, and nothing of it runs. The message says what
    is known of its end, above all its last output."""


class MayLive(ClusterUnavailable):
    """The cluster no longer knows a hold whose end was not observed: programs there may live until their
    agent's lease ends."""


class Owner(Struct, frozen=True):
    """The user and account by which a project's jobs hold nodes and run there."""

    #: User on the nodes; "" = the service's own.
    user: str = ""
    #: Account that the cluster charges; None = the cluster's default.
    account: str | None = None


THE_SERVICE = Owner()


class HoldName(Struct, frozen=True, order=True):
    """The identity of a hold. A cluster's own job id does not suffice, because some clusters reuse ids after
    a crash; nor does the name's text alone, because other users may give their jobs the same name."""

    #: Tells this service from others that use the cluster.
    service: str
    job_uid: JobUid
    attempt: int
    #: Number of the hold: 0 = nodes that the gang began with; later ones are for replicas that had to move.
    part: int
    #: Its user (`Owner.user`), which is not part of its text.
    user: str = ""

    def __str__(self) -> str:
        return f"trainshed-{self.service}-{self.job_uid}-{self.attempt}-{self.part}"

    @staticmethod
    def parse(name: str) -> "HoldName":
        """Parse the name of a hold of the service's own user. Raises ValueError if it is no hold's name."""
        prefix, service, *numbers = name.split("-")
        if prefix != "trainshed" or len(numbers) != 3 or not all(map(str.isdecimal, numbers)):
            raise ValueError(f"{name!r} is not the name of a hold")
        uid, attempt, part = map(int, numbers)
        return HoldName(service, JobUid(uid), attempt, part)


class NodeNeed(Struct, frozen=True):
    """The resources that an attempt's replicas on one node need together."""

    node: str
    replicas: int
    vcpus: float
    memory_bytes: int
    #: Number of devices.
    accelerators: int = 0
    #: Of the replicas, or of one that is routed as the others are.
    machine: MachineWanted = MachineWanted()
    owner: Owner = THE_SERVICE
    #: Seconds for which their job may run; None = not known.
    seconds: int | None = None
    #: The replica (`workerpool0-1`) and its hostname, if it is for one alone (`RemoteOptions.apart`).
    replica: str = ""
    hostname: str = ""
    #: Likewise its container image; None = none.
    image: str | None = None
    #: Likewise the number of replicas of the gang.
    gang_size: int = 1


class Hold(Struct, frozen=True):
    """The resources that the cluster holds for an attempt."""

    name: HoldName
    #: The cluster's own id of it.
    cluster_id: str
    nodes: tuple[str, ...]


class NodeReport(Struct, frozen=True):
    """The state of a node."""

    #: The node. Its `others` counts what this service's holds do not hold there.
    node: Node
    state: NodeState
    #: The cluster's reason why it is not UP; None = it is, or there is no reason.
    cause: str | None = None
    #: Name or address by which other nodes reach it; None = by its name.
    address: str | None = None
    #: Of a node that is GONE: the cluster still waits for it, and says nothing of what runs there.
    is_awaited: bool = False


class ClusterReport(Struct, frozen=True):
    """What one look at the cluster found."""

    nodes: tuple[NodeReport, ...]
    #: All holds of this service, with the nodes on which one of its agents runs, as far as the cluster knows.
    agents: Mapping[HoldName, frozenset[str]]
    #: When the look began, in seconds of the monotonic clock; now, of what a watch has told.
    looked: float
    #: The cluster's reasons why the requests of `acquire` calls are not granted yet. A change in them is a
    #: change of the report.
    delays: Mapping[HoldName, Delay] = field(default_factory=dict[HoldName, Delay])
    #: Further names of this service in the cluster, of which nothing runs: requests that wait, and what has
    #: ended and was not given back.
    idle: frozenset[HoldName] = frozenset()
    #: Holds whose processes the cluster has stopped, each with its reason, a sentence without its full stop.
    suspended: Mapping[HoldName, str] = field(default_factory=dict[HoldName, str])
    #: Holds that the cluster may end before another attempt with the same needs would be over.
    old: frozenset[HoldName] = frozenset()


class HoldEnd(Struct, frozen=True):
    """How a hold ended that this service did not give back."""

    loss: Cause
    #: One sentence without its full stop.
    why: str


class Cluster(Protocol):
    """A cluster. All methods but `watch` are idempotent and may be called again after a restart of the
    service. None of them blocks the loop."""

    async def start(self) -> None:
        """Look at the cluster for the first time. Raises ClusterUnavailable, ClusterRefused (it can never be
        queried)."""
        ...

    async def close(self) -> None:
        """Release this process's connections. Holds stay, and agents run on."""
        ...

    def report(self) -> ClusterReport:
        """Return what the last look found."""
        ...

    def watch(self) -> AsyncIterator[ClusterReport]:
        """Yield each look that found something else than the one before, until `close`. There is one
        reader."""
        ...

    def detach(self) -> None:
        """Leave pending requests in the cluster's queue, if it has one, because this process ends and the
        next one is to go on waiting."""
        ...

    async def owner(self, project: str) -> Owner:
        """Return the owner of a project's holds. Raises ClusterRefused if the project has no user,
        or the user does not exist."""
        ...

    async def acquire(
        self, name: HoldName, needs: Sequence[NodeNeed], *, avoid: Collection[str] | None = None
    ) -> Hold:
        """Hold those resources on those nodes, all or nothing. With `avoid` the cluster chooses as many other
        nodes instead; the first call for a name decides which to avoid. An existing hold of that name is
        returned as it is. Waits for as long as the cluster makes it wait; a cancelled call leaves nothing
        held that was not before. Raises ClusterRefused, ClusterUnavailable, AgentEnded."""
        ...

    async def start_agent(self, hold: Hold, node: str, argv: Sequence[str], stdin: bytes) -> None:
        """Run `argv`, found on the PATH there, on a node of a hold. `stdin`: its standard input, which alone
        carries secrets. Returns when the process confirms that it has read the input (`messages.TAKEN`); from
        then on it does not depend on this process. Raises ClusterUnavailable, AgentEnded."""
        ...

    async def ended(self, name: HoldName) -> HoldEnd | None:
        """Return how a hold ended that reports no longer list; None = the cluster does not know. Raises
        ClusterUnavailable (not decided yet, or no answer now), MayLive."""
        ...

    async def ending(self, name: HoldName) -> HoldEnd | None:
        """Return how a hold is about to end whose agent was asked to end by something other than this
        service; None = the cluster does not say. Waits for a few seconds, because agents may be asked before
        the cluster's records show it."""
        ...

    async def require_answer(self, name: HoldName) -> None:
        """Raise ClusterUnavailable if the cluster would not take a `give_back` of that hold now. This is
        called before its agents are dismissed: while they are there, they give it back if this service ends
        without doing so."""
        ...

    async def give_back(self, name: HoldName) -> None:
        """End whatever still runs in a hold, and release it; do nothing if it does not exist. Raises
        ClusterUnavailable."""
        ...

    async def settle(self, names: Collection[HoldName]) -> tuple[Leftover, ...]:
        """Wait, for a while, until what was given back stays given back even if the cluster's controller
        crashes. Called before `close`. `names`: holds that are to be given back, and could not be. Returns
        those of all these that the cluster may still hold."""
        ...
