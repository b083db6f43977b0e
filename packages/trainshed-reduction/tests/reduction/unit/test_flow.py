"""How much a worker has under way, and what it says its reducers can gain (spec/reduction#reports)."""

import pytest

from trainshed_reduction import wire
from trainshed_reduction.client.formation import describe
from trainshed_reduction.client.running_group import flow_for
from trainshed_reduction.settings import Settings

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
def test_three_rows_of_chunks_are_under_way(lanes: int, chunk: int, credit: int) -> None:
    """spec/reduction#flow-control (flow control): a row is 320 KiB, whatever the number of lanes, unless
    chunks would be tiny."""
    assert flow_for(_SETTINGS, lanes) == (chunk, credit)


def test_fast_links_have_more_under_way_and_larger_chunks() -> None:
    """spec/reduction: 100 Gbit/s fill 25 MB in 2 ms."""
    fast = flow_for(_SETTINGS._replace(worker_gbps=100.0, reducer_gbps=32.0), 25)
    assert fast == (256 * _KIB, 25_000_000)


def test_what_is_set_or_what_reducers_allow_goes_first() -> None:
    """spec/reduction#settings: the settings and the reducers' limit are kept to."""
    limited = _SETTINGS._replace(chunk_bytes=32 * _KIB, credit_bytes=12345)
    assert flow_for(limited, 4) == (32 * _KIB, 12345)
    largest = _SETTINGS._replace(chunk_bytes=1 << 30, worker_gbps=1e5, reducer_gbps=1e5)
    assert flow_for(largest, 4).chunk == wire.MAX_CHUNK


def test_it_is_told_what_reducers_can_gain() -> None:
    """spec/reduction#exactness: one line: reducers, threads, limit."""
    eight = tuple((f"r{number}", 1) for number in range(8))
    known = _SETTINGS._replace(reducers=eight, worker_gbps=10.0, reducer_gbps=10.0)
    text = "8 reducers (16 threads); at most 1.75 times the ring's speed"
    assert describe(known, 8, 16) == text
    assert "at most 0.88 times" in describe(known._replace(reducers=eight[:4]), 8, 4)
    assert describe(_SETTINGS, 2, 1) == (
        "1 reducer (1 thread); at most 1.00 times the ring's speed"
    )
