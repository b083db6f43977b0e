"""A reducer's connections and running groups, which are in C, as Python sees them: connections by the
caller's name for them, records as events."""

from __future__ import annotations

import ctypes
import os
from typing import Dict, List, NamedTuple, Optional, Sequence, Union

from trainshed_reduction import wire
from trainshed_reduction.native.library import EVENT, Library
from trainshed_reduction.reducer.rows import MemberState, Progress, Seen
from trainshed_reduction.wire import Header

_MESSAGE, _LOST = 2, 3
_EVENTS = 64
_TEXT = 256 << 10
_HEADER = wire.HEADER.size
_NEVER = 2**64 - 1


class Message(NamedTuple):
    """A frame came that is no chunk. `key`: whose, as in all of these; nothing more is read of it until
    `resume`."""

    key: object
    header: Header
    payload: bytes


class Lost(NamedTuple):
    """The connection broke, or the other side has closed it."""

    key: object


class Odd(NamedTuple):
    """A header is not as it should be, by itself or for a chunk in its place; nothing more is read."""

    key: object
    header: bytes


Event = Union[Message, Lost, Odd]


class Numbers(NamedTuple):
    """Since the start; `pending`: bytes held now."""

    received: int
    sent: int
    chunks: int
    operations: int
    pending: int


class NativeConnection:
    """One worker's, until `drop`. Who closes the socket is the caller, afterwards."""

    def __init__(self, home: NativeReducer, slot: int, key: object) -> None:
        self._home = home
        self.slot = slot
        #: The caller's name for it.
        self.key = key
        self.group: Optional[NativeGroup] = None

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        return self._home.functions.reducer_unsent(self._home.handle, self.slot)

    def tell(self, frame: bytes) -> None:
        """To be sent after all that is to be sent already."""
        if self._home.functions.reducer_tell(self._home.handle, self.slot, frame):
            raise MemoryError("no memory for a frame to be sent")

    def resume(self) -> None:
        """Read on after a `Message`; of who is in no running group only."""
        self._home.functions.reducer_resume(self._home.handle, self.slot)

    def dismiss(self) -> None:
        """What is to be sent goes out, and then its end; what comes is thrown away until `Lost`."""
        self._home.functions.reducer_dismiss(self._home.handle, self.slot)
        self._part()

    def drop(self) -> None:
        self._home.functions.reducer_drop(self._home.handle, self.slot)
        del self._home.connections[self.slot]
        self._part()

    def _part(self) -> None:
        group, self.group = self.group, None
        if group is not None:
            group.lacks(self)


class NativeGroup:
    """A running group: its ranks `join` at once, before anything else of them is read, and it is gone when
    the last of them is dismissed or dropped."""

    def __init__(
        self, home: NativeReducer, world: int, progress: Progress, departed: Sequence[int]
    ) -> None:
        """`departed`: of the ranks that had left before, the positions of what they did not send any more."""
        head, operation, ordinal, _ = progress
        self._home = home
        self._world = world
        self._connections: Dict[int, NativeConnection] = {}
        self._handle = home.functions.reducer_begin(
            world, head, operation, ordinal, len(departed), min(departed, default=_NEVER)
        )
        if not self._handle:
            raise MemoryError("no memory for a group")

    def join(self, rank: int, connection: NativeConnection, received: int) -> None:
        """`received`: results below this position are at the rank already."""
        self._home.functions.reducer_join(
            self._home.handle, connection.slot, self._handle, rank, received
        )
        self._connections[rank] = connection
        connection.group = self

    def leave(self, rank: int) -> None:
        """In good order: the others go on with what it has sent."""
        self._home.functions.reducer_leave(self._home.handle, self._connections[rank].slot)

    def lacks(self, connection: NativeConnection) -> None:
        """It is in the group no more."""
        self._connections = {
            rank: each for rank, each in self._connections.items() if each is not connection
        }
        if not self._connections:
            self._home.functions.reducer_end(self._home.handle, self._handle)
            self._handle = None

    def state(self, rank: int) -> MemberState:
        state = (ctypes.c_uint64 * 2)()
        slot = self._connections[rank].slot
        self._home.functions.reducer_member(self._home.handle, slot, state)
        return MemberState(*state)

    def progress(self) -> Progress:
        state = (ctypes.c_int64 * 4)()
        self._home.functions.reducer_group(self._handle, state)
        return Progress(*state)

    def seen(self, position: int) -> Optional[Seen]:
        """None: nothing has come for it."""
        header = ctypes.create_string_buffer(_HEADER)
        since = ctypes.c_double()
        ranks = (ctypes.c_uint16 * self._world)()
        count = self._home.functions.reducer_row(self._handle, position, header, since, ranks)
        if not count:
            return None
        return Seen(wire.unpack(header.raw), since.value, ranks[:count])


class NativeReducer:
    """All connections and groups of one process. Not thread-safe."""

    def __init__(self, library: Library, elsewhere: int) -> None:
        """`elsewhere`: a handle that becomes readable when the caller has something else to do. Raises
        OSError: no descriptors or no memory are left."""
        self.functions = library.functions
        self.handle = self.functions.reducer_new(elsewhere)
        if not self.handle:
            raise OSError("no descriptors or no memory are left for a reducer")
        #: By slot.
        self.connections: Dict[int, NativeConnection] = {}
        self._run = library.unlocked.reducer_run
        self._events = ctypes.create_string_buffer(_EVENTS * EVENT.size)
        self._text = ctypes.create_string_buffer(_TEXT)

    def add(self, handle: int, key: object) -> NativeConnection:
        """Read and send on this socket, which does not block. Raises OSError: it cannot be waited for."""
        slot = self.functions.reducer_add(self.handle, handle)
        if slot < 0:
            raise OSError(-slot, os.strerror(-slot))
        connection = self.connections[slot] = NativeConnection(self, slot, key)
        return connection

    def begin(self, world: int, progress: Progress, departed: Sequence[int]) -> NativeGroup:
        return NativeGroup(self, world, progress, departed)

    def run(self, seconds: Optional[float]) -> List[Event]:
        """Serve until there are events, the caller has something else to do, or the time is over (None:
        never); a second after something has moved in any case."""
        patience = -1.0 if seconds is None else seconds
        count = self._run(self.handle, patience, self._events, _EVENTS, self._text, _TEXT)
        events: List[Event] = []
        texts = memoryview(self._text)
        records = memoryview(self._events)[: count * EVENT.size]
        for kind, slot, _, _, offset, size in EVENT.iter_unpack(records):
            key = self.connections[slot].key
            text = bytes(texts[offset : offset + size])
            if kind == _LOST:
                events.append(Lost(key))
            elif kind == _MESSAGE:
                events.append(Message(key, wire.unpack(text[:_HEADER]), text[_HEADER:]))
            else:
                events.append(Odd(key, text))
        return events

    def numbers(self) -> Numbers:
        numbers = (ctypes.c_uint64 * len(Numbers._fields))()
        self.functions.reducer_numbers(self.handle, numbers)
        return Numbers(*numbers)

    def waited(self) -> Sequence[float]:
        """By rank: seconds that a group has waited for it alone."""
        count = self.functions.reducer_waited(self.handle, None, 0)
        seconds = (ctypes.c_double * count)()
        self.functions.reducer_waited(self.handle, seconds, count)
        return seconds[:]

    def close(self) -> None:
        """After all connections were dropped."""
        self.functions.reducer_free(self.handle)
