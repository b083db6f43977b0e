"""The Python interface of a reducer's connections and running groups, which the C library implements. A
connection is identified by a number, its slot."""

from __future__ import annotations

import ctypes
import os
from typing import Dict, List, Optional, Sequence, Union

from trainshed_reduction import wire
from trainshed_reduction.native import library
from trainshed_reduction.native.library import (
    Library,
    Lost,
    Message,
    MismatchedChunk,
    ProtocolViolation,
    Report,
)
from trainshed_reduction.reducer.rows import ArrivedChunks, MemberState, Progress

Event = Union[Message, Lost, ProtocolViolation, MismatchedChunk]
_NEVER = 2**64 - 1


class NativeGroup:
    """A group that sums chunks. The caller must add all ranks (`join`) before it reads further frames. The
    group ends when the last rank's connection is dismissed or dropped."""

    def __init__(self, home: NativeReducer, world: int, progress: Progress, departed: Sequence[int]) -> None:
        """`departed`: the ranks that left before the group started. It contains, for each of them, the first
        position that the rank has not sent."""
        self._home = home
        self._functions = home.functions
        self._world = world
        self._slots: Dict[int, int] = {}
        head, operation, ordinal, _ = progress
        self._handle = self._functions.reducer_begin(
            world, head, operation, ordinal, len(departed), min(departed, default=_NEVER)
        )
        if not self._handle:
            raise MemoryError("cannot allocate memory for a group's chunks")

    def join(self, rank: int, slot: int, received: int) -> None:
        """Add the connection of a rank to the group. `received`: number of results that the rank has."""
        self._slots[rank] = slot
        self._functions.reducer_join(self._home.handle, slot, self._handle, rank, received)

    def leave(self, rank: int) -> None:
        """Remove a rank that has sent BYE. The other ranks continue. The chunks that the rank has sent remain
        part of the sums."""
        self._functions.reducer_leave(self._home.handle, self._slots[rank])

    def state(self, rank: int) -> MemberState:
        state = (ctypes.c_uint64 * 2)()
        self._functions.reducer_member(self._home.handle, self._slots[rank], state)
        return MemberState(*state)

    def progress(self) -> Progress:
        state = (ctypes.c_int64 * 4)()
        self._functions.reducer_group(self._handle, state)
        return Progress(*state)

    def chunks(self, position: int) -> Optional[ArrivedChunks]:
        """Return the chunks that have arrived for a position; None = no chunk has arrived."""
        header = ctypes.create_string_buffer(wire.HEADER.size)
        since = ctypes.c_double()
        ranks = (ctypes.c_uint16 * self._world)()
        count = self._functions.reducer_row(self._handle, position, header, ctypes.byref(since), ranks)
        if not count:
            return None
        return ArrivedChunks(wire.unpack(header.raw), since.value, ranks[:count])


class NativeReducer:
    """All connections and groups of one thread of a reducer. Not thread-safe."""

    def __init__(self, library: Library, elsewhere: int) -> None:
        """`elsewhere`: a file descriptor that becomes readable when the caller has other work, so that `run`
        returns. Raises OSError if no file descriptor or no memory is available."""
        self.functions = library.functions
        self.handle = self.functions.reducer_new(elsewhere)
        if not self.handle:
            raise OSError("a reducer cannot start, because no file descriptors or no memory are available")
        self._run = library.unlocked.reducer_run
        self._report = Report(64, 256 << 10)

    def add(self, handle: int) -> int:
        """Serve the connection of a non-blocking socket, and return its slot, which is the connection's
        number. The caller must close the socket after `drop`. Raises OSError if the socket cannot be polled.
        """
        slot = self.functions.reducer_add(self.handle, handle)
        if slot < 0:
            raise OSError(-slot, os.strerror(-slot))
        return slot

    def send(self, slot: int, frame: bytes) -> None:
        """Send a frame after all frames that are not sent yet. Does not block. Raises MemoryError."""
        if self.functions.reducer_tell(self.handle, slot, frame):
            raise MemoryError("cannot allocate memory for a frame")

    def unsent(self, slot: int) -> int:
        """Return the number of bytes that are not sent yet."""
        return self.functions.reducer_unsent(self.handle, slot)

    def resume(self, slot: int) -> None:
        """Continue to read from a connection. Reading stops after each `Message`. Call this only for a
        connection that belongs to no running group."""
        self.functions.reducer_resume(self.handle, slot)

    def dismiss(self, slot: int) -> None:
        """Send all frames that are not sent yet, and then end the stream. Data that arrives in the meantime
        is discarded. The event `Lost` follows."""
        self.functions.reducer_dismiss(self.handle, slot)

    def drop(self, slot: int) -> None:
        self.functions.reducer_drop(self.handle, slot)

    def run(self, seconds: Optional[float]) -> List[Event]:
        """Serve all connections until events occur, the caller has other work, or `seconds` have passed (None
        = no limit). While data arrives, return after at most one second. After a `Message`, no data is read
        from its connection until `resume`."""
        events: List[Event] = []
        timeout = -1.0 if seconds is None else seconds
        for kind, slot, _, _, text in self._report.read(self._run, self.handle, timeout):
            if kind == library.LOST:
                events.append(Lost(slot))
            elif kind == library.MESSAGE:
                events.append(library.message(slot, text))
            elif kind == library.MISMATCH:
                events.append(MismatchedChunk(slot, wire.unpack(text)))
            else:
                events.append(ProtocolViolation(slot))
        return events

    def close(self) -> None:
        """Free the memory. Call `drop` for all connections before."""
        self.functions.reducer_free(self.handle)
