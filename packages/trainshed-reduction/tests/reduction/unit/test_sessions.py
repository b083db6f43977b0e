"""Groups of a reducer: who takes part, what is refused, who leaves, what waits. spec/reduction#losses (a
reducer is lost)."""

from typing import Any

import pytest

from tests.reduction.unit.desk import Desk
from trainshed_reduction.reducer.groups import Refusal
from trainshed_reduction.wire import DType, Header, Kind, Reduction

# ---- who takes part


def test_a_lost_connection_begins_the_group_anew() -> None:
    """spec/reduction#losses: all come again, and who was lost is named."""
    desk = Desk()
    first, second = desk.group(2)
    desk.send(first)
    desk.lose(second, now=10.0)
    assert desk.dismissed == {first: ""}
    assert desk.lines[-1] == "rank 1 lost its connection"
    again = desk.join(0, now=11.0)
    desk.status(22.0)
    assert desk.reminders == {again: "waits 11 s for rank 1; rank 1 lost its connection 12 s ago"}


def test_a_rank_that_comes_twice_counts_once() -> None:
    """spec/reduction#losses: its earlier connection was lost without a sign."""
    desk = Desk()
    earlier = desk.join(0)
    later = desk.join(0)
    assert desk.dismissed == {earlier: ""}
    desk.join(1)
    assert earlier not in desk.starts
    assert later in desk.starts
    desk.lose(earlier)
    assert later not in desk.dismissed


def test_a_rank_that_comes_again_to_a_running_group_begins_it_anew() -> None:
    """spec/reduction#losses: nobody goes on with what only half of them know of."""
    desk = Desk()
    first, second = desk.group(2)
    desk.send(first)
    second_again = desk.join(1)
    assert set(desk.dismissed) == {first, second}
    first_again = desk.join(0)
    assert {first_again, second_again} <= set(desk.starts)


def test_older_ones_are_refused() -> None:
    """spec/reduction#losses: a restarted generation fences older ones, and so does one that has given up a
    reducer, also when nobody of it is connected any more."""
    desk = Desk()
    member = desk.join(0, generation=5)
    with pytest.raises(
        Refusal, match=r"^generation 3 is older than 5: these workers were replaced"
    ):
        desk.join(1, generation=3)
    desk.lose(member)
    with pytest.raises(
        Refusal, match=r"^generation 3 is older than 5: these workers were replaced"
    ):
        desk.join(1, generation=3)


def test_newer_ones_end_what_is_older() -> None:
    """spec/reduction#losses: without a restart of the reducer, and nothing is left of the older ones'
    chunks."""
    desk = Desk()
    old = desk.group(2)
    desk.send(old[0])
    new = [desk.join(rank, generation=2) for rank in range(2)]
    text = "generation 2 has taken the place of generation 1"
    assert desk.dismissed == dict.fromkeys(old, text)
    assert set(new) <= set(desk.starts)


def test_ranks_without_a_generation_wait_for_rank_0s() -> None:
    """spec/reduction#losses: they know it when the group starts."""
    desk = Desk()
    early = desk.join(1, generation=0)
    assert not desk.starts
    desk.join(0, generation=7)
    assert early in desk.starts
    with pytest.raises(Refusal):
        desk.join(0, generation=6)


def test_a_new_rank_without_a_generation_does_not_join_an_old_group() -> None:
    """spec/reduction#losses: a restarted worker waits for its own generation, and the old one's work goes on
    until that comes."""
    desk = Desk()
    old = desk.group(2)
    for member in old:
        desk.send(member)
    new = desk.join(1, generation=0, now=1.0)
    assert not desk.dismissed
    desk.status(5.0)
    assert desk.reminders[new].endswith("for rank 0")
    other = desk.join(0, generation=2)
    assert set(desk.dismissed) == set(old)
    assert {new, other} <= set(desk.starts)


def test_groups_of_different_sizes_do_not_mix() -> None:
    """spec/reduction: mismatches are an error that names the rank."""
    desk = Desk()
    desk.join(0, 4)
    with pytest.raises(Refusal, match="rank 2 says that the group has 8 workers, the others say 4"):
        desk.join(2, 8)
    desk.bye(desk.join(0, 4))
    desk.join(2, 8)  # Nobody is left who says anything else.


# ---- what is refused at once


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
def test_ranks_that_disagree_are_named_at_once(mine: dict[str, Any], text: str) -> None:
    """spec/reduction: mismatched sizes or types between ranks are an immediate error, for all of them."""
    desk = Desk()
    members = desk.group(3)
    for member in members[:2]:
        desk.send(member, 2, ordinal=17)
    fields: dict[str, Any] = {"ordinal": 17, **mine}
    desk.send(members[2], **fields)
    assert desk.dismissed == dict.fromkeys(members, text)
    with pytest.raises(Refusal, match=text):
        desk.join(0, 3)


def test_integers_have_no_average() -> None:
    """spec/reduction#exactness: rather an error than a number that nobody expects."""
    desk = Desk()
    members = desk.group(2)
    desk.send(members[1], 1, DType.INT64, reduction=Reduction.AVERAGE, ordinal=4)
    text = "operation 4: rank 1 asks for the AVERAGE of INT64; integers can only be summed"
    assert desk.dismissed == dict.fromkeys(members, text)


def test_a_worker_that_cannot_go_on_tells_the_others() -> None:
    """spec/reduction#reports: its reason reaches every rank, without what could spoil a log."""
    desk = Desk()
    members = desk.group(2)
    desk.carry_out(members[1].group.frame(members[1], Header(Kind.ERROR), b"no\nmemory", 0.0))
    assert desk.dismissed[members[0]] == "rank 1 cannot go on: no memory"


# ---- leaving


def test_who_leaves_in_good_order_stops_nobody() -> None:
    """spec/reduction: until the others want more from it."""
    desk = Desk()
    members = desk.group(3)
    for operation in range(17):
        for member in members:
            desk.send(member, 1, operation=operation)
    desk.bye(members[1])
    assert desk.dismissed == {members[1]: ""}
    desk.send(members[0], 1, operation=17)
    text = "rank 1 has left the group after operation 17"
    assert desk.dismissed[members[0]] == desk.dismissed[members[2]] == text


def test_when_all_have_left_the_name_is_free() -> None:
    """spec/reduction#losses: the same generation may make a group of the same name again."""
    desk = Desk()
    for member in desk.group(2):
        desk.bye(member)
    for member in desk.group(2):
        desk.send(member)
    assert not desk.sessions.is_waiting


# ---- bounds, waiting


def test_who_waits_is_told_for_whom() -> None:
    """spec/reduction: every wait names the missing rank."""
    desk = Desk()
    members = desk.group(4)
    for member in members[1:3]:
        desk.send(member, 1, now=5.0)
    desk.status(5.5)
    assert not desk.reminders
    desk.status(17.0)
    assert desk.reminders == dict.fromkeys(members[1:3], "waits 12 s for ranks 0, 3")


def test_the_first_sums_of_a_group_are_nobodys_operations() -> None:
    """spec/reduction#exactness: a program's operations are counted from 1; what a group tries itself out with
    has no number."""
    desk = Desk()
    members = desk.group(3)
    for member in members:
        desk.send(member, 1, ordinal=0)
    desk.send(members[0], 1, operation=1, ordinal=0, now=5.0)
    desk.status(7.0)
    assert list(desk.reminders) == [members[0]]
    desk.bye(members[2])
    assert desk.dismissed[members[0]] == "rank 2 has left the group"
