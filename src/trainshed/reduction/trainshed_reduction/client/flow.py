"""How much a rank has under way: large enough to keep its link busy, small enough that queues stay short. Pure.

A chunk's result comes back when all ranks have sent it, about a row of chunks after the first did, so about three rows have
to be under way. Everything beyond only stands in queues, where the flows of a worker drift apart and the last reducer's
becomes the tail. Measured in shaped networks of 100 to 500 Mbit/s with 4 and 8 workers and as many reducers, in parts of
the bound: three rows of 512 KiB 92-97 %; rows of 1 MiB 85-90 %; eight rows 89 %; a row and a half 55-75 %. On a quiet
machine at 200 Mbit/s with 4 and 4, 32 MiB: rows of 500 kB 96.6 and 97.2 %, of 325 kB 97.8 %.
"""

from __future__ import annotations

from typing import NamedTuple

from trainshed_reduction import layout
from trainshed_reduction.settings import Settings

_ROW = 320 << 10
_ROW_SECONDS = 0.013
_ROWS = 3
_NARROWEST = 4
"""Lanes that a row is divided among at least: with fewer a chunk would be too long in coming back."""
_LEAST = 1 << 20
_LEAST_SECONDS = 0.002
"""For what the hosts take their time with, on links on which that is more than a few rows."""
_MOST = 64 << 20


class Flow(NamedTuple):
    """Bytes. `chunk`: at most; `credit`: sent and not come back, over all lanes."""

    chunk: int
    credit: int


def flow(settings: Settings, lanes: int, max_chunk: int) -> Flow:
    """`lanes`: those that get chunks; `max_chunk`: of the reducers. What the settings say goes first."""
    rate = settings.worker_gbps * 1e9 / 8
    row = max(_ROW, int(rate * _ROW_SECONDS))
    chunk = min(
        settings.chunk, max_chunk, max(layout.SMALLEST_CHUNK, row // max(lanes, _NARROWEST))
    )
    credit = max(_LEAST, _ROWS * lanes * chunk, int(rate * _LEAST_SECONDS))
    return Flow(chunk, settings.credit or min(_MOST, credit))
