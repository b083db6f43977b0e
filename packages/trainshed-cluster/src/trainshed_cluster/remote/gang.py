"""The service's view of one attempt on a cluster: where each replica is, what became of it, and what of that
has to be known after a restart. It also decides about agents that ended before they connected. Pure."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from trainshed.core.capacity import Delay, Node, WaitReason
from trainshed.core.failure.evidence import Cause
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import LaunchRejected, Slot, SlotRequest, StartFailed
from trainshed_cluster.remote.agent_handle import AgentHandle
from trainshed_cluster.remote.cluster import THE_SERVICE, HoldName, NodeNeed, Owner


class Seat(msgspec.Struct, frozen=True):
    """The place of one of the attempt's replicas."""

    replica: ReplicaId
    request: SlotRequest
    #: Number of the hold in the attempt that it is in.
    part: int
    #: Its slot as its agent gave it, but with the cluster's name of the node; None = none yet.
    slot: Slot | None = None
    #: The last launched incarnation; 0 = none.
    launched: int = 0
    #: No incarnation up to this one may start any more.
    forbidden: int = 0
    #: The identity of its program (`launch.documents.identity`); None = none was launched.
    identity: str | None = None
    #: The incarnation that was lost with its agent; 0 = none.
    lost: int = 0
    #: Why it was lost; None = it was not.
    cause: str | None = None
    #: What kind of loss it was.
    loss: Cause = Cause.LOST
    #: The incarnation that had ended before its agent left, whom nobody can ask any more; 0 = none.
    ended: int = 0
    #: The port of its last slot, where its peers look for it; None = it had none.
    port: int | None = None
    #: The node that was requested, if the cluster has chosen another; None = it has not.
    wish: str | None = None
    #: The replica has left this place and has no other yet, so that no agent is needed.
    is_vacant: bool = False


class GangRecord(msgspec.Struct, frozen=True):
    """An attempt that has slots, or waits for them."""

    job_uid: JobUid
    attempt: int
    seats: tuple[Seat, ...]
    #: The needs of each hold, by its part.
    parts: dict[int, tuple[NodeNeed, ...]]
    #: Seconds for which its agents live without hearing from the service.
    lease: float
    #: What tells the last agent in each `place` from earlier ones.
    agents: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    #: Names of adopted holds, by part; the other holds are named after the attempt.
    holds: dict[int, HoldName] = msgspec.field(default_factory=dict[int, HoldName])
    #: Grace period in ns with which it was stopped; None = it was not stopped.
    stopped: int | None = None

    @property
    def owner(self) -> Owner:
        return next((need.owner for some in self.parts.values() for need in some), THE_SERVICE)

    def seat(self, replica: ReplicaId) -> Seat | None:
        return next((seat for seat in self.seats if seat.replica == replica), None)

    def with_seat(self, seat: Seat) -> "GangRecord":
        """Return the record with this seat in place of the replica's former one."""
        seats = tuple(seat if other.replica == seat.replica else other for other in self.seats)
        return replace(self, seats=seats)


def place(part: int, node: str) -> str:
    """Return the key of an agent's place: one node of one hold."""
    return f"{part}/{node}"


PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each further start; after the last of them none follows."""


class FailedStarts(Struct, frozen=True):
    """The failed starts in one place since an agent last connected there."""

    count: int
    #: Why the last one ended: a sentence without its full stop.
    why: str

    def pause(self, pauses: Sequence[float]) -> float | None:
        """Return the seconds until another start; None = there were enough."""
        return pauses[self.count - 1] if self.count <= len(pauses) else None


def with_another(before: FailedStarts | None, why: str) -> FailedStarts:
    """Add a failed start to those before it."""
    return FailedStarts((before.count if before else 0) + 1, why)


def delay_of_start(node: str, failed: FailedStarts, pause: float) -> Delay:
    """Return the delay to report until the next start."""
    times = f", {failed.count} times so far" if failed.count > 1 else ""
    soon = f"in {pause:g} s" if pause else "at once"
    return Delay(
        WaitReason.ENGINE,
        f"the agent on node {node} ended before it was there{times}: {failed.why}; another one is started "
        f"{soon}",
    )


def no_more_starts(node: str, failed: FailedStarts) -> str:
    """Return the message when no further start is tried."""
    return f"no agent stays on node {node}: {failed.count} were started, and of the last one: {failed.why}"


def is_the_nodes(node: str, came: Mapping[str, float]) -> bool:
    """Whether the node is at fault, because an agent connected from another node, and later than from this
    one, if ever. `came`: when an agent last connected, by node."""
    here = came.get(node, float("-inf"))
    return any(at > here for name, at in came.items() if name != node)


Ended = ReplicaExited | ReplicaLost

AGENT_MEMORY = 256 << 20
"""Bytes that an agent, its shims and what they carry take on a node: what a cluster enforces must not be what
ends a program that keeps within its own limit."""
UNSAID_MEMORY = 256 << 20
"""Bytes of a replica whose machine type has none in the table."""


class Gang(Struct):
    """An attempt's record, with the state that is only kept while the service runs."""

    record: GangRecord
    #: The current agent of each `place`.
    agents: dict[str, AgentHandle] = field(default_factory=dict[str, AgentHandle])
    #: The end of each replica's last incarnation, if it was reported.
    ends: dict[ReplicaId, Ended] = field(default_factory=dict[ReplicaId, Ended])
    #: It was asked for that what it holds is given back.
    is_released: bool = False
    #: The last reported reason why its start waits; None = none.
    delay: Delay | None = None
    #: Agents per `place` that ended before they gave out slots, since one last did.
    failed_starts: dict[str, FailedStarts] = field(default_factory=dict[str, FailedStarts])
    #: Why its slots can never be had, until a caller was told.
    refused: LaunchRejected | StartFailed | None = None

    @property
    def key(self) -> tuple[JobUid, int]:
        return self.record.job_uid, self.record.attempt

    def agent(self, seat: Seat) -> AgentHandle | None:
        return self.agents.get(place(seat.part, seat.request.node))

    def needs_agent(self, part: int, node: str) -> bool:
        agent = self.agents.get(place(part, node))
        return agent is None or agent.is_gone or agent.failure is not None

    def parts_to_hold(self) -> list[int]:
        """Return the parts that have to be held for agents that are missing; all of them as long as nothing
        runs, so that a part is not kept from others while the next one is waited for."""
        missing = {
            seat.part
            for seat in self.record.seats
            if not seat.is_vacant and self.needs_agent(seat.part, seat.request.node)
        }
        is_live = any(map(self.is_live, self.record.seats))
        return [part for part in self.record.parts if part in missing or (missing and not is_live)]

    def seats_of(self, agent: AgentHandle) -> Iterator[Seat]:
        """Yield the seats of an agent's replicas, if it is the current agent of its place."""
        if self.agents.get(place(agent.part, agent.node)) is agent:
            for seat in self.record.seats:
                if (seat.part, seat.request.node) == (agent.part, agent.node):
                    yield seat

    def image_of(self, part: int, node: str) -> str | None:
        """Return the job's container image that an agent there runs in; None = none."""
        needs = self.record.parts.get(part, ())
        return next((need.image for need in needs if need.node == node), None)

    def is_live(self, seat: Seat) -> bool:
        """Whether a program of the replica runs, or may run."""
        end = self.ends.get(seat.replica)
        is_over = end is not None and end.incarnation >= seat.launched
        return seat.launched > max(seat.lost, seat.ended) and not is_over

    def slots(self) -> tuple[Slot, ...]:
        return tuple(seat.slot for seat in self.record.seats if seat.slot is not None)

    def hosts(self) -> tuple[tuple[str, str], ...]:
        """Return (hostname, address) of each replica that has a slot."""
        return tuple((slot.hostname, slot.address) for slot in self.slots())

    def require_not_refused(self) -> None:
        """Raise, once, why its slots can never be had: LaunchRejected, StartFailed."""
        refused, self.refused = self.refused, None
        if refused is not None:
            raise refused

    def is_complete(self) -> bool:
        """Whether every replica that has a place has a slot, and its agent is not gone."""
        return all(
            seat.is_vacant
            or (
                seat.slot is not None
                and (agent := self.agent(seat)) is not None
                and not agent.is_gone
            )
            for seat in self.record.seats
        )


def new_record(
    job_uid: JobUid,
    attempt: int,
    requests: Sequence[SlotRequest],
    nodes: Mapping[str, Node],
    *,
    lease: float,
    owner: Owner,
    anywhere: bool,
    apart: bool,
) -> GangRecord:
    """Make a gang's first record. Nodes with the same needs form one part, because clusters grant equal nodes
    at once. `anywhere`: the cluster chooses the nodes. `apart`: each replica is a part by itself."""
    parts: dict[int, tuple[NodeNeed, ...]] = {}
    places: dict[ReplicaId, int] = {}
    wanted = needs(
        requests, nodes, owner=owner, anywhere=anywhere, apart=apart, gang_size=len(requests)
    )
    for need, replicas in wanted:
        for number, others in () if apart else parts.items():
            # One node has two needs if their machine types reach it by different routes.
            nodes_there = {other.node for other in others}
            if need.node not in nodes_there and need == replace(others[0], node=need.node):
                parts[number] = (*others, need)
                break
        else:
            number = len(parts)
            parts[number] = (need,)
        places |= dict.fromkeys(replicas, number)
    seats = tuple(Seat(request.replica, request, places[request.replica]) for request in requests)
    return GangRecord(job_uid, attempt, seats, parts, lease)


def given(record: GangRecord, part: int, nodes: Sequence[str]) -> GangRecord:
    """Return the record with a part on the nodes that the cluster has chosen for it; the same record if
    nothing changes."""
    some = record.parts[part]
    # A cluster may take a node that has failed out of a hold.
    if set(nodes) <= {need.node for need in some}:
        return record
    chosen = {need.node: node for need, node in zip(some, nodes, strict=True)}
    seats = tuple(
        replace(
            seat,
            request=replace(seat.request, node=chosen[seat.request.node]),
            wish=seat.request.node,
        )
        if seat.part == part
        else seat
        for seat in record.seats
    )
    there = tuple(replace(need, node=chosen[need.node]) for need in some)
    return replace(record, seats=seats, parts=record.parts | {part: there})


def vacated(gang: Gang, replicas: Iterable[ReplicaId]) -> GangRecord:
    """Return the record with the seats of those replicas vacant, which have lost their node; the same record
    if nothing changes. A replica without a slot keeps its seat, because its peers have to be told of a
    slot."""
    record = gang.record
    for seat in filter(None, map(gang.record.seat, replicas)):
        if seat.slot is not None and not seat.is_vacant and not gang.is_live(seat):
            record = record.with_seat(replace(seat, is_vacant=True, ended=seat.launched))
    return record


def taken_out(gang: Gang, part: int, nodes: Container[str]) -> list[SlotRequest]:
    """Return the requests of replicas whose node is not among those that their part's hold still has."""
    return [
        seat.request
        for seat in gang.record.seats
        if (seat.part == part and seat.request.node not in nodes)
        and not (seat.is_vacant or gang.is_live(seat))
    ]


def without_needs(record: GangRecord, part: int, nodes: Container[str]) -> GangRecord:
    """Return the record without needs of nodes that the part's hold has no more, and no seat."""
    if part not in record.parts:
        return record
    stay = {seat.request.node for seat in record.seats if seat.part == part}
    some = [need for need in record.parts[part] if need.node in stay or need.node in nodes]
    return replace(record, parts=record.parts | {part: tuple(some)})


def left_on(gang: Gang, nodes: Container[str]) -> set[ReplicaId]:
    """Return the replicas whose programs have ended on one of the nodes and have not started again
    anywhere."""
    return {
        seat.replica
        for seat in gang.record.seats
        if seat.request.node in nodes
        and seat.launched
        and seat.slot is not None
        and not seat.is_vacant
        and not gang.is_live(seat)
    }


def has_to_move(gang: Gang, seat: Seat, node: str) -> bool:
    """Whether a request that names `node` moves the replica, or wants a place that was given back. Until it
    is known where the cluster has put the replica, requests name the wish again."""
    is_wish = node == seat.wish and (not seat.launched or gang.is_live(seat))
    return seat.is_vacant or (node != seat.request.node and not is_wish)


def with_them(
    gang: Gang, moving: Sequence[SlotRequest], requests: Iterable[SlotRequest]
) -> list[SlotRequest]:
    """Add the other replicas whose nodes have to be requested anew, because their pending request includes
    nodes that replicas leave, and which may never be granted. What is held already does not change."""
    left = {seat.part for request in moving if (seat := gang.record.seat(request.replica))}
    held = {agent.part for agent in gang.agents.values() if agent.is_connected}
    held |= {seat.part for seat in gang.record.seats if gang.is_live(seat)}
    movers = {request.replica for request in moving}
    return [
        replace(request, node=seat.request.node)
        for request in requests
        if request.replica not in movers
        and (seat := gang.record.seat(request.replica))
        and seat.part in left - held
    ]


def moved(
    record: GangRecord,
    requests: Sequence[SlotRequest],
    nodes: Mapping[str, Node],
    *,
    anywhere: bool = False,
    apart: bool = False,
) -> GangRecord:
    """Return the record with those replicas on the requested nodes, in a new part for each need. Parts that
    become empty vanish."""
    parts = dict(record.parts)
    first = max(parts, default=-1) + 1
    places: dict[ReplicaId, int] = {}
    wanted = needs(
        requests,
        nodes,
        owner=record.owner,
        anywhere=anywhere,
        apart=apart,
        gang_size=len(record.seats),
    )
    for number, (need, replicas) in enumerate(wanted, first):
        parts[number] = (need,)
        places |= dict.fromkeys(replicas, number)
    for request in requests:
        seat = record.seat(request.replica)
        assert seat is not None
        there = replace(seat, request=request, part=places[request.replica], slot=None, wish=None)
        record = record.with_seat(replace(there, ended=seat.launched, is_vacant=False))
    used = {seat.part for seat in record.seats}
    return replace(record, parts={number: some for number, some in parts.items() if number in used})


def needs(
    requests: Iterable[SlotRequest],
    nodes: Mapping[str, Node],
    *,
    owner: Owner = THE_SERVICE,
    anywhere: bool = False,
    apart: bool = False,
    gang_size: int = 1,
) -> list[tuple[NodeNeed, tuple[ReplicaId, ...]]]:
    """Return what replicas need together on each node, with those replicas: the ones whose machine types
    reach it by the same route (`Acceptance.routes`). `apart`: return what each needs by itself. Their
    agent's memory is included as far as others leave room, and never more than the node has, since the
    scheduler has found that they fit. `anywhere`: the cluster chooses, and itself refuses what it can never
    grant; the agent is included unless no node is that large. `gang_size`: number of replicas."""
    by_way: dict[tuple[object, ...], list[SlotRequest]] = {}
    for request in requests:
        here = nodes.get(request.node)
        way = here.accepts.position(request.machine) if here else None
        own = request.replica if apart else None
        by_way.setdefault((request.node, way, own), []).append(request)
    wanted: list[tuple[NodeNeed, tuple[ReplicaId, ...]]] = []
    for some in by_way.values():
        node = some[0].node
        vcpus = sum(request.vcpus or 0 for request in some) or 1.0
        memory_asked = sum(request.memory_bytes or UNSAID_MEMORY for request in some)
        memory = memory_asked + AGENT_MEMORY
        if anywhere:
            largest = max((node.memory_bytes for node in nodes.values()), default=memory)
            memory = min(memory, max(memory_asked, largest))
        elif node in nodes:
            here = nodes[node]
            vcpus = min(vcpus, here.vcpus)
            memory = min(memory, max(memory_asked, here.memory_bytes - here.others.memory_bytes))
            memory = min(memory, here.memory_bytes)
        devices = sum(request.accelerators for request in some)
        typical = next((request for request in some if request.accelerators), some[0])
        machine, seconds = typical.machine, typical.seconds
        need = NodeNeed(node, len(some), vcpus, memory, devices, machine, owner, seconds)
        if apart:
            need = replace(
                need,
                replica=str(some[0].replica),
                hostname=some[0].hostname,
                image=some[0].image,
                gang_size=gang_size,
            )
        wanted.append((need, tuple(request.replica for request in some)))
    return wanted


def hold_name(service: str, record: GangRecord, part: int) -> HoldName:
    return record.holds.get(part) or HoldName(
        service, record.job_uid, record.attempt, part, record.owner.user
    )
