"""A reducer without a socket: its sessions, and what they have asked for so far."""

from typing import Any

from trainshed_reduction import proof, wire
from trainshed_reduction.reducer import groups, rows
from trainshed_reduction.reducer.groups import Group, Member, Sessions
from trainshed_reduction.reducer.rows import MemberState, Progress, Seen
from trainshed_reduction.wire import DType, Header, Hello, Kind, Reduction, Start

GROUP = proof.group_digest("group")


class Rows:
    """Chunks of a running group, taken and counted as the part in C does, and not added up: of that
    packages/trainshed-reduction/tests/reduction."""

    def __init__(self, group: Group) -> None:
        self._progress = group.progress
        self._present = len(group.members)
        self._departed = min(group.departed, default=1 << 64)
        self._states = {rank: MemberState(group.progress.head, 0) for rank in group.members}
        self._seen: dict[int, Seen] = {}

    def take(self, header: Header, now: float) -> bool:
        """Whether the chunk is as it should be."""
        rank, position = header.rank, self._states[header.rank].position
        seen = self._seen.get(position, Seen(header, now, []))
        is_averaged = header.reduction == Reduction.AVERAGE and DType(header.dtype).is_integer
        if position >= self._departed or is_averaged or not rows.are_alike(seen.shape, header):
            return False
        self._states[rank] = MemberState(position + 1, header.ordinal)
        self._seen[position] = seen._replace(arrived=[*seen.arrived, rank])
        if len(seen.arrived) + 1 == self._present:
            del self._seen[position]
            self._progress = Progress(position + 1, header.operation, header.ordinal, 0)
        return True

    def progress(self) -> Progress:
        return self._progress._replace(begun=len(self._seen))

    def seen(self, position: int) -> Seen | None:
        return self._seen.get(position)

    def state(self, rank: int) -> MemberState:
        return self._states[rank]

    def leave(self, rank: int) -> None:
        self._departed = min(self._departed, self._states[rank].position)


class Desk:
    """Sessions, and what they have asked for so far."""

    def __init__(self) -> None:
        self.sessions = Sessions()
        self.starts: dict[Member, int] = {}
        self.dismissed: dict[Member, str] = {}
        self._rows: dict[Group, Rows] = {}
        self.reminders: dict[Member, str] = {}
        self.lines: list[str] = []
        self.completed: list[int] = []

    def join(
        self, rank: int, world: int = 2, *, generation: int = 1, received: int = 0, now: float = 0.0
    ) -> Member:
        hello = Hello(GROUP, generation, rank, world, 0, received)
        member, following = self.sessions.admit(hello, now)
        self.carry_out(following)
        return member

    def send(
        self,
        member: Member,
        count: int = 1,
        dtype: DType = DType.FLOAT32,
        *,
        reduction: Reduction = Reduction.SUM,
        operation: int = 0,
        ordinal: int | None = None,
        total: int = 0,
        now: float = 0.0,
    ) -> None:
        """The first chunk of an operation, of `count` elements."""
        header = Header(
            Kind.DATA,
            dtype,
            reduction,
            member.rank,
            operation=operation,
            total=total or count,
            step=count,
            nbytes=count * dtype.itemsize,
            ordinal=operation + 1 if ordinal is None else ordinal,
        )
        taking = self._rows.get(member.group) if member not in self.dismissed else None
        if taking is None or not taking.take(header, now):
            self.carry_out(member.group.odd(member, header))

    def bye(self, member: Member) -> None:
        self.carry_out(member.group.frame(member, Header(Kind.BYE), b"", 0.0))

    def lose(self, member: Member, now: float = 0.0) -> None:
        self.carry_out(member.group.lose(member, now))

    def status(self, now: float) -> None:
        self.reminders.clear()
        self.carry_out(self.sessions.status(now))

    def carry_out(self, following: list[groups.Effect]) -> None:
        for effect in following:
            match effect:
                case groups.Tell(is_reminder=True):
                    self.reminders[effect.member] = effect.frame[wire.HEADER.size :].decode()
                case groups.Tell():
                    header, payload = (
                        effect.frame[: wire.HEADER.size],
                        effect.frame[wire.HEADER.size :],
                    )
                    assert wire.unpack(header).kind is Kind.START
                    self.starts[effect.member] = wire.unpack_message(Start, payload).position
                case groups.Dismiss():
                    self.dismissed[effect.member] = effect.farewell[wire.HEADER.size :].decode()
                case groups.Log():
                    self.lines.append(effect.text)
                case groups.Started():
                    if effect.is_first:
                        self.completed.append(effect.group.world)
                    taking = self._rows[effect.group] = Rows(effect.group)
                    effect.group.run(taking)

    def group(self, world: int, **fields: Any) -> list[Member]:
        members = [self.join(rank, world, **fields) for rank in range(world)]
        assert all(member in self.starts for member in members)
        return members
