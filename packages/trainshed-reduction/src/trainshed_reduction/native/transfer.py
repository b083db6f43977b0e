"""The transfer of one rank's chunks over its lanes, done in C. Python keeps the memory alive that C uses, and
turns C's records into events."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections import deque
from typing import Deque, List, NamedTuple, Optional, Set, Union

from trainshed_reduction import wire
from trainshed_reduction.native import library
from trainshed_reduction.native.library import Library, Lost, Message, Report, Result
from trainshed_reduction.wire import Header

Event = Union[Result, Message, Lost]


class Frame(NamedTuple):
    """A chunk to send (DATA or FINAL), and the place for its result (None: the result is here already, and
    the reducer will send none). `row`: frames of lower rows go first (`client.ledger.place_of`)."""

    header: Header
    payload: memoryview
    target: Optional[memoryview]
    row: float


class _Lane:
    """The frames of a lane that C may still read or write, the oldest at position `first`; None: the lane has
    no connection."""

    def __init__(self) -> None:
        self.first = 0
        self.frames: Optional[Deque[Frame]] = None


class NativeTransfer:
    """Moves frames and results over the lanes of one rank; not thread-safe but for `wake`.

    Sends the frames of a lane in the order of `push`, and those of different lanes by `row`. At most the
    credit is sent and not come back; beyond it a lane that has no chunk under way may send one, or ranks
    whose credit is used up on different lanes would wait for each other. A result is received whole into a
    separate buffer and then copied to its target, or read straight into that if the system has all of it, so
    that a broken connection never leaves half of one in a tensor. A header says up to which position of its
    lane all results are here; frames without a target count as such, get no RESULT and take no credit.

    Results of an operation that is not done yet may be reported a tenth of a second late: to report, `run`
    has to wait for the interpreter lock, and nothing moves meanwhile."""

    def __init__(self, library: Library, lanes: int, credit: int) -> None:
        """`credit`: bytes over all lanes. Raises OSError: no descriptors or no memory are left."""
        #: By lane: how many results all ranks have, as the reducer said last.
        self.acknowledged = [0] * lanes
        self._functions = library.functions
        self._run = library.unlocked.transfer_run
        self._lanes = [_Lane() for _ in range(lanes)]
        self._report = Report(1024, 32 << 10)
        self._closing = threading.Lock()
        self._transfer = self._functions.transfer_new(lanes, credit)
        if not self._transfer:
            raise OSError("no descriptors or no memory are left for the connections to reducers")

    def attach(self, lane: int, connection: socket.socket, position: int, received: int) -> None:
        """Use this connected socket, which is not closed here, from `position` on (START). Frames pushed
        before are forgotten; results below `received` are here already and do not come. Raises OSError: it
        cannot be polled."""
        self.detach(lane)
        connection.setblocking(False)
        handle = connection.fileno()
        error = self._functions.transfer_attach(self._open(), lane, handle, position)
        if error:
            raise OSError(error, os.strerror(error))
        self._lanes[lane].first, self._lanes[lane].frames = position, deque()
        self.acknowledged[lane] = min(position, received)

    def detach(self, lane: int) -> None:
        if self._lanes[lane].frames is not None:
            self._lanes[lane].frames = None
            self._functions.transfer_detach(self._transfer, lane)

    def push(self, lane: int, frame: Frame) -> None:
        """Queue a frame to be sent; it is forgotten on a lane without a connection. Raises ValueError: the
        payload or the target is not as long as the header says."""
        frames = self._lanes[lane].frames
        if frames is None:
            return
        header, payload, target, row = frame
        if any(buffer.nbytes != header.nbytes for buffer in (payload, target or payload)):
            raise ValueError("a frame's payload and target are not as long as its header says")
        error = self._functions.transfer_push(
            self._transfer,
            lane,
            wire.pack(header),
            _address(payload),
            None if target is None else _address(target),
            row,
        )
        if error:
            raise MemoryError("no memory for a frame to be sent")
        frames.append(frame)

    def run(self, seconds: float) -> List[Event]:
        """Move bytes until there are events, `wake` was called, or the time is over."""
        seen: List[Event] = []
        lanes_seen: Set[int] = set()
        records = self._report.of(self._run, self._open(), seconds)
        for kind, lane, position, acknowledged, text in records:
            lanes_seen.add(lane)
            if kind == library.RESULT:
                self.acknowledged[lane] = max(self.acknowledged[lane], acknowledged)
                seen.append(Result(lane, position))
            elif kind == library.MESSAGE:
                seen.append(library.message(lane, text))
            else:
                cause = "the connection was closed by the other side"
                if kind == library.STRANGE:
                    cause = wire.STRANGE
                elif position:
                    cause = os.strerror(position)
                self._lanes[lane].frames = None
                seen.append(Lost(lane, cause))
        for lane in lanes_seen:
            state = self._lanes[lane]
            if state.frames is not None:
                released = self._functions.transfer_released(self._transfer, lane)
                for _ in range(released - state.first):
                    state.frames.popleft()
                state.first = released
        return seen

    def unsent(self) -> int:
        """Return how many frames of attached lanes the system has not taken to their last byte."""
        return self._functions.transfer_unsent(self._transfer) if self._transfer else 0

    def wake(self) -> None:
        """Make `run` return; from any thread."""
        with self._closing:
            if self._transfer:
                self._functions.transfer_wake(self._transfer)

    def close(self) -> None:
        """Free it. May be called again; otherwise only `wake`, `detach` and `unsent` may be called then."""
        with self._closing:
            transfer, self._transfer = self._transfer, None
        self._functions.transfer_free(transfer)
        for lane in self._lanes:
            lane.frames = None

    def _open(self) -> int:
        if not self._transfer:
            raise ValueError("the transfer is closed")
        return self._transfer


def _address(view: memoryview) -> int:
    """Return the address of a view's memory. Raises TypeError: it is read-only, or not in one piece."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
