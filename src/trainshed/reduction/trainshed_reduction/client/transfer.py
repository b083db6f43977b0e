"""The transfer in Python: one thread, one selector, all lanes.

It serves plain TCP and TLS. Where the compiled one is present (`native`), that is used for plain TCP.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import ssl
import time
from collections import deque
from typing import Deque, Dict, List, Optional, Tuple

from trainshed_reduction import wire
from trainshed_reduction.client.port import Frame, Lost, Message, Result
from trainshed_reduction.wire import Header, Kind

_HEADER = wire.HEADER.size
_TURN = 1 << 20
"""Bytes that are read from one lane before the others have their turn."""
_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class PythonTransfer:
    """See `port.Transfer`. `credit`: bytes over all lanes."""

    def __init__(self, lanes: int, credit: int) -> None:
        self.acknowledged = [0] * lanes
        self._credit = credit
        self._under_way = 0
        self._lanes: Dict[int, Channel] = {}
        self._sendable: List[
            Tuple[float, int]
        ] = []  # a heap of (row, lane), with entries that are out of date
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken_by = socket.socketpair()
        for end in (self._waker, self._woken_by):
            end.setblocking(False)
        self._selector.register(self._woken_by, selectors.EVENT_READ)
        self._woken = False

    def attach(self, lane: int, handle: int, position: int, received: int) -> None:
        connection = socket.socket(fileno=handle)
        self.attach_socket(lane, connection, position, received)
        self._lanes[lane].borrowed = True

    def attach_socket(
        self, lane: int, connection: socket.socket, position: int, received: int
    ) -> None:
        """As `attach`, for one that may speak TLS, which is more than its handle."""
        self.detach(lane)
        connection.setblocking(False)
        state = self._lanes[lane] = Channel(lane, connection, position)
        self.acknowledged[lane] = min(position, received)
        self._selector.register(connection, selectors.EVENT_READ, state)

    def detach(self, lane: int) -> None:
        state = self._lanes.pop(lane, None)
        if state is not None:
            self._selector.unregister(state.connection)
            self._under_way -= state.under_way
            if state.borrowed:
                state.connection.detach()

    def push(self, lane: int, frame: Frame) -> None:
        state = self._lanes.get(lane)
        if state is None:
            return
        state.push(frame)
        if len(state.queue) == 1 and not state.parts and not state.blocked:
            heapq.heappush(self._sendable, (frame.row, lane))

    def run(self, seconds: float) -> "List[object]":
        deadline = time.monotonic() + seconds
        events: List[object] = []
        while True:
            self._send(events)
            left = deadline - time.monotonic()
            ready = self._selector.select(0 if events else max(0.0, left))
            for key, mask in ready:
                state = key.data
                if state is None:
                    self._wake_up()
                elif self._lanes.get(state.index) is state:
                    self._serve(state, mask, events)
            if events or self._woken or not ready:
                self._woken = False
                self._send(events)
                return events

    def set_credit(self, credit: int) -> None:
        self._credit = credit

    def unsent(self) -> int:
        return sum(len(lane.queue) + bool(lane.parts) for lane in self._lanes.values())

    def wake(self) -> None:
        try:
            self._waker.send(b"\0")
        except OSError:
            pass  # Full: it will wake up. Closed: nobody is there to.

    def close(self) -> None:
        for lane in list(self._lanes):
            self.detach(lane)
        self._selector.close()
        self._waker.close()
        self._woken_by.close()

    def _wake_up(self) -> None:
        self._woken = True
        try:
            while self._woken_by.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _serve(self, lane: Channel, mask: int, events: "List[object]") -> None:
        if mask & selectors.EVENT_WRITE:
            lane.blocked = False
            self._selector.modify(lane.connection, selectors.EVENT_READ, lane)
            if lane.sends:
                heapq.heappush(self._sendable, (lane.row, lane.index))
        if mask & selectors.EVENT_READ:
            self._read(lane, events)

    # ---- sending

    def _send(self, events: "List[object]") -> None:
        """All that may go now, lowest rows first."""
        heap = self._sendable
        waiting: List[Tuple[float, int]] = []
        while heap:
            entry = heapq.heappop(heap)
            lane = self._lanes.get(entry[1])
            if lane is None or lane.blocked or not lane.sends or lane.row != entry[0]:
                continue  # Detached, or attached anew, since.
            if not lane.parts and not self._begin(lane):
                waiting.append(entry)
                continue
            try:
                lane.write()
            except _NOT_NOW:
                pass
            except OSError as error:
                # What it said before it closed the connection is worth more than the error.
                self._read(lane, events)
                if self._lanes.get(lane.index) is lane:
                    self._lose(lane, _cause(error), events)
                continue
            if lane.parts:
                lane.blocked = True
                self._selector.modify(
                    lane.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, lane
                )
            elif lane.queue:
                heapq.heappush(heap, (lane.row, lane.index))
        for entry in waiting:
            heapq.heappush(heap, entry)

    def _begin(self, lane: Channel) -> bool:
        """Whether the next frame of the lane may go; it is made ready then."""
        frame = lane.queue[0]
        size = frame.header.nbytes
        if frame.target is not None:
            if lane.under_way and self._under_way + size > self._credit:
                return False
            lane.under_way += size
            self._under_way += size
        lane.begin()
        return True

    # ---- receiving

    def _read(self, lane: Channel, events: "List[object]") -> None:
        """A header and its payload, together with the header after it, go through the lane's buffer."""
        taken = 0
        # TLS may hold bytes that the selector does not see.
        while taken < _TURN or lane.secured:
            need = _HEADER + (lane.header.nbytes if lane.header else 0)
            try:
                count = lane.connection.recv_into(lane.buffer[lane.got : need])
                if not count:
                    raise ConnectionResetError("the connection was closed by the reducer")
                lane.got += count
                taken += count
                while self._advance(lane, events):
                    pass
            except _NOT_NOW:
                return
            except (OSError, wire.Malformed) as error:
                self._lose(lane, _cause(error), events)
                return

    def _advance(self, lane: Channel, events: "List[object]") -> bool:
        """Go one step on in the buffer, if enough is in it. Raises Malformed."""
        header = lane.header
        if header is None:
            if lane.got < _HEADER:
                return False
            header = lane.header = wire.unpack(lane.buffer[:_HEADER])
            if header.kind is Kind.RESULT:
                lane.check(header)
            if len(lane.buffer) < header.nbytes + _HEADER:
                lane.buffer = memoryview(bytearray(header.nbytes + _HEADER))
            lane.got = 0
            return header.nbytes == 0
        if lane.got < header.nbytes:
            return False
        if header.kind is Kind.RESULT:
            self._deliver(lane, header, events)
        else:
            events.append(Message(lane.index, header, bytes(lane.buffer[: header.nbytes])))
        rest = lane.got - header.nbytes
        lane.buffer[:rest] = lane.buffer[header.nbytes : lane.got]
        lane.got = rest
        lane.header = None
        return True

    def _deliver(self, lane: Channel, header: Header, events: "List[object]") -> None:
        position, frame = lane.awaited.popleft()
        target = frame.target
        assert target is not None
        target[:] = lane.buffer[: header.nbytes]
        lane.under_way -= header.nbytes
        self._under_way -= header.nbytes
        self.acknowledged[lane.index] = max(self.acknowledged[lane.index], header.acknowledged)
        events.append(Result(lane.index, position))

    def _lose(self, lane: Channel, cause: str, events: "List[object]") -> None:
        self.detach(lane.index)
        events.append(Lost(lane.index, cause))


def _cause(error: Exception) -> str:
    return str(error) or type(error).__name__


class Channel:
    """One lane: the frames that go out on its connection, and the results that are due.

    `position`: of the first frame that is pushed. Credit, and the order over all lanes, are the transfer's to
    keep."""

    __slots__ = (
        "awaited",
        "begun",
        "blocked",
        "borrowed",
        "buffer",
        "connection",
        "got",
        "header",
        "index",
        "parts",
        "pushed",
        "queue",
        "secured",
        "under_way",
    )

    def __init__(self, index: int, connection: socket.socket, position: int) -> None:
        self.index = index
        self.connection = connection
        self.secured = isinstance(connection, ssl.SSLSocket)
        self.queue: Deque[Frame] = deque()  # not begun
        self.parts: List[memoryview] = []  # what is left to send of the frame that was begun
        self.awaited: Deque[Tuple[int, Frame]] = deque()  # position and frame of results to come
        self.pushed = position  # the next frame's
        self.begun = position
        self.under_way = 0  # bytes begun whose results are not back
        self.blocked = False
        self.borrowed = False  # the handle is somebody else's to close
        self.buffer = memoryview(bytearray(64 << 10))
        self.got = 0
        self.header: Optional[Header] = None

    @property
    def sends(self) -> bool:
        return bool(self.parts or self.queue)

    @property
    def row(self) -> float:
        return self.queue[0].row if not self.parts else -1.0

    def push(self, frame: Frame) -> None:
        if frame.target is not None:
            self.awaited.append((self.pushed, frame))
        self.pushed += 1
        self.queue.append(frame)

    def begin(self) -> None:
        """Make the next frame ready to be written."""
        frame = self.queue.popleft()
        self.begun += 1
        has = self.awaited[0][0] if self.awaited else self.pushed
        header = wire.pack(frame.header._replace(acknowledged=has))
        self.parts = [memoryview(header), frame.payload]

    def write(self) -> None:
        """Send until the frame is out or the system takes no more. Raises OSError."""
        while self.parts:
            if self.secured:
                count = self.connection.send(self.parts[0])
            else:
                count = self.connection.sendmsg(self.parts)
            while self.parts and count >= len(self.parts[0]):
                count -= len(self.parts.pop(0))
            if count:
                self.parts[0] = self.parts[0][count:]

    def check(self, header: Header) -> None:
        """Of a RESULT that begins. Raises Malformed: it is not the one that is due."""
        if not self.awaited or self.awaited[0][0] >= self.begun:
            raise wire.Malformed("a result came for a chunk that was not sent")
        sent = self.awaited[0][1].header
        if (header.operation, header.chunk, header.dtype, header.nbytes) != (
            sent.operation,
            sent.chunk,
            sent.dtype,
            sent.nbytes,
        ):
            raise wire.Malformed(
                "the result of chunk {} of operation {} came in place of chunk {} of operation {}".format(
                    header.chunk, header.ordinal, sent.chunk, sent.ordinal
                )
            )
