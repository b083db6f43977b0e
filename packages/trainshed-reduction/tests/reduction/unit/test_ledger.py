"""Which chunk goes where, and what is sent again when reducers are lost, without any socket
(spec/reduction#losses)."""

from hypothesis import given
from hypothesis import strategies as st

from trainshed_reduction.client.ledger import Ledger, place_of
from trainshed_reduction.client.operations import Operation
from trainshed_reduction.native.transfer import Frame
from trainshed_reduction.wire import DType, Kind, Reduction

_CHUNK = 16 << 10


class Rank:
    """A ledger whose operations are bytearrays: at first all of them 1 + rank, results 255."""

    def __init__(self, rank: int, lanes: int, world: int) -> None:
        self.rank = rank
        self.ledger = Ledger(lanes, rank, world, _CHUNK)
        self.memory: list[bytearray] = []
        self.done: list[int] = []
        self.sent: list[list[Frame]] = [[] for _ in range(lanes)]

    def issue(self, size: int) -> None:
        memory = bytearray([1 + self.rank]) * size
        self.memory.append(memory)
        pending = Operation(len(self.memory))
        pushes = self.ledger.issue(memoryview(memory), DType.INT32, Reduction.SUM, pending)
        for lane, frame in pushes:
            self.sent[lane].append(frame)

    def receive(self, lane: int) -> None:
        """The result of the next position of the lane that is not here."""
        position = self.ledger.received(lane)
        frame = self.sent[lane][position]
        assert frame.target is not None
        frame.target[:] = b"\xff" * len(frame.target)
        work = self.ledger.arrived(lane, position)
        if work is not None:
            self.ledger.release(work)
            assert self.memory[work.header.operation] == b"\xff" * len(
                self.memory[work.header.operation]
            )
            # What a user may do with it from now on.
            self.memory[work.header.operation][:] = b"\x55" * len(
                self.memory[work.header.operation]
            )
            self.done.append(work.header.operation)


@given(lanes=st.integers(1, 6), world=st.integers(1, 9))
def test_ranks_agree_on_lanes_and_rows_and_differ_within_a_row(lanes: int, world: int) -> None:
    """spec/reduction: lanes, and the whole part of a row, are the same on all ranks."""
    for number in range(5 * lanes):
        places = [place_of(number, lanes, rank, world) for rank in range(world)]
        assert {place.lane for place in places} == {number % lanes}
        assert {int(place.row) for place in places} == {number // lanes}


def test_reducers_are_begun_at_different_places() -> None:
    """spec/reduction (stagger): where there are as many reducers as ranks, no two ranks send to one at a
    time."""
    for world in (2, 4, 8):
        rows = [[place_of(at, world, rank, world) for at in range(world)] for rank in range(world)]
        first = [min(row, key=lambda place: place.row).lane for row in rows]
        assert sorted(first) == list(range(world))


def test_a_chunk_stays_until_all_have_it_even_when_the_user_has_written_over_it() -> None:
    """spec/reduction#exactness: what is sent again after an operation is done is the result, whatever became
    of the user's memory."""
    rank = Rank(0, 2, 2)
    rank.issue(4 * _CHUNK)
    for lane in (0, 1):
        rank.receive(lane)
        rank.receive(lane)
    assert rank.done == [0]
    again = rank.ledger.replay(0, 0)
    assert again is not None and [frame.header.kind for frame in again] == [Kind.FINAL, Kind.FINAL]
    assert all(set(frame.payload) == {0xFF} and frame.target is None for frame in again)
    rank.ledger.acknowledge(0, 1)
    assert len(rank.ledger.replay(0, 1) or ()) == 1
    assert rank.ledger.replay(0, 0) is None, "all ranks have it"
    assert rank.ledger.replay(0, 3) is None, "this rank itself has not got so far"


def test_what_is_not_here_is_sent_again_as_input() -> None:
    """spec/reduction#exactness: of an operation under way a rank sends results that it has, and its own input
    for the rest."""
    rank = Rank(1, 1, 2)
    rank.issue(4 * _CHUNK)
    rank.receive(0)
    again = rank.ledger.replay(0, 0)
    assert again is not None
    assert [frame.header.kind for frame in again] == [Kind.FINAL, Kind.DATA, Kind.DATA, Kind.DATA]
    assert [set(frame.payload) for frame in again] == [{0xFF}, {2}, {2}, {2}]
    assert {frame.header.rank for frame in again} == {1}


def test_kept_copies_are_given_back() -> None:
    """spec/reduction: what all ranks have takes no memory."""
    rank = Rank(0, 1, 2)
    rank.issue(2 * _CHUNK)
    rank.receive(0)
    rank.ledger.acknowledge(0, 1)
    rank.receive(0)
    assert rank.ledger.keeps(0)
    rank.ledger.acknowledge(0, 2)
    assert not rank.ledger.keeps(0)
