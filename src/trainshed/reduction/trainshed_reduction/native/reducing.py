"""A reducer's groups in C, as Python sees them: members by the caller's name for them, records as events."""

from __future__ import annotations

import ctypes
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from trainshed_reduction import wire
from trainshed_reduction.native.library import EVENT, Library
from trainshed_reduction.reducer.peers import Lost, Message, Odd
from trainshed_reduction.reducer.rows import Progress, Seen, Shape

_MESSAGE, _LOST = 2, 3
_EVENTS = 64
_TEXT = 256 << 10
_HEADER = wire.HEADER.size


class Numbers(NamedTuple):
    """Since the start; `pending`: bytes held now."""

    received: int
    sent: int
    chunks: int
    operations: int
    pending: int


class NativeMember:
    """One connection, from `join` on until `part`."""

    def __init__(self, home: NativeReducer, group: NativeGroup, slot: int, key: object) -> None:
        self._home = home
        self._group = group
        self._slot = slot
        #: The caller's name for it.
        self.key = key

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        return self._home.functions.reducer_unsent(self._home.handle, self._slot)

    def state(self) -> Tuple[int, int, int]:
        """The position of the next chunk that it sends, what it has acknowledged, its latest operation's
        ordinal."""
        state = (ctypes.c_uint64 * 3)()
        self._home.functions.reducer_member(self._home.handle, self._slot, state)
        return state[0], state[1], state[2]

    def tell(self, frame: bytes) -> None:
        """To be sent after all that is to be sent already."""
        if self._home.functions.reducer_tell(self._home.handle, self._slot, frame):
            raise MemoryError("no memory for a frame to be sent")

    def leave(self) -> None:
        """In good order: the others go on with what it has sent."""
        self._home.functions.reducer_leave(self._home.handle, self._slot)

    def part(self) -> bytes:
        """The connection is the caller's again; what was still to be sent on it."""
        unsent = ctypes.create_string_buffer(self.unsent)
        self._home.functions.reducer_part(self._home.handle, self._slot, unsent)
        del self._home.members[self._slot]
        self._group.lacks(self)
        return unsent.raw


class NativeGroup:
    """A running group of `world` ranks, all of which `join`; gone when the last has parted."""

    def __init__(self, home: NativeReducer, world: int, progress: Progress) -> None:
        head, operation, ordinal, _ = progress
        self._home = home
        self._world = world
        self._handle = home.functions.reducer_begin(world, head, operation, ordinal)
        self._members: List[NativeMember] = []
        self._last = progress
        if not self._handle:
            raise MemoryError("no memory for a group")

    def join(self, rank: int, handle: int, received: int, key: object) -> NativeMember:
        """`received`: results below this position are at the rank already. Raises OSError: the group is
        not to be used."""
        slot = self._home.functions.reducer_join(
            self._home.handle, self._handle, rank, handle, received
        )
        if slot < 0:
            if not self._members:
                self._home.functions.reducer_end(self._home.handle, self._handle)
            raise OSError(-slot, "the connection cannot be waited for")
        member = self._home.members[slot] = NativeMember(self._home, self, slot, key)
        self._members.append(member)
        return member

    def lacks(self, member: NativeMember) -> None:
        """It has parted."""
        self._members.remove(member)
        if not self._members:
            self._last = self.progress()
            self._home.functions.reducer_end(self._home.handle, self._handle)
            self._handle = None

    def progress(self) -> Progress:
        """As it was last, if all have parted."""
        if self._handle is None:
            return self._last
        state = (ctypes.c_int64 * 4)()
        self._home.functions.reducer_group(self._handle, state)
        return Progress(*state)

    def seen(self, position: int) -> Optional[Seen]:
        """None: nothing has come for it."""
        if self._handle is None:
            return None
        header = ctypes.create_string_buffer(_HEADER)
        since = ctypes.c_double()
        ranks = (ctypes.c_uint16 * self._world)()
        count = self._home.functions.reducer_row(self._handle, position, header, since, ranks)
        if not count:
            return None
        return Seen(Shape.of(wire.unpack(header.raw)), since.value, ranks[:count])


class NativeReducer:
    """All groups in C of one process. Not thread-safe."""

    def __init__(self, library: Library, handle: int) -> None:
        self.functions = library.functions
        self.handle = handle
        self.members: Dict[int, NativeMember] = {}
        """By slot."""
        self._run = library.unlocked.reducer_run
        self._events = ctypes.create_string_buffer(_EVENTS * EVENT.size)
        self._text = ctypes.create_string_buffer(_TEXT)

    @staticmethod
    def made(library: Library, elsewhere: int) -> Optional[NativeReducer]:
        """None: the system has no epoll, or nothing is left to make one."""
        handle = library.functions.reducer_new(elsewhere)
        return NativeReducer(library, handle) if handle else None

    def begin(self, world: int, progress: Progress) -> NativeGroup:
        return NativeGroup(self, world, progress)

    def run(self, seconds: Optional[float]) -> "List[object]":
        """Serve until there are events (see `peers`), the
        caller has something else to do, or the time is over; a second after something has moved in any
        case."""
        patience = -1.0 if seconds is None else seconds
        count = self._run(self.handle, patience, self._events, _EVENTS, self._text, _TEXT)
        events: List[object] = []
        texts = memoryview(self._text)
        records = memoryview(self._events)[: count * EVENT.size]
        for kind, slot, _, _, offset, size in EVENT.iter_unpack(records):
            key = self.members[slot].key
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
        """After all members have parted."""
        self.functions.reducer_free(self.handle)
