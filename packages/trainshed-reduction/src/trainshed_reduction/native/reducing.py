"""Python's view of a reducer's connections, which are numbered slots, and running groups; both are in C."""

from __future__ import annotations

import ctypes
import os
from typing import Dict, List, Optional, Sequence, Union

from trainshed_reduction import wire
from trainshed_reduction.native import library
from trainshed_reduction.native.library import Library, Lost, Message, Odd, Report, Strange
from trainshed_reduction.reducer.rows import MemberState, Progress, Seen

Event = Union[Message, Lost, Strange, Odd]
_NEVER = 2**64 - 1


class NativeGroup:
    """A running group. All ranks `join` before anything else of them is read, and the group is gone when the
    last of them is dismissed or dropped."""

    def __init__(
        self, home: NativeReducer, world: int, progress: Progress, departed: Sequence[int]
    ) -> None:
        """`departed`: for each rank that had left before, the first position that it did not send."""
        self._home = home
        self._functions = home.functions
        self._world = world
        self._slots: Dict[int, int] = {}
        head, operation, ordinal, _ = progress
        self._handle = self._functions.reducer_begin(
            world, head, operation, ordinal, len(departed), min(departed, default=_NEVER)
        )
        if not self._handle:
            raise MemoryError("no memory for a group's chunks")

    def join(self, rank: int, slot: int, received: int) -> None:
        """Add a rank's connection. `received`: how many results the rank has already."""
        self._slots[rank] = slot
        self._functions.reducer_join(self._home.handle, slot, self._handle, rank, received)

    def leave(self, rank: int) -> None:
        """Let a rank leave in good order: the others go on with what it has sent."""
        self._functions.reducer_leave(self._home.handle, self._slots[rank])

    def state(self, rank: int) -> MemberState:
        state = (ctypes.c_uint64 * 2)()
        self._functions.reducer_member(self._home.handle, self._slots[rank], state)
        return MemberState(*state)

    def progress(self) -> Progress:
        state = (ctypes.c_int64 * 4)()
        self._functions.reducer_group(self._handle, state)
        return Progress(*state)

    def seen(self, position: int) -> Optional[Seen]:
        """Return what has come for a position; None: nothing has."""
        header = ctypes.create_string_buffer(wire.HEADER.size)
        since = ctypes.c_double()
        ranks = (ctypes.c_uint16 * self._world)()
        count = self._functions.reducer_row(
            self._handle, position, header, ctypes.byref(since), ranks
        )
        return Seen(wire.unpack(header.raw), since.value, ranks[:count]) if count else None


class NativeReducer:
    """All connections and groups of one thread. Not thread-safe."""

    def __init__(self, library: Library, elsewhere: int) -> None:
        """`elsewhere`: a file descriptor that is readable when the caller has something else to do. Raises
        OSError: no descriptors or no memory are left."""
        self.functions = library.functions
        self.handle = self.functions.reducer_new(elsewhere)
        if not self.handle:
            raise OSError("no descriptors or no memory are left for a reducer")
        self._run = library.unlocked.reducer_run
        self._report = Report(64, 256 << 10)

    def add(self, handle: int) -> int:
        """Read and send on this socket, which must not block, and return the connection's slot. The caller
        closes the socket, after `drop`. Raises OSError: it cannot be polled."""
        slot = self.functions.reducer_add(self.handle, handle)
        if slot < 0:
            raise OSError(-slot, os.strerror(-slot))
        return slot

    def tell(self, slot: int, frame: bytes) -> None:
        """Send a frame after all that waits to be sent. Raises MemoryError."""
        if self.functions.reducer_tell(self.handle, slot, frame):
            raise MemoryError("no memory for a frame to be sent")

    def unsent(self, slot: int) -> int:
        """Return the bytes that wait to be sent."""
        return self.functions.reducer_unsent(self.handle, slot)

    def resume(self, slot: int) -> None:
        """Read on after a `Message`; only for a connection that is in no running group."""
        self.functions.reducer_resume(self.handle, slot)

    def dismiss(self, slot: int) -> None:
        """Send what waits to be sent, then the end; what comes is thrown away until `Lost`."""
        self.functions.reducer_dismiss(self.handle, slot)

    def drop(self, slot: int) -> None:
        self.functions.reducer_drop(self.handle, slot)

    def run(self, seconds: Optional[float]) -> List[Event]:
        """Serve until there are events, the caller has something else to do, or `seconds` are over (None: no
        limit), but only a second once data has moved. After a `Message` nothing more is read of its
        connection until `resume`."""
        seen: List[Event] = []
        patience = -1.0 if seconds is None else seconds
        for kind, slot, _, _, text in self._report.of(self._run, self.handle, patience):
            if kind == library.LOST:
                seen.append(Lost(slot))
            elif kind == library.MESSAGE:
                seen.append(library.message(slot, text))
            elif kind == library.ODD:
                seen.append(Odd(slot, wire.unpack(text)))
            else:
                seen.append(Strange(slot))
        return seen

    def close(self) -> None:
        """Free it, after all connections were dropped."""
        self.functions.reducer_free(self.handle)
