"""One group of ranks at this reducer: who is there, how far each is, what is still to be added. Pure: what
happens comes in as calls with the time, what is to be done goes out as effects.

It gathers until all ranks are there, or have left in good order before; then it runs, until a connection
breaks and it gathers again. What was under way is forgotten then and comes once more: START tells from where
on. Every rank sends something for every position, in order, so rows are finished in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Union

from trainshed_reduction import proof, wire
from trainshed_reduction.arithmetic import Kernels
from trainshed_reduction.reducer.buffers import Block, Buffers
from trainshed_reduction.reducer.counters import Counters
from trainshed_reduction.reducer.rows import Progress, Row, Seen, Shape, disagreement, ranks
from trainshed_reduction.wire import DType, Header, Hello, Kind, Malformed, Reduction, Start

if TYPE_CHECKING:
    from trainshed_reduction.native.reducing import NativeGroup, NativeMember

WINDOW = 16 << 20
"""Bytes that a worker may have here without a result, and a chunk more."""


class Member:
    """A worker's connection, from its HELLO on. Every HELLO makes another one."""

    __slots__ = (
        "acknowledged",
        "group",
        "hello",
        "native",
        "ordinal",
        "position",
        "rank",
        "unanswered",
    )

    def __init__(self, hello: Hello, group: "Group") -> None:
        self.hello = hello
        self.rank = hello.rank
        self.group = group
        self.position = hello.received
        """Of the next chunk that it sends."""
        self.acknowledged = hello.received
        self.ordinal = 0
        """Of the latest operation that it has begun, as far as was seen here."""
        self.native: Optional[NativeMember] = None
        """Where its chunks are taken, if not here."""
        self.unanswered = 0
        """Bytes that it has sent and that no result was made of yet."""

    @property
    def is_full(self) -> bool:
        return self.unanswered >= WINDOW


class DepartedRank(NamedTuple):
    """A rank that left in good order: it has sent what stands before `position`. `ordinal`: of its last
    operation."""

    position: int
    ordinal: int

    def text(self, rank: int) -> str:
        after = " after operation {}".format(self.ordinal) if self.ordinal else ""
        return "rank {} has left the group{}".format(rank, after)


class Deliver(NamedTuple):
    """Send a result to these."""

    members: "List[Member]"
    header: bytes
    payload: Block


class Tell(NamedTuple):
    """Send one frame; a `reminder` not where something else is still unsent: that worker does not wait for
    us."""

    member: "Member"
    frame: bytes
    is_reminder: bool = False


class Resume(NamedTuple):
    """There is room again for what these send."""

    members: "List[Member]"


class Dismiss(NamedTuple):
    """Close the connection after this frame; b"" = at once. The group has forgotten the member already."""

    member: "Member"
    farewell: bytes


class Log(NamedTuple):
    """Something that a person wants to know of."""

    text: str


class Completed(NamedTuple):
    """All ranks of a group are here for the first time, which people want to know."""

    world: int


class Started(NamedTuple):
    """Its members send chunks from now on: `Group.go_native` may be called, before anything else of them is
    read."""

    group: "Group"


Effect = Union[Deliver, Tell, Resume, Dismiss, Log, Completed, Started]


_PATIENCE = 0.6
"""Seconds that something waits before anybody is told."""


class Group:
    """One generation and epoch of a group. `generation` 0: nobody has come yet who knows it."""

    def __init__(
        self, hello: Hello, kernels: Kernels, buffers: Buffers, counters: Counters, now: float
    ) -> None:
        self.generation = hello.generation
        self.epoch = hello.epoch
        self.world = hello.world
        self.members: Dict[int, Member] = {}
        self.parked: Dict[int, Member] = {}
        """Ranks that know no generation, and cannot be of this one."""
        self.failure = ""
        """Why this generation and epoch cannot go on, if so."""
        self._kernels = kernels
        self._buffers = buffers
        self._counters = counters
        self._running = False
        self._completed = False
        self._since = now
        self._parted: Dict[int, DepartedRank] = {}
        self._lost: Dict[int, float] = {}
        self._rows: Dict[int, Row] = {}
        self._head = 0
        self._finished = now
        self._operation = -1
        """The latest of which a chunk is finished; its ordinal."""
        self._ordinal = 0
        self._native: Optional[NativeGroup] = None

    @property
    def is_waiting(self) -> bool:
        return bool(self.parked or (self.chunks_in_flight if self._running else self.members))

    @property
    def is_empty(self) -> bool:
        return not self.members and not self.parked

    @property
    def chunks_in_flight(self) -> int:
        return len(self._rows) if self._native is None else self._native.progress().begun

    @property
    def progress(self) -> Progress:
        """As of START, for who adds up the chunks in place of this."""
        return Progress(self._head, self._operation, self._ordinal, 0)

    def go_native(self, group: "NativeGroup") -> None:
        """Chunks are added up there until the group begins anew; `odd` is told of those that are not as they
        should be."""
        self._native = group

    def _catch_up(self) -> None:
        """With what was done there."""
        if self._native is None:
            return
        self._head, self._operation, self._ordinal, _ = self._native.progress()
        for member in self.members.values():
            if member.native is not None:
                member.position, member.acknowledged, member.ordinal = member.native.state()

    def _row(self, position: int) -> "Optional[Seen]":
        """What has come for a position."""
        if self._native is not None:
            return self._native.seen(position)
        row = self._rows.get(position)
        return None if row is None else Seen(row.shape, row.since, row.arrived)

    def _stop(self) -> None:
        """Nothing is under way any more."""
        self._catch_up()
        self._native = None
        self.members.clear()
        self._rows.clear()
        self._running = False

    def gather(self, member: Member, now: float) -> List[Effect]:
        """Another rank has come; an earlier connection of the same one is of no use any more."""
        rank = member.rank
        self._catch_up()
        if not member.hello.generation and (self.failure or self._operation >= 0):
            # This group could not have come so far without START having told that rank its generation.
            earlier = self.parked.pop(rank, None)
            self.parked[rank] = member
            return [] if earlier is None else [Dismiss(earlier, b"")]
        effects: List[Effect] = []
        earlier = self.members.pop(rank, None)
        if earlier is not None:
            effects.append(Dismiss(earlier, b""))
        if self._running:
            effects += self._reset(now)
        if not self.members:
            self._since = now
        self._parted.pop(rank, None)
        self._lost.pop(rank, None)
        self.members[rank] = member
        return effects + self._start(now)

    def _start(self, now: float) -> List[Effect]:
        """If all are here who have not left."""
        if self._running or len(self.members) + len(self._parted) < self.world:
            return []
        everybody = [*self.members.values(), *self._parted.values()]
        self._head = min(each.position for each in everybody)
        self._running = True
        self._finished = now
        start = Start(self._head, self.generation, self.world)
        frame = proof.frame(Kind.START, wire.pack_start(start))
        effects: List[Effect] = []
        for each in self.members.values():
            each.position = self._head
            effects.append(Tell(each, frame))
        if not self._completed and self.world > 1:  # One alone only asks for the ports.
            self._completed = True
            effects.append(Completed(self.world))
        if len(self.members) == self.world > 1:
            effects.append(Started(self))
        return effects

    def _reset(self, now: float) -> List[Effect]:
        """Everybody comes again."""
        effects: List[Effect] = [Dismiss(each, b"") for each in self.members.values()]
        self._stop()
        self._since = now
        self._counters.resets += 1
        return effects

    def chunk(self, member: Member, header: Header, payload: Block, now: float) -> List[Effect]:
        """A DATA or FINAL frame. Raises Malformed: the connection is to be closed, and `lose` called."""
        position = member.position
        self._check_sender(member, header)
        member.acknowledged = max(member.acknowledged, header.acknowledged)
        member.position += 1
        member.ordinal = header.ordinal
        shape = Shape.of(header)
        row = self._rows.get(position)
        objection = self._objection(member, shape, position, row)
        if objection:
            return objection
        if row is None:
            row = self._rows[position] = Row(shape, self._kernels, self._buffers, now)
        alone = max(row.latest, self._finished)
        row.add(member.rank, payload, header.kind is Kind.FINAL, now)
        member.unanswered += header.nbytes
        if header.kind is Kind.DATA and member.hello.received <= position:
            row.takers.append(member.rank)
        if len(row.arrived) < self.world and (not self._parted or self._missing(position)):
            return []
        self._counters.waited(member.rank, now - alone)
        return self._finish(row, header, now)

    def odd(self, member: Member, header: Header) -> List[Effect]:
        """A chunk that was not taken where chunks are added up in place of this. Raises Malformed."""
        self._catch_up()
        self._check_sender(member, header)
        position = member.position
        objection = self._objection(member, Shape.of(header), position, self._row(position))
        if not objection:
            raise Malformed("a {} frame came that no worker sends".format(header.kind.name))
        return objection

    def _check_sender(self, member: Member, header: Header) -> None:
        """Raises Malformed."""
        if not self._running:
            raise Malformed("a chunk came before START")
        if header.rank != member.rank:
            raise Malformed("rank {} sent a chunk as rank {}".format(member.rank, header.rank))

    def _objection(
        self, member: Member, shape: Shape, position: int, row: "Union[Row, Seen, None]"
    ) -> List[Effect]:
        """The end of the group, if such a chunk does not belong there; else nothing."""
        for rank, parted in self._parted.items():
            if parted.position <= position:
                return self.fail(parted.text(rank))
        if shape.reduction == Reduction.AVERAGE and DType(shape.dtype).is_integer:
            return self.fail(
                "operation {}: rank {} asks for the AVERAGE of {}; integers can only be summed".format(
                    shape.ordinal, member.rank, DType(shape.dtype).name
                )
            )
        if row is not None and not row.shape.agrees(shape):
            return self.fail(disagreement(member.rank, shape, row.arrived, row.shape))
        return []

    def _missing(self, position: int) -> List[int]:
        return [each.rank for each in self.members.values() if each.position <= position]

    def _finish(self, row: Row, header: Header, now: float) -> List[Effect]:
        result = row.result(self.world)
        if result is None:  # Only who has left could have brought what is missing.
            rank, parted = next(iter(self._parted.items()))
            return self.fail(parted.text(rank))
        del self._rows[self._head]
        self._head += 1
        self._finished = now
        self._counters.chunks += 1
        if header.operation != self._operation:
            self._operation, self._ordinal = header.operation, header.ordinal
            self._counters.operations += 1
        resumed: List[Member] = []
        for each in self.members.values():
            was_full = each.is_full
            each.unanswered -= header.nbytes
            if was_full and not each.is_full:
                resumed.append(each)
        effects: List[Effect] = []
        if row.takers:
            acknowledged = min((each.acknowledged for each in self.members.values()), default=0)
            result_header = header._replace(kind=Kind.RESULT, rank=0, acknowledged=acknowledged)
            takers = [self.members[rank] for rank in row.takers if rank in self.members]
            effects.append(Deliver(takers, wire.pack(result_header), result))
        if resumed:
            effects.append(Resume(resumed))
        return effects

    def leave(self, member: Member, now: float) -> List[Effect]:
        """It said BYE."""
        effects: List[Effect] = [Dismiss(member, b"")]
        self._catch_up()
        if not self._forget(member):
            return effects
        if member.native is not None:
            member.native.leave()
        if not self.members:  # The group is over; what comes next may be one of the same name.
            self._parted.clear()
            self._stop()
            return effects
        ordinal = member.ordinal or self._ordinal
        parted = self._parted[member.rank] = DepartedRank(member.position, ordinal)
        if any(each.position > parted.position for each in self.members.values()):
            return effects + self.fail(parted.text(member.rank))
        return effects + self._start(now)

    def lose(self, member: Member, now: float) -> List[Effect]:
        """Its connection broke, or is to be closed."""
        if not self._forget(member):
            return []
        self._lost[member.rank] = now
        effects: List[Effect] = [Log("rank {} lost its connection".format(member.rank))]
        return effects + self._reset(now) if self._running else effects

    def _forget(self, member: Member) -> bool:
        """Whether it counted."""
        if self.parked.get(member.rank) is member:
            del self.parked[member.rank]
        if self.members.get(member.rank) is not member:
            return False
        del self.members[member.rank]
        return True

    def take_unsure(self) -> List[Member]:
        """Ranks that wait for a generation, whichever it is; they are no more of this one."""
        unsure = [*self.parked.values()]
        if not self._running:
            unsure += [each for each in self.members.values() if not each.hello.generation]
        for each in unsure:
            self._forget(each)
        return unsure

    def fail(self, text: str) -> List[Effect]:
        """Tell everybody that it is over, and remember why."""
        self.failure = text
        farewell = proof.text_frame(Kind.ERROR, text)
        effects: List[Effect] = [Dismiss(each, farewell) for each in self.members.values()]
        self._stop()
        return [Log(text), *effects]

    def status(self, now: float) -> List[Effect]:
        """Tells those that wait for whom; nothing if they have not waited long."""
        waiting = [*self.parked.values()]
        row = None
        self._catch_up()
        if self._running:
            row = self._row(self._head)
            since = self._since if row is None else row.since
            missing = self._missing(self._head)
            waiting += [each for each in self.members.values() if each.position > self._head]
        else:
            since = self._since
            present = {*self.members, *self._parted}
            missing = [rank for rank in range(self.world) if rank not in present]
            waiting += self.members.values()
        if not waiting or now - since < _PATIENCE:
            return []
        if not missing or self.parked:
            missing = [0]  # It alone brings a new generation.
        text = "waits {:.0f} s for {}".format(now - since, ranks(missing))
        lost = sorted(rank for rank in missing if rank in self._lost)[:4]
        for rank in lost:
            text += "; rank {} lost its connection {:.0f} s ago".format(
                rank, now - self._lost[rank]
            )
        frame = proof.text_frame(Kind.STATUS, text)
        effects: List[Effect] = [Tell(each, frame, True) for each in waiting]
        if row is not None and row.shape.ordinal:
            effects += self._ask(row, missing)
        return effects

    def _ask(self, row: Seen, missing: List[int]) -> List[Effect]:
        """Tell those that all wait for what it is: they may have given the same operation to their native
        backend."""
        text = "{} {} {}".format(
            ranks(row.arrived), "have" if len(row.arrived) > 1 else "has", row.shape.text
        )
        frame = proof.text_frame(Kind.STATUS, text, row.shape.ordinal)
        return [Tell(self.members[rank], frame, True) for rank in missing if rank in self.members]
