"""The transfer in Python: one thread, one selector, all lanes.

It serves plain TCP and TLS. Where the compiled one is present (`native`), that is used for plain TCP.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import sys
import threading
import time
from collections import deque
from typing import Deque, Dict, List, Tuple

from trainshed_reduction import wire
from trainshed_reduction.client.port import Frame, Lost, Message, Result
from trainshed_reduction.framing import FramedSocket
from trainshed_reduction.wire import Header, Kind

_TURN = 1 << 20
"""Bytes that are read from one lane before the others have their turn."""


class PythonTransfer:
    """See `port.Transfer`. `credit`: bytes over all lanes."""

    def __init__(self, lanes: int, credit: int) -> None:
        self.acknowledged = [0] * lanes
        self._credit = credit
        self._under_way = 0
        self._lanes: Dict[int, Channel] = {}
        self._sendable: List[Tuple[float, int]] = []
        """A heap of (row, lane), with entries that are out of date."""
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken_by = socket.socketpair()
        for end in (self._waker, self._woken_by):
            end.setblocking(False)
        self._selector.register(self._woken_by, selectors.EVENT_READ)
        self._woken = False
        self._hurries = False

    def attach(self, lane: int, connection: socket.socket, position: int, received: int) -> None:
        self.detach(lane)
        connection.setblocking(False)
        state = self._lanes[lane] = Channel(lane, connection, position)
        self.acknowledged[lane] = min(position, received)
        self._selector.register(connection, selectors.EVENT_READ, state)

    def detach(self, lane: int) -> None:
        state = self._lanes.pop(lane, None)
        if state is not None:
            self._selector.unregister(state.socket)
            self._under_way -= state.under_way
            self._hurry()

    def push(self, lane: int, frame: Frame) -> None:
        state = self._lanes.get(lane)
        if state is None:
            return
        state.push(frame)
        if len(state.waiting) == 1 and not state.unsent:
            heapq.heappush(self._sendable, (frame.row, lane))

    def run(self, seconds: float) -> "List[object]":
        deadline = time.monotonic() + seconds
        events: List[object] = []
        self._hurry()
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
        return sum(len(lane.waiting) + bool(lane.unsent) for lane in self._lanes.values())

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

    def _hurry(self) -> None:
        """While results are due, this needs turns of the interpreter often."""
        hurries = any(lane.awaited for lane in self._lanes.values())
        if hurries != self._hurries:
            self._hurries = hurries
            (HURRY.begin if hurries else HURRY.end)()

    def _serve(self, lane: Channel, mask: int, events: "List[object]") -> None:
        if mask & selectors.EVENT_WRITE:
            # The rest of the frame that was begun goes before all others.
            heapq.heappush(self._sendable, (lane.row, lane.index))
        if mask & selectors.EVENT_READ:
            self._read(lane, events)

    def _send(self, events: "List[object]") -> None:
        """All that may go now, lowest rows first."""
        heap = self._sendable
        held: List[Tuple[float, int]] = []
        while heap:
            entry = heapq.heappop(heap)
            lane = self._lanes.get(entry[1])
            if lane is None or not (lane.unsent or lane.waiting) or lane.row != entry[0]:
                continue  # Detached, or attached anew, since.
            if not lane.unsent and not self._begin(lane):
                held.append(entry)
                continue
            was_blocked = lane.wants_write
            try:
                lane.flush()
            except OSError as error:
                # What it said before it closed the connection is worth more than the error.
                self._read(lane, events)
                if self._lanes.get(lane.index) is lane:
                    self._lose(lane, error, events)
                continue
            if was_blocked != lane.wants_write:
                write = selectors.EVENT_WRITE if lane.wants_write else 0
                self._selector.modify(lane.socket, selectors.EVENT_READ | write, lane)
            if not lane.unsent and lane.waiting:
                heapq.heappush(heap, (lane.row, lane.index))
        for entry in held:
            heapq.heappush(heap, entry)

    def _begin(self, lane: Channel) -> bool:
        """Whether the next frame of the lane may go; it is made ready then."""
        frame = lane.waiting[0]
        size = frame.header.nbytes
        if frame.target is not None:
            if lane.under_way and self._under_way + size > self._credit:
                return False
            lane.under_way += size
            self._under_way += size
        lane.begin()
        return True

    def _read(self, lane: Channel, events: "List[object]") -> None:
        taken = 0
        # TLS may hold bytes that the selector does not see.
        while taken < _TURN or lane.is_tls:
            try:
                for header, payload in lane.frames():
                    if header.kind is Kind.RESULT:
                        self._deliver(lane, header, payload, events)
                    else:
                        events.append(Message(lane.index, header, bytes(payload)))
            except (OSError, wire.Malformed) as error:
                self._lose(lane, error, events)
                return
            if lane.is_drained:
                return
            taken += lane.got

    def _deliver(
        self, lane: Channel, header: Header, payload: memoryview, events: "List[object]"
    ) -> None:
        position, frame = lane.awaited.popleft()
        assert frame.target is not None
        frame.target[:] = payload
        lane.under_way -= header.nbytes
        self._under_way -= header.nbytes
        self.acknowledged[lane.index] = max(self.acknowledged[lane.index], header.acknowledged)
        events.append(Result(lane.index, position))

    def _lose(self, lane: Channel, error: Exception, events: "List[object]") -> None:
        self.detach(lane.index)
        events.append(Lost(lane.index, str(error) or type(error).__name__))


class Channel(FramedSocket):
    """One lane: the frames that go out on its connection, and the results that are due.

    `position`: of the first frame that is pushed. Credit, and the order over all lanes, are the transfer's to
    keep."""

    def __init__(self, index: int, connection: socket.socket, position: int) -> None:
        super().__init__(connection)
        self.index = index
        self.waiting: Deque[Frame] = deque()
        """Not begun."""
        self.awaited: Deque[Tuple[int, Frame]] = deque()
        """Position and frame of the results to come."""
        self.under_way = 0
        """Bytes begun whose results are not back."""
        self._pushed = self._begun = position
        self._memory = memoryview(bytearray(64 << 10))

    @property
    def row(self) -> float:
        return -1.0 if self.unsent else self.waiting[0].row

    def push(self, frame: Frame) -> None:
        if frame.target is not None:
            self.awaited.append((self._pushed, frame))
        self._pushed += 1
        self.waiting.append(frame)

    def begin(self) -> None:
        """Make the next frame ready to be sent."""
        frame = self.waiting.popleft()
        self._begun += 1
        has = self.awaited[0][0] if self.awaited else self._pushed
        self.queue(wire.pack(frame.header._replace(acknowledged=has)))
        self.queue(frame.payload)

    def place(self, header: Header) -> memoryview:
        """A result comes into memory of its own first: a broken connection leaves no half of one in a
        tensor. Raises Malformed: it is not the one that is due."""
        if header.kind is Kind.RESULT:
            self._check(header)
        if len(self._memory) < header.nbytes:
            self._memory = memoryview(bytearray(header.nbytes))
        return self._memory[: header.nbytes]

    def _check(self, header: Header) -> None:
        if not self.awaited or self.awaited[0][0] >= self._begun:
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


_INTERVAL = 2e-4


class ThreadSwitching:
    """Has Python change threads more often while a transfer in Python moves bytes: between `begin` and `end`,
    which may be nested, over all communicators of the process.

    A program that computes in pure Python gives its interpreter away every 5 ms only; a lane would then be
    idle for most of the time (measured: 936 → 325 Mbit/s; 892 with 0.2 ms).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0.0

    def begin(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, _INTERVAL))

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                sys.setswitchinterval(self._before)


HURRY = ThreadSwitching()
