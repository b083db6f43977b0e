"""Tests of a reducer's groups: membership, rejections, departures and waits (spec/reduction#losses)."""

from typing import Any

import pytest

from trainshed_reduction import proof, wire
from trainshed_reduction.reducer import groups, rows
from trainshed_reduction.reducer.groups import Group, Member, Refusal, Sessions
from trainshed_reduction.reducer.rows import ArrivedChunks, MemberState, Progress
from trainshed_reduction.wire import DType, Header, Hello, Kind, Reduction, Start

GROUP = proof.group_digest("group")


class Rows:
    """The chunks of a running group, counted as in the C library but not summed."""

    def __init__(self, group: Group) -> None:
        self._progress = group.progress
        self._present = len(group.members)
        self._departed = min(group.departed_positions, default=1 << 64)
        self._states = {rank: MemberState(group.progress.head, 0) for rank in group.members}
        self._seen: dict[int, ArrivedChunks] = {}

    def add(self, header: Header, now: float) -> bool:
        """Add a chunk, and return whether it is valid."""
        rank, position = header.rank, self._states[header.rank].position
        seen = self._seen.get(position, ArrivedChunks(header, now, []))
        is_averaged = header.reduction == Reduction.AVERAGE and DType(header.dtype).is_integer
        if position >= self._departed or is_averaged or not rows.are_alike(seen.shape, header):
            return False
        self._states[rank] = MemberState(position + 1, header.ordinal)
        self._seen[position] = seen._replace(ranks=[*seen.ranks, rank])
        if len(seen.ranks) + 1 == self._present:
            del self._seen[position]
            self._progress = Progress(position + 1, header.operation, header.ordinal, 0)
        return True

    def progress(self) -> Progress:
        return self._progress._replace(partial_count=len(self._seen))

    def chunks(self, position: int) -> ArrivedChunks | None:
        return self._seen.get(position)

    def state(self, rank: int) -> MemberState:
        return self._states[rank]

    def leave(self, rank: int) -> None:
        self._departed = min(self._departed, self._states[rank].position)


class RecordedSessions:
    """Sessions with their recorded effects."""

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
        """Send the first chunk of an operation with `count` elements."""
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
        if taking is None or not taking.add(header, now):
            self.carry_out(member.group.reject_chunk(member, header))

    def bye(self, member: Member) -> None:
        self.carry_out(member.group.handle_frame(member, Header(Kind.BYE), b"", 0.0))

    def lose(self, member: Member, now: float = 0.0) -> None:
        self.carry_out(member.group.handle_loss(member, now))

    def status(self, now: float) -> None:
        self.reminders.clear()
        self.carry_out(self.sessions.status(now))

    def carry_out(self, following: list[groups.Effect]) -> None:
        for effect in following:
            match effect:
                case groups.SendFrame(is_reminder=True):
                    self.reminders[effect.member] = effect.frame[wire.HEADER.size :].decode()
                case groups.SendFrame():
                    assert wire.unpack(effect.frame[: wire.HEADER.size]).kind is Kind.START
                    start = wire.unpack_message(Start, effect.frame[wire.HEADER.size :])
                    self.starts[effect.member] = start.position
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


# ---- membership


def test_lost_connection_restarts_the_group() -> None:
    """spec/reduction#losses: All ranks reconnect, and messages contain the lost rank."""
    desk = RecordedSessions()
    first, second = desk.group(2)
    desk.send(first)
    desk.lose(second, now=10.0)
    assert desk.dismissed == {first: ""}
    assert desk.lines[-1] == "rank 1 lost its connection"
    again = desk.join(0, now=11.0)
    desk.status(22.0)
    assert desk.reminders == {again: "has waited 11 s for rank 1; rank 1 lost its connection 12 s ago"}


def test_rank_that_connects_twice_counts_once_and_loses_its_first_connection() -> None:
    """spec/reduction#losses: The rank's earlier connection was lost without notice."""
    desk = RecordedSessions()
    earlier = desk.join(0)
    later = desk.join(0)
    assert desk.dismissed == {earlier: ""}
    desk.join(1)
    assert earlier not in desk.starts
    assert later in desk.starts
    desk.lose(earlier)
    assert later not in desk.dismissed


def test_rank_that_reconnects_restarts_a_running_group() -> None:
    """spec/reduction#losses: No rank continues with a state that only some ranks know."""
    desk = RecordedSessions()
    first, second = desk.group(2)
    desk.send(first)
    second_again = desk.join(1)
    assert set(desk.dismissed) == {first, second}
    first_again = desk.join(0)
    assert {first_again, second_again} <= set(desk.starts)


def test_worker_of_an_older_group_generation_is_rejected() -> None:
    """spec/reduction#losses: A restarted generation fences earlier ones, even when none of its workers is
    connected any more."""
    desk = RecordedSessions()
    words = r"ranks have restarted: generation 3 was replaced by generation 5"
    member = desk.join(0, generation=5)
    with pytest.raises(Refusal, match=words):
        desk.join(1, generation=3)
    desk.lose(member)
    with pytest.raises(Refusal, match=words):
        desk.join(1, generation=3)


def test_newer_generation_of_a_group_replaces_the_older_generation() -> None:
    """spec/reduction#losses: The reducer does not restart, and no chunk of the older generation remains."""
    desk = RecordedSessions()
    old = desk.group(2)
    desk.send(old[0])
    new = [desk.join(rank, generation=2) for rank in range(2)]
    text = "generation 1 was replaced by generation 2"
    assert desk.dismissed == dict.fromkeys(old, text)
    assert set(new) <= set(desk.starts)


def test_worker_with_another_group_size_is_rejected() -> None:
    """spec/reduction: The error contains its rank."""
    desk = RecordedSessions()
    desk.join(0, 4)
    with pytest.raises(Refusal, match="rank 2 expects a group of 8 workers, the other ranks expect 4"):
        desk.join(2, 8)
    desk.bye(desk.join(0, 4))
    desk.join(2, 8)  # The other ranks have left.


# ---- rejections


@pytest.mark.parametrize(
    ("mine", "text"),
    [
        (
            {"count": 1},
            "operation 17: rank 2 has the SUM of 1 elements of FLOAT32, ranks 0, 1 have the SUM of 2 "
            "elements of FLOAT32",
        ),
        (
            {"count": 2, "dtype": DType.BFLOAT16},
            "operation 17: rank 2 has the SUM of 2 elements of BFLOAT16, ranks 0, 1 have the SUM of 2 "
            "elements of FLOAT32",
        ),
        (
            {"count": 2, "reduction": Reduction.AVERAGE},
            "operation 17: rank 2 has the AVERAGE of 2 elements of FLOAT32, ranks 0, 1 have the SUM of 2 "
            "elements of FLOAT32",
        ),
        (
            {"count": 1, "total": 2},
            "operation 17: rank 2 has the SUM of 2 elements of FLOAT32, chunk 0 of 1 elements each, ranks "
            "0, 1 have the SUM of 2 elements of FLOAT32, chunk 0 of 2 elements each",
        ),
        (
            {"count": 1, "ordinal": 18},
            "rank 2 has the SUM of 1 elements of FLOAT32 as operation 18, ranks 0, 1 have the SUM of 2 "
            "elements of FLOAT32 as operation 17: every rank must issue the same all-reduces in the same "
            "order",
        ),
    ],
)
def test_mismatched_operations_of_ranks_fail_immediately_with_an_error_for_all_ranks(
    mine: dict[str, Any], text: str
) -> None:
    """spec/reduction: All ranks get the error about mismatched sizes or types."""
    desk = RecordedSessions()
    members = desk.group(3)
    for member in members[:2]:
        desk.send(member, 2, ordinal=17)
    fields: dict[str, Any] = {"ordinal": 17, **mine}
    desk.send(members[2], **fields)
    assert desk.dismissed == dict.fromkeys(members, text)
    with pytest.raises(Refusal, match=text):
        desk.join(0, 3)


def test_average_of_integers_is_rejected() -> None:
    """spec/reduction#exactness: An error is better than an unexpected number."""
    desk = RecordedSessions()
    members = desk.group(2)
    desk.send(members[1], 1, DType.INT64, reduction=Reduction.AVERAGE, ordinal=4)
    text = "operation 4: rank 1 requests the AVERAGE of INT64; integers support only SUM"
    assert desk.dismissed == dict.fromkeys(members, text)


def test_error_of_a_failed_worker_is_sent_to_all_ranks() -> None:
    """spec/reduction#reports: The failure's reason is sent to every rank, without control characters."""
    desk = RecordedSessions()
    members = desk.group(2)
    desk.carry_out(members[1].group.handle_frame(members[1], Header(Kind.ERROR), b"no\nmemory", 0.0))
    assert desk.dismissed[members[0]] == "rank 1 failed: no memory"


# ---- leaving


def test_rank_that_leaves_does_not_stop_the_other_ranks() -> None:
    """spec/reduction: The other ranks fail only if they need more chunks of the rank that left."""
    desk = RecordedSessions()
    members = desk.group(3)
    for operation in range(17):
        for member in members:
            desk.send(member, 1, operation=operation)
    desk.bye(members[1])
    assert desk.dismissed == {members[1]: ""}
    desk.send(members[0], 1, operation=17)
    text = "rank 1 has left the group after operation 17"
    assert desk.dismissed[members[0]] == desk.dismissed[members[2]] == text


def test_group_name_is_reusable_after_all_ranks_have_left() -> None:
    """spec/reduction#losses: The same generation may create a group with the same name."""
    desk = RecordedSessions()
    for member in desk.group(2):
        desk.bye(member)
    for member in desk.group(2):
        desk.send(member)
    assert not desk.sessions.is_waiting


# ---- waits


def test_waiting_worker_receives_a_list_of_the_missing_ranks() -> None:
    """spec/reduction: Every wait reports the missing ranks."""
    desk = RecordedSessions()
    members = desk.group(4)
    for member in members[1:3]:
        desk.send(member, 1, now=5.0)
    desk.status(5.5)
    assert not desk.reminders
    desk.status(17.0)
    assert desk.reminders == dict.fromkeys(members[1:3], "has waited 12 s for ranks 0, 3")


def test_internal_sum_without_an_ordinal_is_not_reported_as_a_user_operation() -> None:
    """spec/reduction#exactness: A program's operations are counted from 1. Internal sums have no number."""
    desk = RecordedSessions()
    members = desk.group(3)
    for member in members:
        desk.send(member, 1, ordinal=0)
    desk.send(members[0], 1, operation=1, ordinal=0, now=5.0)
    desk.status(7.0)
    assert list(desk.reminders) == [members[0]]
    desk.bye(members[2])
    assert desk.dismissed[members[0]] == "rank 2 has left the group"
