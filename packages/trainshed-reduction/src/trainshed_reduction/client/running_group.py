"""Runs a group on one rank. It passes chunks to the native transfer, passes results to callers, and opens
broken connections to reducers (lanes) again."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import List, NamedTuple, Sequence

from trainshed_reduction import layout, proof
from trainshed_reduction.client.formation import Formation, Membership
from trainshed_reduction.client.lanes import Lane, connect_due
from trainshed_reduction.client.ledger import Ledger, Work
from trainshed_reduction.client.losses import LossDetector, report_silence
from trainshed_reduction.client.operations import Operation, ReductionFailed
from trainshed_reduction.native.library import Message, Result
from trainshed_reduction.native.transfer import Event, NativeTransfer
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import MAX_CHUNK, Hello, Kind

# These constants decide how many bytes of a rank are in flight. The bytes in flight must keep the rank's link
# busy, but must not form long queues. About three rows of chunks suffice, because the result of a chunk
# arrives about one row after the chunk was sent. Measured speed as a fraction of the maximum speed: 92-97 %
# with 3 rows, 89 % with 8 rows, 55-75 % with 1.5 rows.

_ROW = 320 << 10
_ROW_SECONDS = 0.013
_ROWS = 3
_MIN_LANES = 4
"""Minimum number of chunks in a row, which has one chunk per lane. With fewer (and therefore larger) chunks,
results would arrive too late."""
_MIN_CREDIT = 1 << 20
_MIN_FLIGHT_SECONDS = 0.002
"""Minimum amount of data in flight, as the number of seconds that the link needs to send this data. The
minimum hides delays within hosts if rows are short."""
_MAX_CREDIT = 64 << 20


class Flow(NamedTuple):
    #: Maximum bytes of a chunk.
    chunk: int
    #: Maximum bytes in flight over all lanes (connections to reducers).
    credit: int


def flow_for(settings: Settings, lanes: int, *, delay: float = 0.0) -> Flow:
    """Return the size of chunks and the credit (maximum bytes in flight) for the bandwidth in the settings.

    `lanes`: number of connections to threads of reducers. `delay`: round-trip time of an idle network in
    seconds. The settings may limit the size of chunks, and may set the credit.
    """
    rate = settings.worker_gbps * 1e9 / 8
    row = max(_ROW, int(rate * _ROW_SECONDS))
    chunk = min(settings.chunk_bytes, MAX_CHUNK, max(layout.SMALLEST_CHUNK, row // max(lanes, _MIN_LANES)))
    credit = max(_MIN_CREDIT, _ROWS * lanes * chunk, int(rate * _MIN_FLIGHT_SECONDS)) + int(rate * delay)
    return Flow(chunk, settings.credit_bytes or min(_MAX_CREDIT, credit))


_MIN_RTT = struct.Struct("=I")
_MIN_RTT_AT = 148
"""Offset of the minimum round-trip time (in microseconds) in Linux's struct tcp_info."""
_MAX_ROUND_TRIP = 10.0


def round_trip(connection: socket.socket) -> float:
    """Return the minimum round-trip time that a connection has measured, in seconds; 0 = unknown."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + _MIN_RTT.size)
        seconds = _MIN_RTT.unpack_from(info, _MIN_RTT_AT)[0] / 1e6
    except (OSError, AttributeError, struct.error):
        return 0.0
    return seconds if seconds < _MAX_ROUND_TRIP else 0.0


_LOG_INTERVAL = 60.0
"""Minimum seconds between two log lines about broken connections."""
_CHECK_INTERVAL = 0.5
"""Seconds between two checks for conditions that cause no events, such as silence."""
_FLUSH_TIMEOUT = 10.0
"""Maximum seconds at the end for sending frames that other ranks may need after the loss of a reducer."""
_LAST_FRAME_TIMEOUT = 1.0
"""Maximum seconds for sending the last frame of a lane (a connection to a reducer)."""


class RunningGroup:
    """A running group on one rank. Only the communicator's thread uses it."""

    def __init__(self, membership: Membership, formation: Formation) -> None:
        """`formation`: the group's connections. The caller closes the connections."""
        self._membership = membership
        self._settings = settings = membership.settings
        self._operations = membership.operations
        self._hello = hello = membership.hello
        self._dial = formation.dial
        self._lanes = lanes = formation.lanes
        self._losses = LossDetector(settings.wait_seconds, settings.absent_seconds, membership.log)
        # Use the longest round-trip time of this rank's own connections to compute the credit. The credit may
        # therefore differ between ranks.
        sockets = [lane.connection.socket for lane in self._lanes if lane.connection]
        delay = max((round_trip(connection) for connection in sockets if connection is not None), default=0.0)
        flow = flow_for(self._settings, len(self._lanes), delay=delay)
        self._ledger = Ledger(len(lanes), hello.rank, hello.world, flow.chunk)
        self._transfer = NativeTransfer(formation.library, len(lanes), flow.credit)
        self._next_check = 0.0
        self._next_log = 0.0

    @property
    def unfinished_operations(self) -> List[Operation]:
        """The operations that were issued and are not finished."""
        return [work.operation for work in self._ledger.open]

    def start(self) -> None:
        """Start to transfer chunks on all lanes (connections to reducers), and allow other threads to wake
        this thread."""
        self._dial.wake = self._operations.wake = self._transfer.wake
        for lane in self._lanes:
            self._resume(lane)

    def run_once(self) -> None:
        """Move data until an event occurs, and handle the event. Raises ReductionFailed if the group has
        failed."""
        for view, dtype, reduction, operation in self._operations.drain():
            for lane, frame in self._ledger.issue(view, dtype, reduction, operation):
                self._transfer.push(lane, frame)
        now = self._move(self._next_check)
        if now >= self._next_check:
            self._next_check = now + _CHECK_INTERVAL
            for lane in self._losses.check(self._ledger, self._lanes, now):
                if self._membership.reports is not None:
                    report_silence(self._membership.reports, lane)
                self._lose(lane, f"it has sent nothing for {now - lane.last_frame_time:.0f} s")
            if not all(lane.running for lane in self._lanes):
                self._losses.check_absence(self._ledger, self._lanes, now)

    def leave(self) -> None:
        """Send the frames that other ranks may still need, and leave the group. If operations are unfinished,
        the group fails."""
        if self.unfinished_operations:
            number = self.unfinished_operations[0].number
            self.report_failure(f"it left the group before operation {number} finished")
            return
        now = self._move(0.0)
        deadline = now + _FLUSH_TIMEOUT
        while (self._transfer.unsent() or self._is_needed()) and now < deadline:
            now = self._move(now + 0.05)
        self._send_last(proof.frame(Kind.BYE))

    def report_failure(self, reason: str) -> None:
        """Notify the other ranks that this rank has failed, if possible."""
        self._send_last(proof.text_frame(Kind.ERROR, reason))
        self._detach()

    def _send_last(self, frame: bytes) -> None:
        """Send a last frame on each lane (connection to a reducer). Does nothing if earlier frames are not
        sent yet."""
        if self._transfer.unsent():
            return
        for lane in self._lanes:
            if lane.running and lane.connection is not None:
                connection = lane.connection.socket
                assert connection is not None
                self._transfer.detach(lane.index)
                # Ignore errors, because the connection may already be broken.
                with contextlib.suppress(OSError):
                    connection.settimeout(_LAST_FRAME_TIMEOUT)
                    connection.sendall(frame)

    def close(self) -> None:
        """Free the native transfer. Afterwards, it no longer accesses the memory of callers. No other method
        may be called then."""
        self._detach()
        self._transfer.close()

    # ---- operations

    def _handle(self, events: Sequence[Event]) -> None:
        now = time.monotonic()
        for event in events:
            lane = self._lanes[event.lane]
            if isinstance(event, Result):
                lane.record_frame(now)
                work = self._ledger.record_result(event.lane, event.position)
                if work is not None:
                    self._finish(work)
            elif isinstance(event, Message):
                kind, text = event.header.kind, event.payload.decode(errors="replace")
                if kind is Kind.ERROR:
                    raise ReductionFailed(f"{lane}: {text}")
                if kind is not Kind.STATUS:
                    self._lose(lane, f"it sent an unexpected {kind.name} frame")
                else:
                    lane.record_frame(now, text)
            else:
                self._lose(lane, event.cause)

    def _finish(self, work: Work) -> None:
        for lane in self._lanes:
            if lane.running:
                self._ledger.acknowledge(lane.index, self._transfer.acknowledged[lane.index])
        self._ledger.release(work)
        work.operation.finish()

    # ---- lanes: connections to threads of reducers

    def _move(self, until: float) -> float:
        """Move data and connect lanes to reducers until the time `until`, or until an event occurs. Return
        the current time."""
        now = time.monotonic()
        due = connect_due(self._lanes, self._dial, self._hello_of, now)
        self._handle(self._transfer.run(max(0.0, min(due, until) - now)))
        for lane in self._lanes:
            if lane.start is not None and not lane.running:
                self._resume(lane)
        return time.monotonic()

    def _is_needed(self) -> bool:
        """Return whether a reducer that restarts may need results that only this rank has. If this rank left
        now, that reducer would treat it as a slow rank."""
        return any(not lane.running and self._ledger.keeps(lane.index) for lane in self._lanes)

    def _hello_of(self, lane: Lane) -> Hello:
        return self._hello._replace(received=self._ledger.result_count(lane.index))

    def _lose(self, lane: Lane, cause: str) -> None:
        self._transfer.detach(lane.index)
        lane.lose(cause)
        now = time.monotonic()
        # Limit the number of log lines, because the end of a reducer breaks many lanes (connections) at once.
        if self._ledger.oldest_pending(lane.index) is not None and now >= self._next_log:
            self._next_log = now + _LOG_INTERVAL
            self._membership.log(f"the connection to {lane} broke ({cause}); the worker reconnects")

    def _resume(self, lane: Lane) -> None:
        connection, start = lane.start_transfer()
        frames = self._ledger.replay(lane.index, start.position)
        received = self._ledger.result_count(lane.index)
        if frames is None:
            raise ReductionFailed(
                f"{lane} requests the invalid start position {start.position}; this rank has "
                f"{received} results"
            )
        self._transfer.attach(lane.index, connection, start.position, received)
        for frame in frames:
            self._transfer.push(lane.index, frame)

    def _detach(self) -> None:
        for lane in self._lanes:
            self._transfer.detach(lane.index)
            lane.close()
