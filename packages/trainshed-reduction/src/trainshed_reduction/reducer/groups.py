"""The groups of ranks at a reducer, with their members and their progress. This module performs no I/O.
Callers report events and the time to it, and execute the effects (such as sending a frame) that its methods
return.

A group gathers until all ranks are connected or have left. Then it runs until a connection breaks, and
gathers again. After each START, every worker sends its chunks again, from START's position on. Every rank
sends a chunk for every position, in order. `rows` sums the chunks.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Dict, List, NamedTuple, Optional, Tuple, Union

from trainshed_reduction import proof, wire
from trainshed_reduction.reducer import rows
from trainshed_reduction.reducer.rows import ArrivedChunks, MemberState, Progress, RunningRows
from trainshed_reduction.wire import DType, Header, Hello, Kind, Malformed, Reduction, Start


class Member:
    """A worker's connection after HELLO. Every HELLO creates a new member."""

    def __init__(self, hello: Hello, group: Group) -> None:
        self.hello = hello
        self.rank = hello.rank
        self.group = group


class SendFrame(NamedTuple):
    """An effect: send one frame to a worker. `is_reminder`: skip the frame if other frames to the worker are
    not sent yet, because the worker is then not waiting."""

    member: Member
    frame: bytes
    is_reminder: bool = False


class Dismiss(NamedTuple):
    """An effect: close a connection after sending its last frame, `farewell`. If `farewell` is b"", close the
    connection immediately. The member has already left the group."""

    member: Member
    farewell: bytes


class Log(NamedTuple):
    """An effect: write a line to the log."""

    text: str


class Started(NamedTuple):
    """An effect: start to sum chunks, because all ranks are connected. The caller must call `Group.run`
    before it reads further frames. `is_first`: whether the group starts for the first time. The caller logs
    the first start."""

    group: Group
    is_first: bool


Effect = Union[SendFrame, Dismiss, Log, Started]

_STATUS_DELAY = 0.6
"""Seconds that a worker must have waited before it receives a status."""


class Group:
    """One generation of a group. A restart of the ranks starts the next generation."""

    def __init__(self, hello: Hello, now: float) -> None:
        self.generation = hello.generation
        self.world = hello.world
        self.members: Dict[int, Member] = {}
        #: The error that ended this generation; None = it has not failed.
        self.failure: Optional[str] = None
        self._running = False
        self._completed = False
        self._since = now
        #: The ranks that have left the group, each with its last state.
        self._parted: Dict[int, MemberState] = {}
        self._lost: Dict[int, float] = {}
        #: The object that sums chunks; None = the group is not running.
        self._rows: Optional[RunningRows] = None
        #: The progress when the group stopped running the last time.
        self._reached = Progress(0, -1, 0, 0)

    @property
    def is_waiting(self) -> bool:
        return bool(self.progress.partial_count if self._running else self.members)

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def progress(self) -> Progress:
        return self._reached if self._rows is None else self._rows.progress()

    @property
    def departed_positions(self) -> List[int]:
        """The first position that a rank has not sent, for each rank that has left."""
        return [member.position for member in self._parted.values()]

    def run(self, rows: RunningRows) -> None:
        """Use `rows` to sum chunks until the group gathers again. The caller passes chunks that do not match
        to `reject_chunk`."""
        self._rows = rows

    def _stop(self) -> None:
        self._reached = self.progress._replace(partial_count=0)
        self._rows = None
        self.members.clear()
        self._running = False

    def _state(self, member: Member) -> MemberState:
        if self._rows is None:
            return MemberState(member.hello.received, 0)
        return self._rows.state(member.rank)

    def gather(self, member: Member, now: float) -> List[Effect]:
        """Add a rank's connection. If the group is then complete, start the group. The connection replaces
        the rank's earlier connection."""
        rank = member.rank
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
        return effects + self._start()

    def _start(self) -> List[Effect]:
        if self._running or len(self.members) + len(self._parted) < self.world:
            return []
        head = min([member.hello.received for member in self.members.values()] + self.departed_positions)
        self._reached = self._reached._replace(head=head)
        self._running = True
        frame = proof.frame(Kind.START, wire.pack_message(Start(head)))
        is_first, self._completed = not self._completed, True
        return [*(SendFrame(member, frame) for member in self.members.values()), Started(self, is_first)]

    def _reset(self, now: float) -> List[Effect]:
        """Close the connections of all members. The workers then connect again."""
        effects: List[Effect] = [Dismiss(member, b"") for member in self.members.values()]
        self._stop()
        self._since = now
        return effects

    def handle_frame(self, member: Member, header: Header, payload: bytes, now: float) -> List[Effect]:
        """Handle a frame that contains no chunk. Raises Malformed if the frame is not allowed, so that the
        caller closes the connection."""
        if header.kind is Kind.BYE:
            return self._leave(member, now)
        if header.kind is Kind.ERROR:
            reason = payload.decode(errors="replace")
            text = "".join(character if character.isprintable() else " " for character in reason)
            return self.fail(f"rank {member.rank} failed: {text}")
        raise Malformed(f"a worker must not send {header.kind.name} at this point")

    def reject_chunk(self, member: Member, header: Header) -> List[Effect]:
        """Handle a chunk that does not match the chunks of other ranks: the group fails. `header`: the header
        of the chunk."""
        position = self._state(member).position
        arrived = None if self._rows is None else self._rows.chunks(position)
        return self.fail(self._objection(member, header, arrived))

    def _objection(self, member: Member, shape: Header, arrived: Optional[ArrivedChunks]) -> str:
        """Return why a chunk is rejected. `shape`: the chunk's header. `arrived`: the chunks of other ranks
        for its position, if any."""
        dtype = DType(shape.dtype)
        if shape.reduction == Reduction.AVERAGE and dtype.is_integer:
            return (
                f"operation {shape.ordinal}: rank {member.rank} requests the AVERAGE of {dtype.name}; "
                "integers support only SUM"
            )
        if arrived is not None and not rows.are_alike(arrived.shape, shape):
            return rows.disagreement(member.rank, shape, arrived.ranks, arrived.shape)
        # A rank has left without sending a chunk for this position.
        return next((_has_left(rank, parted) for rank, parted in self._parted.items()), "")

    def _leave(self, member: Member, now: float) -> List[Effect]:
        effects: List[Effect] = [Dismiss(member, b"")]
        if not self._forget(member):
            return effects
        position, ordinal = self._state(member)
        if self._rows is not None:
            self._rows.leave(member.rank)
        if not self.members:  # The group has ended. Clear its state for a new group of that name.
            self._parted.clear()
            self._stop()
            return effects
        parted = MemberState(position, ordinal or self.progress.ordinal)
        self._parted[member.rank] = parted
        if any(self._state(other).position > position for other in self.members.values()):
            return effects + self.fail(_has_left(member.rank, parted))
        return effects + self._start()

    def handle_loss(self, member: Member, now: float) -> List[Effect]:
        """Handle the loss of a member's connection."""
        if not self._forget(member):
            return []
        self._lost[member.rank] = now
        effects: List[Effect] = [Log(f"rank {member.rank} lost its connection")]
        return effects + self._reset(now) if self._running else effects

    def _forget(self, member: Member) -> bool:
        """Remove a member from the group. Return False if a newer connection has already replaced it."""
        if self.members.get(member.rank) is not member:
            return False
        del self.members[member.rank]
        return True

    def fail(self, text: str) -> List[Effect]:
        """End this generation because of an error. All members receive the text of the error."""
        self.failure = text
        farewell = proof.text_frame(Kind.ERROR, text)
        effects: List[Effect] = [Dismiss(member, farewell) for member in self.members.values()]
        self._stop()
        return [Log(text), *effects]

    def status(self, now: float) -> List[Effect]:
        """Return reminders that contain the missing ranks, for members that have waited for a while."""
        since = self._since
        if self._rows is not None:
            head = self.progress.head
            row = self._rows.chunks(head)
            since = since if row is None else row.since
            missing = [rank for rank in self.members if self._rows.state(rank).position <= head]
            waiting = [member for rank, member in self.members.items() if rank not in missing]
        else:
            present = {*self.members, *self._parted}
            missing = [rank for rank in range(self.world) if rank not in present]
            waiting = [*self.members.values()]
        if not waiting or not missing or now - since < _STATUS_DELAY:
            return []
        text = f"has waited {now - since:.0f} s for {rows.format_ranks(missing)}"
        for rank in sorted(rank for rank in missing if rank in self._lost)[:4]:
            text += f"; rank {rank} lost its connection {now - self._lost[rank]:.0f} s ago"
        frame = proof.text_frame(Kind.STATUS, text)
        return [SendFrame(member, frame, True) for member in waiting]


def _has_left(rank: int, state: MemberState) -> str:
    after = f" after operation {state.ordinal}" if state.ordinal else ""
    return f"rank {rank} has left the group{after}"


_MAX_REMEMBERED = 1024
"""The reducer remembers the generations of at most this many groups without connections."""


class Refusal(Exception):
    """The reducer rejects a worker. The message contains the reason."""


class Sessions:
    """The groups at a reducer's thread, by name. Each group has one current generation."""

    def __init__(self) -> None:
        self._groups: OrderedDict[bytes, Group] = OrderedDict()

    @property
    def is_waiting(self) -> bool:
        """Whether a member waits, so that `status` may return reminders."""
        return any(group.is_waiting for group in self._groups.values())

    def admit(self, hello: Hello, now: float) -> Tuple[Member, List[Effect]]:
        """Add an authenticated worker to its group, and return the effects. The caller must send ACCEPT
        before it executes them. Raises Refusal if the worker does not fit the group."""
        group = self._groups.get(hello.group)
        effects: List[Effect] = []
        if group is None:
            group = self._add_group(hello, now)
        elif hello.generation < group.generation:
            raise Refusal(
                f"the group's ranks have restarted: generation {hello.generation} was replaced by "
                f"generation {group.generation}"
            )
        elif hello.generation > group.generation:
            effects = group.fail(
                f"generation {group.generation} was replaced by generation {hello.generation}"
            )
            group = self._add_group(hello, now)
        elif group.failure:
            raise Refusal(group.failure)
        elif hello.world != group.world:
            if not group.is_empty:
                raise Refusal(
                    f"rank {hello.rank} expects a group of {hello.world} workers, the other ranks expect "
                    f"{group.world}"
                )
            group = self._add_group(hello, now)
        self._groups.move_to_end(hello.group)
        member = Member(hello, group)
        return member, effects + group.gather(member, now)

    def _add_group(self, hello: Hello, now: float) -> Group:
        empty = [name for name, group in self._groups.items() if group.is_empty]
        if len(empty) >= _MAX_REMEMBERED:
            del self._groups[empty[0]]
        group = Group(hello, now)
        self._groups[hello.group] = group
        return group

    def status(self, now: float) -> List[Effect]:
        """Return reminders for members that wait. Call this once per second while `is_waiting`."""
        effects: List[Effect] = []
        for group in self._groups.values():
            if group.is_waiting:
                effects += group.status(now)
        return effects
