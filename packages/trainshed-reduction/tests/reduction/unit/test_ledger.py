"""Which chunk goes where, and what is sent again when reducers are lost, without any socket
(spec/reduction#losses).

A planted reducer stands for the real ones: it gives a result when all ranks have sent the chunk at its
position.
"""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from trainshed_reduction.client.ledger import ChunkDealer, Ledger
from trainshed_reduction.client.operations import Operation
from trainshed_reduction.native.transfer import Frame
from trainshed_reduction.wire import DType, Kind, Reduction

_CHUNK = 16 << 10


class Rank:
    """A ledger whose operations are bytearrays: at first all of them 1 + rank, results 255."""

    def __init__(self, rank: int, weights: list[float], world: int) -> None:
        self.rank = rank
        self.ledger = Ledger(weights, rank, world, _CHUNK)
        self.memory: list[bytearray] = []
        self.done: list[int] = []
        self.sent: list[list[Frame]] = [[] for _ in weights]

    def issue(self, size: int) -> None:
        memory = bytearray([1 + self.rank]) * size
        self.memory.append(memory)
        pending = Operation(len(self.memory))
        pushes = self.ledger.issue(memoryview(memory), DType.INT32, Reduction.SUM, pending)
        for lane, frame in pushes:
            self.sent[lane].append(frame)

    def receive(self, lane: int, base: int = 0) -> None:
        """The result of the next position of the lane that is not here."""
        position = self.ledger.received(lane)
        frame = self.sent[lane][position - base]
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


def _chunks(frames: list[Frame]) -> list[tuple[int, int]]:
    return [(frame.header.operation, frame.header.chunk) for frame in frames]


@settings(max_examples=40, deadline=None)
@given(
    weights=some.lists(some.sampled_from([0.0, 1.0, 0.3, 0.1]), min_size=1, max_size=6).filter(any),
    world=some.integers(1, 9),
)
def test_ranks_agree_on_lanes_and_rows_and_differ_within_a_row(
    weights: list[float], world: int
) -> None:
    """spec/reduction: lanes, and the whole part of a row, are the same on all ranks; lanes of no weight get
    nothing."""
    dealers = [ChunkDealer(weights, rank, world) for rank in range(world)]
    used = sum(weight > 0 for weight in weights)
    for number in range(5 * used):
        places = [dealer.next() for dealer in dealers]
        assert len({place.lane for place in places}) == 1
        assert weights[places[0].lane] > 0
        assert {int(place.row) for place in places} == {number // used}


def test_equal_reducers_are_begun_at_different_places() -> None:
    """spec/reduction (stagger): where there are as many reducers as ranks, no two ranks send to one at a
    time."""
    for world in (2, 4, 8):
        dealers = [ChunkDealer([1.0] * world, rank, world) for rank in range(world)]
        rows = [[dealer.next() for _ in range(world)] for dealer in dealers]
        first = [min(row, key=lambda place: place.row).lane for row in rows]
        assert sorted(first) == list(range(world))


def test_a_chunk_stays_until_all_have_it_even_when_the_user_has_written_over_it() -> None:
    """spec/reduction#exactness: what is sent again after an operation is done is the result, whatever became
    of the user's memory."""
    rank = Rank(0, [1.0, 1.0], 2)
    rank.issue(4 * _CHUNK)
    for lane in (0, 1):
        rank.receive(lane)
        rank.receive(lane)
    assert rank.done == [0]
    again = rank.ledger.replay(0, 0)
    assert again is not None
    assert [frame.header.kind for frame in again] == [Kind.FINAL, Kind.FINAL]
    assert all(set(frame.payload) == {0xFF} and frame.target is None for frame in again)
    rank.ledger.acknowledge(0, 1)
    assert len(rank.ledger.replay(0, 1) or ()) == 1
    assert rank.ledger.replay(0, 0) is None, "all ranks have it"
    assert rank.ledger.replay(0, 3) is None, "this rank itself has not got so far"


def test_what_is_not_here_is_sent_again_as_input() -> None:
    """spec/reduction#exactness: of an operation under way a rank sends results that it has, and its own input
    for the rest."""
    rank = Rank(1, [1.0], 2)
    rank.issue(4 * _CHUNK)
    rank.receive(0)
    again = rank.ledger.replay(0, 0)
    assert again is not None
    assert [frame.header.kind for frame in again] == [Kind.FINAL, Kind.DATA, Kind.DATA, Kind.DATA]
    assert [set(frame.payload) for frame in again] == [{0xFF}, {2}, {2}, {2}]
    assert {frame.header.rank for frame in again} == {1}


def test_kept_copies_are_given_back() -> None:
    """spec/reduction: what all ranks have takes no memory."""
    rank = Rank(0, [1.0], 2)
    rank.issue(2 * _CHUNK)
    rank.receive(0)
    rank.ledger.acknowledge(0, 1)
    rank.receive(0)
    assert rank.ledger.keeps(0)
    rank.ledger.acknowledge(0, 2)
    assert not rank.ledger.keeps(0)


class Group:
    """Ranks at different stages, and the results that a reducer may have given: for each lane, at most what
    all have sent."""

    def __init__(self, chance: random.Random, world: int, lanes: int) -> None:
        self.chance = chance
        self.sizes = [chance.randrange(4, 40 * _CHUNK, 4) for _ in range(6)]
        weights = [chance.choice([1.0, 1.0, 0.5]) for _ in range(lanes)]
        self.ranks = [Rank(rank, list(weights), world) for rank in range(world)]
        self.lanes = lanes

    def step(self) -> None:
        rank = self.chance.choice(self.ranks)
        if len(rank.memory) < len(self.sizes) and self.chance.random() < 0.1:
            rank.issue(self.sizes[len(rank.memory)])
        lane = self.chance.randrange(self.lanes)
        at = rank.ledger.received(lane)
        if all(len(other.sent[lane]) > at for other in self.ranks):
            rank.receive(lane)
        least = min(other.ledger.received(lane) for other in self.ranks)
        rank.ledger.acknowledge(lane, self.chance.randint(0, least))


@pytest.mark.parametrize("seed", range(12))
def test_all_ranks_deal_the_same_lists_anew_whatever_each_has(seed: int) -> None:
    """spec/reduction#losses: after a loss every rank deals what some rank lacks, in one order; ranks that
    have issued less have the beginning of the others' lists. Then all operations end with right results."""
    chance = random.Random(seed)
    world, lanes = chance.choice([2, 3, 5]), chance.choice([2, 3, 4])
    group = Group(chance, world, lanes)
    for _ in range(chance.randrange(20, 600)):
        group.step()
    alive = [True] * lanes
    while sum(alive) > 1:
        alive[chance.choice([lane for lane in range(lanes) if alive[lane]])] = False
        shares = [rank.ledger.share() for rank in group.ranks]
        for rank in group.ranks:
            rank.ledger.deal_anew(alive, shares)
            rank.sent = [rank.ledger.replay(lane, 0) or [] for lane in range(lanes)]
        for lane in range(lanes):
            longest = max((_chunks(rank.sent[lane]) for rank in group.ranks), key=len)
            assert not longest or alive[lane]
            for rank in group.ranks:
                own = _chunks(rank.sent[lane])
                assert own == longest[: len(own)]
        every = Counter(
            chunk for lane in range(lanes) for chunk in _chunks(group.ranks[0].sent[lane])
        )
        assert set(every.values()) <= {1}
        for _ in range(chance.randrange(0, 200)):
            _advance(group, chance)
    for rank in group.ranks:
        while len(rank.memory) < len(group.sizes):
            rank.issue(group.sizes[len(rank.memory)])
    for lane in range(lanes):
        assert len({tuple(_chunks(rank.sent[lane])) for rank in group.ranks}) == 1
    for rank in group.ranks:
        for lane in range(lanes):
            while rank.ledger.waits(lane) is not None:
                rank.receive(lane)
        assert sorted(rank.done) == list(range(len(group.sizes)))


def _advance(group: Group, chance: random.Random) -> None:
    rank = chance.choice(group.ranks)
    lane = chance.randrange(group.lanes)
    at = rank.ledger.received(lane)
    waits = rank.ledger.waits(lane)
    if waits is not None and all(len(other.sent[lane]) > at for other in group.ranks):
        rank.receive(lane)


@pytest.mark.parametrize("seed", range(6))
def test_pieces_for_the_native_backend_are_the_same_on_all_ranks(seed: int) -> None:
    """spec/reduction#exactness: without any reducer every rank leaves the same pieces to its native backend,
    and whoever is said to have a result has it."""
    chance = random.Random(100 + seed)
    group = Group(chance, 3, 3)
    for _ in range(chance.randrange(20, 600)):
        group.step()
    shares = [rank.ledger.share() for rank in group.ranks]
    last = max(share.issued for share in shares)
    for rank in group.ranks:
        while len(rank.memory) < last:
            rank.issue(group.sizes[len(rank.memory)])
    every = [rank.ledger.pieces(shares) for rank in group.ranks]
    for pieces in zip(*every, strict=True):
        assert (
            len({(len(piece.data), piece.dtype, piece.reduction, piece.owner) for piece in pieces})
            == 1
        )
        if pieces[0].owner >= 0:
            assert set(pieces[pieces[0].owner].data) == {0xFF}
        else:
            assert [set(piece.data) for piece in pieces] == [{1}, {2}, {3}]
