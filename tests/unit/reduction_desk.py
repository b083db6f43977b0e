"""A reducer without a socket: its sessions, and what they have asked for so far."""

from typing import Any

import numpy as np

from trainshed_reduction import proof, wire
from trainshed_reduction.arithmetic import NumpyKernels
from trainshed_reduction.reducer import groups
from trainshed_reduction.reducer.buffers import Buffers
from trainshed_reduction.reducer.counters import Counters
from trainshed_reduction.reducer.groups import Member
from trainshed_reduction.reducer.sessions import Sessions
from trainshed_reduction.wire import DType, Header, Hello, Kind, Reduction

GROUP = proof.group_digest("group")


class Desk:
    """Sessions, and what they have asked for so far."""

    def __init__(self) -> None:
        self.buffers = Buffers()
        self.counters = Counters()
        self.sessions = Sessions(NumpyKernels(), self.buffers, self.counters)
        self.starts: dict[Member, int] = {}
        self.results: dict[Member, list[tuple[Header, bytes]]] = {}
        self.dismissed: dict[Member, str] = {}
        self.resumed: list[Member] = []
        self.reminders: dict[Member, str] = {}
        self.lines: list[str] = []
        self.completed: list[int] = []

    def join(
        self,
        rank: int,
        world: int = 2,
        *,
        generation: int = 1,
        epoch: int = 0,
        received: int = 0,
        now: float = 0.0,
    ) -> Member:
        hello = Hello(b"", b"", GROUP, generation, epoch, rank, world, received)
        member, following = self.sessions.admit(hello, now)
        self.carry_out(following)
        return member

    def send(
        self,
        member: Member,
        data: bytes,
        dtype: DType = DType.FLOAT32,
        *,
        kind: Kind = Kind.DATA,
        reduction: Reduction = Reduction.SUM,
        operation: int = 0,
        ordinal: int | None = None,
        chunk: int = 0,
        total: int = 0,
        step: int = 0,
        acknowledged: int = 0,
        now: float = 0.0,
    ) -> None:
        count = len(data) // dtype.itemsize
        header = Header(
            kind,
            dtype,
            reduction,
            member.rank,
            chunk,
            operation,
            total or count,
            step or count,
            len(data),
            acknowledged,
            operation + 1 if ordinal is None else ordinal,
        )
        block = self.buffers.take(len(data))
        block.data[:] = data
        self.carry_out(self.sessions.frame(member, header, block, now))

    def bye(self, member: Member) -> None:
        self.carry_out(self.sessions.frame(member, Header(Kind.BYE), b"", 0.0))

    def lose(self, member: Member, now: float = 0.0) -> None:
        self.carry_out(self.sessions.lose(member, now))

    def status(self, now: float) -> None:
        self.reminders.clear()
        self.carry_out(self.sessions.status(now))

    def carry_out(self, following: list[groups.Effect]) -> None:
        for effect in following:
            match effect:
                case groups.Deliver():
                    header = wire.unpack(effect.header)
                    for member in effect.members:
                        # Copied now: whoever gets it must not see what later becomes of the memory.
                        received = (header, bytes(effect.payload.data))
                        self.results.setdefault(member, []).append(received)
                case groups.Tell(is_reminder=True):
                    self.reminders[effect.member] = effect.frame[wire.HEADER.size :].decode()
                case groups.Tell():
                    header, payload = (
                        effect.frame[: wire.HEADER.size],
                        effect.frame[wire.HEADER.size :],
                    )
                    assert wire.unpack(header).kind is Kind.START
                    self.starts[effect.member] = wire.unpack_start(payload).position
                case groups.Resume():
                    self.resumed += effect.members
                case groups.Dismiss():
                    self.dismissed[effect.member] = effect.farewell[wire.HEADER.size :].decode()
                case groups.Log():
                    self.lines.append(effect.text)
                case groups.Completed():
                    self.completed.append(effect.world)
                case groups.Started():
                    pass  # That C could read for its members from now on.

    def group(self, world: int, **fields: Any) -> list[Member]:
        members = [self.join(rank, world, **fields) for rank in range(world)]
        assert all(member in self.starts for member in members)
        return members


def numbers(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


def sums(desk: Desk, member: Member) -> list[list[float]]:
    return [np.frombuffer(data, np.float32).tolist() for _, data in desk.results.get(member, [])]
