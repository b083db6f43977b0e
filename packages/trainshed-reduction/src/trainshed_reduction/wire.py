"""The messages between workers and reducers. Headers have a fixed size and are little-endian. Receivers check
sizes before they allocate memory.

A connection between one worker and one thread of a reducer is a *lane*. First, both sides prove that they
know the job's token. Then they exchange frames. A frame is a header and its payload:

    reducer → worker   CHALLENGE   the reducer's nonce
    worker  → reducer  HELLO       the worker's proof, its group, generation and rank, its received results
    reducer → worker   ACCEPT      the reducer's proof and its number of threads
    reducer → worker   START       all ranks are connected; the next position of the lane
    worker  → reducer  DATA        a chunk of the worker's input
    worker  → reducer  FINAL       a chunk's result, sent again after a reducer was lost
    reducer → worker   RESULT      the sum of a chunk, to each rank that sent DATA for it
    reducer → worker   STATUS      the missing ranks, at least once a second during a wait
    either             ERROR       the reason why the worker is rejected or the group has failed
    worker  → reducer  BYE         the worker leaves after its last operation

Positions count the DATA and FINAL frames of a lane, from START's position on. Every rank sends the same
chunks in the same order, and results arrive in this order. No data is unpickled. Individual frames are not
authenticated: an attacker who can write into a worker's TCP connection can change the numbers that it
transfers."""

import enum
import struct
from typing import Dict, NamedTuple, Type, TypeVar

VERSION = 6
MAX_CHUNK = 4 << 20
"""Maximum bytes of the payload of a DATA, FINAL or RESULT frame (CHUNK in frames.h)."""
MAX_TEXT = 1024
"""Maximum bytes of the payload of other frames (TEXT in frames.h)."""
MAX_WORLD = 4096
NONCE = 32
GROUP = 16

VIOLATION = (
    "the received data is not a valid frame: the peer is not a Reduction Server, or has another version"
)


class Malformed(ValueError):
    """Data is not a valid message of this protocol. The connection must not be used any longer."""


class Kind(enum.IntEnum):
    CHALLENGE = 1
    HELLO = 2
    ACCEPT = 3
    ERROR = 4
    START = 5
    DATA = 6
    FINAL = 7
    RESULT = 8
    STATUS = 9
    BYE = 10


_KINDS = frozenset(Kind)


class DType(enum.IntEnum):
    """The types of elements. Half-precision types are added in fp32, and the sum is rounded once."""

    FLOAT32 = 1
    FLOAT64 = 2
    FLOAT16 = 3
    BFLOAT16 = 4
    INT32 = 5
    INT64 = 6

    @property
    def itemsize(self) -> int:
        return _ITEMSIZE[self]

    @property
    def is_integer(self) -> bool:
        return self in (DType.INT32, DType.INT64)


_ITEMSIZE = {
    DType.FLOAT32: 4,
    DType.FLOAT64: 8,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.INT32: 4,
    DType.INT64: 8,
}


class Reduction(enum.IntEnum):
    """How elements are reduced. SUM: the sum over the ranks. AVERAGE: the sum divided by the number of ranks.
    The result is rounded after the division. Integers support only SUM."""

    SUM = 0
    AVERAGE = 1


HEADER = struct.Struct("<4sBBBxH2xIQQIIQQ")
"""Format of a frame's header: the magic number, and the fields of `Header` in the same order."""
_MAGIC = b"TSR2"


class Header(NamedTuple):
    """The header of every frame. Fields that a kind of frame does not use are 0."""

    kind: Kind
    dtype: int = 0
    reduction: int = 0
    rank: int = 0
    #: Index of the chunk within its operation.
    chunk: int = 0
    #: Number of the operation, from 0 on, among the group's operations that reducers execute.
    operation: int = 0
    #: Number of elements of the whole operation.
    total: int = 0
    #: Number of elements of each chunk of the operation. The last chunk may have fewer elements.
    step: int = 0
    #: Number of bytes of the payload.
    nbytes: int = 0
    #: From a worker: number of results of this lane (connection) that the worker has. From a reducer: number
    #: of results of this lane that all ranks have.
    acknowledged: int = 0
    #: Number of the operation in messages to users, from 1 on; 0 = the operation has no number.
    ordinal: int = 0


def pack(header: Header) -> bytes:
    return HEADER.pack(_MAGIC, *header)


def unpack(data: "bytes | bytearray | memoryview") -> Header:
    """Decode a header from HEADER.size bytes. Raises Malformed if the magic number or the kind is wrong. The
    C library has already checked that the size of a chunk fits its operation."""
    magic, kind, *rest = HEADER.unpack(data)
    if magic != _MAGIC or kind not in _KINDS:
        raise Malformed(VIOLATION)
    return Header(Kind(kind), *rest)


class Hello(NamedTuple):
    """The first message of a worker on a lane, its connection to one thread of a reducer."""

    #: Digest of the group's name.
    group: bytes
    #: Generation of the group. Rank 0 chooses it, and it increases with each restart of the ranks.
    generation: int
    rank: int
    world: int
    #: Index of the reducer's thread.
    lane: int = 0
    #: Number of results of this lane (connection) and this generation that the rank has.
    received: int = 0


class Accept(NamedTuple):
    """A reducer's answer to HELLO: it accepts the worker."""

    #: Number of the reducer's threads. A worker has one connection (lane) to each thread.
    threads: int


class Start(NamedTuple):
    """A reducer's message after all ranks are connected: chunks may be sent."""

    #: Position at which the lane (the worker's connection to this thread) continues. It is the lowest number
    #: of results that any rank has received.
    position: int


_SHAPES: Dict[type, struct.Struct] = {
    Hello: struct.Struct("<16sQIIIQ"),
    Accept: struct.Struct("<I"),
    Start: struct.Struct("<Q"),
}
Message = TypeVar("Message", Hello, Accept, Start)


def pack_message(message: "Hello | Accept | Start") -> bytes:
    return _SHAPES[type(message)].pack(*message)


def unpack_message(kind: Type[Message], data: bytes) -> Message:
    """Decode a message. Raises Malformed if its size is wrong."""
    shape = _SHAPES[kind]
    if len(data) != shape.size:
        raise Malformed(f"a {kind.__name__} has {len(data)} bytes instead of {shape.size}")
    return kind(*shape.unpack(data))
