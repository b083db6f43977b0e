"""The Python interface of the transfer of a rank's chunks on its lanes (connections to reducers), which the C
library implements. This module keeps memory alive while C uses it, and converts C's records to events."""

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
    """A chunk to send. It contains the rank's input (DATA) or a result (FINAL). `target`: the memory for the
    chunk's result; None = the result has already arrived, and the reducer does not send it again. `row`: sort
    key of frames on different lanes; the lowest is sent first (`client.ledger.place_of`)."""

    header: Header
    payload: memoryview
    target: Optional[memoryview]
    row: float


class _Lane:
    """The frames of a lane (a connection to one thread of a reducer) that C may still access. `first`:
    position of the oldest of these frames. `frames`: these frames in order; None = the lane has no
    connection."""

    def __init__(self) -> None:
        self.first = 0
        self.frames: Optional[Deque[Frame]] = None


class NativeTransfer:
    """Transfers the chunks and results of one rank on its lanes (connections to threads of reducers). Only
    `wake` is thread-safe.

    On a lane, frames are sent in the order of the `push` calls. If several lanes can send, the frame with the
    lowest `Frame.row` is sent first.

    A chunk is in flight from its sending until its result has arrived. The *credit* is the maximum number of
    bytes in flight. A lane without chunks in flight may exceed the credit by one chunk. Otherwise ranks whose
    credit is used up on different lanes would wait for each other.

    A result is copied to its target only when the whole result has arrived. Therefore a broken connection
    never leaves a part of a result in a tensor. The header of a frame contains the position below which this
    rank has all results of the lane. A frame without a target counts as a result: it receives no RESULT and
    uses no credit.

    Results of an unfinished operation may be reported a tenth of a second late. To report, the transfer must
    wait for Python's interpreter lock, and no data moves in the meantime.
    """

    def __init__(self, library: Library, lanes: int, credit: int) -> None:
        """`lanes`: number of connections to reducers. `credit`: maximum bytes in flight on all of them
        together. Raises OSError if no file descriptor or no memory is available."""
        #: By lane (connection to a reducer): the number of results that all ranks have, according to the
        #: reducer's last report.
        self.acknowledged = [0] * lanes
        self._functions = library.functions
        self._run = library.unlocked.transfer_run
        self._lanes = [_Lane() for _ in range(lanes)]
        self._report = Report(1024, 32 << 10)
        self._closing = threading.Lock()
        self._transfer = self._functions.transfer_new(lanes, credit)
        if not self._transfer:
            raise OSError(
                "this worker cannot connect to reducers, because no file descriptors or no memory are "
                "available"
            )

    def attach(self, lane: int, connection: socket.socket, position: int, received: int) -> None:
        """Use a connected socket for the frames of a lane (a link to one reducer's thread), starting at
        `position` (from START). The caller closes the socket. Earlier frames of the lane are dropped.
        `received`: number of results of the lane that have already arrived. Raises OSError if the socket
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
        """Send a frame on a lane (a link to one reducer's thread) when the credit allows it. Does not block.
        If the lane has no connection, the frame is dropped. Raises ValueError if the length of the payload or
        of the target differs from the header."""
        frames = self._lanes[lane].frames
        if frames is None:
            return
        header, payload, target, row = frame
        if any(buffer.nbytes != header.nbytes for buffer in (payload, target or payload)):
            raise ValueError("a frame's payload or target does not have the length in its header")
        error = self._functions.transfer_push(
            self._transfer,
            lane,
            wire.pack(header),
            _address(payload),
            None if target is None else _address(target),
            row,
        )
        if error:
            raise MemoryError("cannot allocate memory for a frame")
        frames.append(frame)

    def run(self, seconds: float) -> List[Event]:
        """Transfer data until events occur, `wake` is called, or `seconds` have passed. Return the events."""
        events: List[Event] = []
        lanes_seen: Set[int] = set()
        records = self._report.read(self._run, self._open(), seconds)
        for kind, lane, position, acknowledged, text in records:
            lanes_seen.add(lane)
            if kind == library.RESULT:
                self.acknowledged[lane] = max(self.acknowledged[lane], acknowledged)
                events.append(Result(lane, position))
            elif kind == library.MESSAGE:
                events.append(library.message(lane, text))
            else:
                cause = "the other side closed the connection"
                if kind == library.VIOLATION:
                    cause = wire.VIOLATION
                elif position:
                    cause = os.strerror(position)
                self._lanes[lane].frames = None
                events.append(Lost(lane, cause))
        for lane in lanes_seen:
            state = self._lanes[lane]
            if state.frames is not None:
                released = self._functions.transfer_released(self._transfer, lane)
                for _ in range(released - state.first):
                    state.frames.popleft()
                state.first = released
        return events

    def unsent(self) -> int:
        """Return the number of frames, on all lanes (links to reducers) with a connection, that are not
        completely sent."""
        return self._functions.transfer_unsent(self._transfer) if self._transfer else 0

    def wake(self) -> None:
        """Make `run` return, even if no event occurs. May be called from any thread."""
        with self._closing:
            if self._transfer:
                self._functions.transfer_wake(self._transfer)

    def close(self) -> None:
        """Free the memory. Afterwards, only `wake`, `detach`, `unsent` and `close` may be called."""
        with self._closing:
            transfer, self._transfer = self._transfer, None
        self._functions.transfer_free(transfer)
        for lane in self._lanes:
            lane.frames = None

    def _open(self) -> int:
        if not self._transfer:
            raise ValueError("the transfer to the reducers is closed")
        return self._transfer


def _address(view: memoryview) -> int:
    """Return the address of the memory of a view. Raises TypeError for read-only or non-contiguous views."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
