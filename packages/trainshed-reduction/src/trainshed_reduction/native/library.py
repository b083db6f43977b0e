"""Loads the C library, or returns the reason why it is missing. Decodes the library's events (`struct report`
in frames.h).

The library adds half types in fp32 and rounds once, to nearest, ties to even. Every NaN becomes 0x7E00 (fp16)
or 0x7FC0 (bf16). Integers wrap around.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import struct
from ctypes import c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from trainshed_reduction import wire
from trainshed_reduction.variables import NATIVE
from trainshed_reduction.wire import Header

DIRECTORY = Path(__file__).resolve().parent
SOURCES = tuple(sorted(path.name for path in DIRECTORY.glob("*.[ch]")))

_SIGNATURES: Dict[str, Tuple[Any, List[Any]]] = {
    "sums_widen": (None, [c_int, c_void_p, c_void_p, c_size_t]),
    "sums_add": (None, [c_int, c_void_p, c_void_p, c_size_t]),
    "sums_finish": (None, [c_int, c_int, c_uint32, c_void_p, c_void_p, c_size_t]),
    "transfer_new": (c_void_p, [c_uint32, c_uint64]),
    "transfer_free": (None, [c_void_p]),
    "transfer_attach": (c_int, [c_void_p, c_uint32, c_int, c_uint64]),
    "transfer_detach": (None, [c_void_p, c_uint32]),
    "transfer_push": (c_int, [c_void_p, c_uint32, c_void_p, c_void_p, c_void_p, c_double]),
    "transfer_run": (c_int, [c_void_p, c_double, c_void_p, c_int, c_void_p, c_size_t]),
    "transfer_released": (c_uint64, [c_void_p, c_uint32]),
    "transfer_unsent": (c_uint64, [c_void_p]),
    "transfer_wake": (None, [c_void_p]),
    "reducer_new": (c_void_p, [c_int]),
    "reducer_free": (None, [c_void_p]),
    "reducer_begin": (c_void_p, [c_uint32, c_uint64, c_int64, c_uint64, c_uint32, c_uint64]),
    "reducer_add": (c_int, [c_void_p, c_int]),
    "reducer_resume": (None, [c_void_p, c_uint32]),
    "reducer_join": (None, [c_void_p, c_uint32, c_void_p, c_uint32, c_uint64]),
    "reducer_unsent": (c_uint64, [c_void_p, c_uint32]),
    "reducer_leave": (None, [c_void_p, c_uint32]),
    "reducer_dismiss": (None, [c_void_p, c_uint32]),
    "reducer_drop": (None, [c_void_p, c_uint32]),
    "reducer_tell": (c_int, [c_void_p, c_uint32, c_char_p]),
    "reducer_run": (c_int, [c_void_p, c_double, c_void_p, c_int, c_void_p, c_size_t]),
    "reducer_member": (None, [c_void_p, c_uint32, c_void_p]),
    "reducer_group": (None, [c_void_p, c_void_p]),
    "reducer_row": (c_uint32, [c_void_p, c_uint64, c_void_p, c_void_p, c_void_p]),
}


class Library:
    """The loaded C library. Calls through `functions` keep Python's interpreter lock, because these calls
    take less time than releasing the lock. Calls of the same functions through `unlocked` release the lock.
    """

    def __init__(self, path: Path) -> None:
        """Load the library. Raises OSError or AttributeError if the file at `path` is not this library."""
        self.path = path
        self.functions = ctypes.PyDLL(str(path))
        self.unlocked = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            for functions in (self.functions, self.unlocked):
                function = getattr(functions, name)
                function.restype = result
                function.argtypes = arguments


def load() -> Optional[Library]:
    """Return the library, or None if it cannot be used. `reason` then returns the cause. The library is
    loaded at the first call."""
    return _find()[0]


def reason() -> str:
    """Return why `load` returns None; "" if `load` returns the library."""
    return _find()[1]


def name(machine: Optional[str] = None) -> str:
    """Return the file name of the library for an architecture. Default: this machine's architecture. The name
    contains a digest of the sources, so that a library from other sources is never loaded."""
    digest = hashlib.sha256()
    for source in SOURCES:
        digest.update((DIRECTORY / source).read_bytes())
    return f"trainshed_reduction-{machine or platform.machine()}-{digest.hexdigest()[:16]}.so"


@functools.lru_cache(maxsize=None)
def _find() -> Tuple[Optional[Library], str]:
    wanted = os.environ.get(NATIVE, "")
    path: Path = DIRECTORY
    try:
        file = name()
        for place in ([Path(wanted)] if wanted else []) + [DIRECTORY]:
            path = place / file
            if path.exists():
                return Library(path), ""
    except Exception as error:  # Catch all exceptions, because their types depend on the platform.
        return None, f"{path} cannot be loaded: {error}"
    return None, file + " was not built. Run python -m trainshed_reduction.native with a C compiler"


RESULT, MESSAGE, LOST, VIOLATION, MISMATCH = 1, 2, 3, 4, 5
_EVENT = struct.Struct("=iiQQII")
"""`struct event`: kind, number of the connection (lane or slot), position, acknowledged, offset and size of
the text."""


class Result(NamedTuple):
    """The result of a frame has arrived, and was written to the frame's target. `position`: the frame's
    position on `lane`, a connection to one thread of a reducer."""

    lane: int
    position: int


class Message(NamedTuple):
    """A frame that carries no chunk has arrived. `lane`: on a worker, the connection to a reducer's thread;
    on a reducer, the connection's slot (number)."""

    lane: int
    header: Header
    payload: bytes


class Lost(NamedTuple):
    """A connection is broken or unusable. `lane`: as in `Message`."""

    lane: int
    cause: str = ""


class ProtocolViolation(NamedTuple):
    """A frame violates the protocol. No more data is read from the connection. `lane`: as in `Message`."""

    lane: int


class MismatchedChunk(NamedTuple):
    """A worker sent a chunk that does not match the chunks of the other ranks. No more data is read from its
    connection. `lane`: the connection's slot (number)."""

    lane: int
    header: Header


Record = Tuple[int, int, int, int, bytes]
"""An event's kind, number of the connection (lane), position, acknowledged and text. frames.h describes the
fields of each kind."""


def message(lane: int, text: bytes) -> Message:
    at = wire.HEADER.size
    return Message(lane, wire.unpack(text[:at]), text[at:])


class Report:
    """The memory in which a run of the C library stores events and their texts."""

    def __init__(self, events: int, text: int) -> None:
        self._capacity = events
        self._events = ctypes.create_string_buffer(events * _EVENT.size)
        self._text = ctypes.create_string_buffer(text)

    def read(self, run: Any, handle: object, seconds: float) -> Iterator[Record]:
        """Call the C function `run` (`transfer_run` or `reducer_run`) once, and yield the records of the
        events that it has stored."""
        memory = self._events, self._capacity, self._text, len(self._text)
        count = run(handle, seconds, *memory)
        records, texts = memoryview(self._events)[: count * _EVENT.size], memoryview(self._text)
        for kind, lane, position, acknowledged, offset, size in _EVENT.iter_unpack(records):
            text = bytes(texts[offset : offset + size]) if size else b""
            yield kind, lane, position, acknowledged, text
