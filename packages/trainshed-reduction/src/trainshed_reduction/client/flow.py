"""How much a rank has under way: enough to keep its link busy, and little enough that queues stay short.

A chunk's result comes back when all ranks have sent it, about a row of chunks after the first did, so about
three rows have to be under way. Anything beyond only waits in queues, where the flows of a worker drift apart
and all wait for the last reducer's. Measured in shaped networks of 100 to 500 Mbit/s with 4 and 8 workers and
as many reducers, as parts of the bound: three rows of 512 KiB 92-97 %; three of 1 MiB 85-90 %; eight rows
89 %; a row and a half 55-75 %. On a quiet machine at 200 Mbit/s with 4 workers, 4 reducers and 32 MiB: rows
of 500 kB 96.6 and 97.2 %, of 325 kB 97.8 %.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from trainshed_reduction import layout
from trainshed_reduction.client.choice import Pace
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import MAX_CHUNK

_ROW = 320 << 10
_ROW_SECONDS = 0.013
_ROWS = 3
_NARROWEST = 4
"""A row is divided among this many lanes at least: larger chunks would take too long to come back."""
_LEAST = 1 << 20
_LEAST_SECONDS = 0.002
"""Least data under way, in seconds, for the hosts' own delays on links where that is more than a few rows."""
_MOST = 64 << 20
_AS_TOLD = Pace()


class Flow(NamedTuple):
    #: Bytes of a chunk, at most.
    chunk: int
    #: Most bytes sent and not come back, over all lanes.
    credit: int


def flow_for(settings: Settings, lanes: int, *, pace: Pace = _AS_TOLD, delay: float = 0.0) -> Flow:
    """Return the flow for a pace. `lanes`: the number of those that get chunks. `delay`: seconds of a round
    trip while nothing else is on its way. The settings limit the chunk and set the credit; a measured rate
    goes before their bandwidth."""
    rate = pace.rate or settings.worker_gbps * 1e9 / 8
    row = max(_ROW, int(rate * _ROW_SECONDS))
    chunk = min(
        settings.chunk_bytes, MAX_CHUNK, max(layout.SMALLEST_CHUNK, row // max(lanes, _NARROWEST))
    )
    credit = max(_LEAST, _ROWS * lanes * chunk, int(rate * _LEAST_SECONDS)) + int(rate * delay)
    return Flow(chunk, settings.credit_bytes or min(_MOST, pace.factor * credit))


_MIN_RTT = struct.Struct("=I")
_MIN_RTT_AT = 148
"""Offset in Linux' struct tcp_info; the unit is microseconds."""
_NEVER = 10.0


def round_trip(connection: socket.socket) -> float:
    """Return the shortest round trip that the system has seen, in seconds; 0 = it does not say."""
    try:
        info = connection.getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + _MIN_RTT.size
        )
        seconds = _MIN_RTT.unpack_from(info, _MIN_RTT_AT)[0] / 1e6
    except (OSError, AttributeError, struct.error):
        return 0.0
    return seconds if seconds < _NEVER else 0.0
