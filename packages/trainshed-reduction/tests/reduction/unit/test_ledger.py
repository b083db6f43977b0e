"""Tests of the ledger without sockets: destinations of chunks, and frames that are sent again after a reducer
loss (spec/reduction#losses). Also tests the data in flight, errors of operations, and the predicted speed-up
(spec/reduction#reports)."""

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed_reduction import wire
from trainshed_reduction.client.formation import describe
from trainshed_reduction.client.ledger import Ledger, place_of
from trainshed_reduction.client.operations import Operation, ReductionFailed
from trainshed_reduction.client.running_group import flow_for
from trainshed_reduction.native.transfer import Frame
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import DType, Kind, Reduction

_CHUNK = 16 << 10


class Rank:
    """A ledger whose operations are byte arrays. Inputs contain 1 + rank in every byte, results 255."""

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
        """Receive the next missing result of the lane (connection to a reducer)."""
        position = self.ledger.result_count(lane)
        frame = self.sent[lane][position]
        assert frame.target is not None
        frame.target[:] = b"\xff" * len(frame.target)
        work = self.ledger.record_result(lane, position)
        if work is not None:
            self.ledger.release(work)
            memory = self.memory[work.header.operation]
            assert memory == b"\xff" * len(memory)
            # A user may overwrite the memory now.
            memory[:] = b"\x55" * len(memory)
            self.done.append(work.header.operation)


@given(lanes=st.integers(1, 6), world=st.integers(1, 9))
def test_each_chunk_is_sent_to_the_same_reducer_and_row_by_all_ranks(lanes: int, world: int) -> None:
    """spec/reduction: All ranks send a chunk on the same lane (number of the connection), and the integer
    part of its row is the same on all ranks."""
    for number in range(5 * lanes):
        places = [place_of(number, lanes, rank, world) for rank in range(world)]
        assert {place.lane for place in places} == {number % lanes}
        assert {int(place.row) for place in places} == {number // lanes}


def test_each_rank_sends_its_first_chunk_to_a_different_reducer() -> None:
    """spec/reduction: With as many reducers as ranks, no two ranks send to the same reducer at once
    (stagger)."""
    for world in (2, 4, 8):
        rows = [[place_of(at, world, rank, world) for at in range(world)] for rank in range(world)]
        first = [min(row, key=lambda place: place.row).lane for row in rows]
        assert sorted(first) == list(range(world))


def test_result_of_a_chunk_is_kept_until_all_ranks_have_received_the_result() -> None:
    """spec/reduction#exactness: After the end of an operation, its result is sent again, even if the user has
    overwritten the memory."""
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


def test_rank_sends_received_results_and_its_other_input_again_after_a_loss() -> None:
    """spec/reduction#exactness: During an operation, a rank sends its received results, and its input for all
    other chunks."""
    rank = Rank(1, 1, 2)
    rank.issue(4 * _CHUNK)
    rank.receive(0)
    again = rank.ledger.replay(0, 0)
    assert again is not None
    assert [frame.header.kind for frame in again] == [Kind.FINAL, Kind.DATA, Kind.DATA, Kind.DATA]
    assert [set(frame.payload) for frame in again] == [{0xFF}, {2}, {2}, {2}]
    assert {frame.header.rank for frame in again} == {1}


def test_copies_of_results_are_released_when_all_ranks_have_received_the_results() -> None:
    """spec/reduction: The copies use no memory afterwards."""
    rank = Rank(0, 1, 2)
    rank.issue(2 * _CHUNK)
    rank.receive(0)
    rank.ledger.acknowledge(0, 1)
    rank.receive(0)
    assert rank.ledger.keeps(0)
    rank.ledger.acknowledge(0, 2)
    assert not rank.ledger.keeps(0)


def test_error_of_a_failed_operation_has_no_traceback_of_the_internal_thread() -> None:
    """spec/reduction: The end of a job's log shows the job's error. Frames of the package would hide the
    program's lines."""

    def found_in_another_thread() -> None:
        raise ReductionFailed("a rank is lost")

    pending = Operation(1)
    try:
        found_in_another_thread()
    except ReductionFailed as failure:
        pending.finish(failure)
    for _ in range(2):
        with pytest.raises(ReductionFailed) as caught:
            pending.wait()
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert names[1:] == ["wait"]


_SETTINGS = Settings((("r", 1),), b"token")
_KIB = 1 << 10


@pytest.mark.parametrize(
    ("lanes", "chunk", "credit"),
    [
        (1, 80 * _KIB, 1024 * _KIB),
        (4, 80 * _KIB, 1024 * _KIB),
        (8, 40 * _KIB, 1024 * _KIB),
        (400, 16 * _KIB, 3 * 400 * 16 * _KIB),
    ],
)
def test_flow_control_credit_and_chunk_size_depend_on_the_number_of_connections(
    lanes: int, chunk: int, credit: int
) -> None:
    """spec/reduction#flow-control: A row has 320 KiB for every number of lanes (connections to reducers),
    unless chunks would be tiny."""
    assert flow_for(_SETTINGS, lanes) == (chunk, credit)


def test_fast_network_links_get_more_flow_control_credit_and_larger_chunks() -> None:
    """spec/reduction: 100 Gbit/s transfer 25 MB in 2 ms."""
    fast = flow_for(_SETTINGS._replace(worker_gbps=100.0, reducer_gbps=32.0), 25)
    assert fast == (256 * _KIB, 25_000_000)


def test_settings_and_the_protocol_limit_chunk_size_and_flow_control_credit() -> None:
    """spec/reduction#settings: The settings and the protocol's maximum chunk take precedence."""
    limited = _SETTINGS._replace(chunk_bytes=32 * _KIB, credit_bytes=12345)
    assert flow_for(limited, 4) == (32 * _KIB, 12345)
    largest = _SETTINGS._replace(chunk_bytes=1 << 30, worker_gbps=1e5, reducer_gbps=1e5)
    assert flow_for(largest, 4).chunk == wire.MAX_CHUNK


def test_group_description_contains_reducers_threads_and_the_maximum_speed_up() -> None:
    """spec/reduction#exactness: One line contains reducers, threads and the maximum."""
    eight = tuple((f"r{number}", 1) for number in range(8))
    known = _SETTINGS._replace(reducers=eight, worker_gbps=10.0, reducer_gbps=10.0)
    text = "8 reducers (16 threads); at most 1.75 times the ring's speed"
    assert describe(known, 8, 16) == text
    assert "at most 0.88 times" in describe(known._replace(reducers=eight[:4]), 8, 4)
    assert describe(_SETTINGS, 2, 1) == ("1 reducer (1 thread); at most 1.00 times the ring's speed")
