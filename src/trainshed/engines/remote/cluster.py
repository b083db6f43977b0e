"""What a cluster has to do so that `RemoteEngine` can run replicas on its nodes: hold resources for attempts,
and start a process on each node that it holds."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct, field

from trainshed.core.capacity import Delay
from trainshed.core.lifecycle.replica_events import Loss
from trainshed.core.names import JobUid
from trainshed.core.routes import MachineWanted
from trainshed.engines.port import Node, NodeState


class ClusterRefused(Exception):
    """The cluster will never give this. The message is the cluster's own, and what would be given."""


class ClusterUnavailable(Exception):
    """The cluster cannot answer, or has not got it now. The same call may be made again. The message says
    why, as the cluster tells it."""


class AgentEnded(ClusterUnavailable):
    """What was to be an agent has ended before it was one, and nothing of it runs. The message says what is
    known of its end, its last words above all."""


class MayLive(ClusterUnavailable):
    """The cluster knows nothing of a hold any more, and nobody saw its end: programs there may live until
    their agent's lease is over."""


class ProcessFacts(Struct, frozen=True):
    """What a process that is to be an agent says of itself before it is given anything."""

    #: Which of the agents' code it has (`AgentCode.content`), which is not sent to it then; "" = none.
    code: str = ""
    #: By which other replicas reach its own; "" = it does not say.
    address: str = ""
    #: Programs there find their peers by name, in a hosts file that it may write.
    named: bool = False


NOTHING_SAID = ProcessFacts()


class AgentInput(Protocol):
    """What an agent's process is given on its standard input. Each is asked for once."""

    async def parcel(self, process: ProcessFacts) -> bytes:
        """All but the last line: nothing begins by it. `process`: what that says, which may not be there
        yet."""
        ...

    async def permission(self) -> None:
        """Asked for once a process is there, returns when it may begin: it is given the last line then
        (`opening.BEGIN`)."""
        ...


class Owner(Struct, frozen=True):
    """As whom a project's jobs hold nodes, and run there."""

    #: User of the nodes; "" = the service's own.
    user: str = ""
    #: Account that the cluster charges; "" = the cluster's default.
    account: str = ""


THE_SERVICE = Owner()


class HoldName(Struct, frozen=True, order=True):
    """Identity of a hold. A cluster's own job id does not serve: some clusters give ids out again after a
    crash. Its text alone does not either: other users may give their jobs the same name."""

    #: Tells this service from others that use the cluster.
    service: str
    job_uid: JobUid
    attempt: int
    #: 0 = what the gang began with; those after it are for replicas that had to move.
    part: int
    #: Whose it is (`Owner.user`); not part of its text.
    user: str = ""

    def __str__(self) -> str:
        return f"trainshed-{self.service}-{self.job_uid}-{self.attempt}-{self.part}"

    @staticmethod
    def parse(name: str) -> "HoldName":
        """Of the service's own user. Raises ValueError: that is the name of something else."""
        prefix, service, *numbers = name.split("-")
        if prefix != "trainshed" or len(numbers) != 3 or not all(map(str.isdecimal, numbers)):
            raise ValueError(f"{name!r} is not the name of a hold")
        uid, attempt, part = map(int, numbers)
        return HoldName(service, JobUid(uid), attempt, part)


class NodeNeed(Struct, frozen=True):
    """What the replicas of an attempt that share a node need there, all together."""

    node: str
    replicas: int
    vcpus: float
    memory_bytes: int
    #: How many devices.
    accelerators: int = 0
    #: Their public type; "" = it needs none.
    accelerator: str = ""
    #: Public machine type of the replicas, or of one whose machine goes where the others' go; "" = not known.
    machine: str = ""
    owner: Owner = THE_SERVICE
    #: The replica, `workerpool0-1`, if it is for one alone (`RemoteOptions.apart`), and its hostname.
    replica: str = ""
    hostname: str = ""
    #: Likewise the container image that it runs in; "" = in none.
    image: str = ""
    #: Likewise how many replicas there are in all.
    gang_size: int = 1
    #: Likewise its job and attempt, with their project and service account.
    job_uid: JobUid = JobUid(0)
    attempt: int = 0
    project: str = ""
    service_account: str = ""

    @property
    def wanted(self) -> MachineWanted:
        return MachineWanted(self.machine, self.accelerator if self.accelerators else "")

    @property
    def kind(self) -> "NodeNeed":
        """What any other need has to have in common with this one to be met by what was held for it."""
        # A Pod with peers has a hosts file that its agent may write.
        size = min(self.gang_size, 2)
        return msgspec.structs.replace(
            self, replica="", hostname="", gang_size=size, job_uid=JobUid(0), attempt=0
        )


class Hold(Struct, frozen=True):
    """Resources that the cluster holds for an attempt."""

    name: HoldName
    #: How the cluster calls it.
    cluster_id: str
    nodes: tuple[str, ...]


class NodeReport(Struct, frozen=True):
    """How a node stands."""

    #: `others`: what is held there by none of this service's holds.
    node: Node
    state: NodeState
    #: Why it is not UP, as the cluster tells it; "" = it is, or nothing is told.
    cause: str = ""
    #: Where it is reached by other nodes: a name or an address; "" = its name.
    address: str = ""
    #: When the look began that found this, if not with all others (`ClusterReport.looked`).
    looked: float | None = None
    #: Of one that is GONE: the cluster waits for it yet, and says nothing of what runs there.
    is_awaited: bool = False


class ClusterReport(Struct, frozen=True):
    """What one look at the cluster found."""

    nodes: tuple[NodeReport, ...]
    #: All that this service holds, with the nodes on which an agent of it runs, as far as the cluster knows.
    agents: Mapping[HoldName, frozenset[str]]
    #: When it began, in seconds of the monotonic clock.
    looked: float
    #: Why what an `acquire` asks for is not held yet, as the cluster tells it. Looks that found anything
    #: else in it than the one before are told, too.
    delays: Mapping[HoldName, Delay] = field(default_factory=dict[HoldName, Delay])
    #: Somebody, perhaps others, waits for room: what is only kept is to be given back.
    is_short: bool = False


class HoldEnd(Struct, frozen=True):
    """How a hold ended that this service did not give back."""

    loss: Loss
    #: One sentence without its full stop.
    why: str


def unreached(nodes: Sequence[Node], node: str) -> Node | None:
    """What is in the place of the cluster that a node is of, which does not answer; None = it does. The only
    cluster there is is that of all nodes."""
    silent = [one for one in nodes if one.unreached]
    if len(nodes) == 1 and silent:
        return silent[0]
    return next((one for one in silent if node.startswith(f"{one.name}.")), None)


class Cluster(Protocol):
    """All methods but `watch` are idempotent and may be called again after a restart of the service. None of
    them blocks the loop."""

    async def start(self) -> None:
        """Look for the first time. Raises ClusterUnavailable, ClusterRefused: it cannot be asked at all."""
        ...

    async def close(self) -> None:
        """Let go. What is held stays held, and agents run on."""
        ...

    def report(self) -> ClusterReport:
        """What the last look found."""
        ...

    def watch(self) -> AsyncIterator[ClusterReport]:
        """Each look that found something else than the one before, until `close`. One reader."""
        ...

    def suspect(self, node: str) -> None:
        """An agent on that node is silent: clusters that are not looked at every few seconds anyway look at
        it soon (`NodeReport.looked`)."""
        ...

    def detach(self) -> None:
        """This process ends: what is still asked for stays so, if the cluster keeps it, for the next one to
        go on waiting."""
        ...

    async def owner(self, project: str, node: str) -> Owner:
        """As whom a project's jobs run on a node. Raises ClusterRefused: nobody is named for that project, or
        the user does not exist."""
        ...

    async def acquire(
        self, name: HoldName, needs: Sequence[NodeNeed], *, avoid: Collection[str] | None = None
    ) -> Hold:
        """Hold that much on those nodes, all or nothing; with `avoid` on as many nodes as the cluster likes
        to choose, but not on these, which is looked at when it is asked for first; what is held by that name
        already is returned as it is. Waits for as long as the cluster makes it wait; giving up waiting
        (cancellation) leaves nothing held. Raises ClusterRefused, ClusterUnavailable, AgentEnded."""
        ...

    async def start_agent(
        self, hold: Hold, node: str, argv: Sequence[str], given: AgentInput
    ) -> None:
        """Run `argv` on a node of a hold, found on the PATH there. `given`: what is asked of it may take a
        while; what is secret is in nothing but that. Returns when the process has taken it, which it says
        itself (`opening.TAKEN`); from then on it does not depend on this process. Raises ClusterUnavailable,
        AgentEnded; what `given` raises; as long as it has not given permission, nothing was begun, and
        nothing will be."""
        ...

    async def ended(self, name: HoldName) -> HoldEnd | None:
        """How a hold ended that is not in reports any more; None = the cluster does not know. Raises
        ClusterUnavailable: that is not decided yet, or not told just now; MayLive."""
        ...

    async def ending(self, name: HoldName) -> HoldEnd | None:
        """How a hold is about to end whose agent was asked to end, and not by this service: agents are told
        at the same moment as the cluster's records, or sooner. Waits for a few seconds, if the cluster may
        need them; None = it says nothing of it."""
        ...

    def adopted(self, name: HoldName, needs: Sequence[NodeNeed]) -> None:
        """What is held by that name is for these from now on, which are of the same kind (`NodeNeed.kind`):
        whoever looks at the cluster may be told so."""
        ...

    async def give_back(self, name: HoldName) -> None:
        """End whatever still runs there, and hold it no more; nothing if it is not held. Raises
        ClusterUnavailable."""
        ...
