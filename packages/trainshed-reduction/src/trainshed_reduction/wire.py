"""The messages between workers and reducers: fixed headers, little-endian, bounded before anything is
allocated.

A connection between one worker and one thread of a reducer is a *lane*. It begins with a mutual proof that
both know the job's token, then carries frames, each a header and its payload:

    reducer → worker   CHALLENGE   reducer's nonce
    worker  → reducer  HELLO       worker's proof, the group, its generation, rank, what was received
    reducer → worker   ACCEPT      reducer's proof, how many threads it has
    reducer → worker   START       all ranks are there: from which position the lane goes on
    worker  → reducer  DATA        a chunk of its own input
    worker  → reducer  FINAL       a chunk whose result it has already, sent again after a reducer was lost
    reducer → worker   RESULT      the sum of a chunk, to each rank that sent DATA for it
    reducer → worker   STATUS      what it waits for, at least once a second while it does
    either             ERROR       why this worker cannot take part, or the group cannot go on: which rank
                                   did what
    worker  → reducer  BYE         the worker leaves in good order

The *n*-th DATA or FINAL of a lane has position n since START's; every rank sends the same chunks in the same
order, and results arrive in that order. No data is unpickled. Single frames are not authenticated: an
attacker who can write into a worker's TCP connection can change its numbers."""

import enum
import struct
from typing import Dict, NamedTuple, Type, TypeVar

VERSION = 6
MAX_CHUNK = 4 << 20
"""Maximum payload bytes of a DATA, FINAL or RESULT frame: CHUNK in frames.h."""
MAX_TEXT = 1024
"""Maximum payload bytes of other frames: TEXT in frames.h."""
MAX_WORLD = 4096
NONCE = 32
GROUP = 16

STRANGE = (
    "what arrived is no frame due now: the peer is not a Reduction Server, or has another version"
)


class Malformed(ValueError):
    """The data is not a message of this protocol. The connection is unusable."""


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
    """Element types. Half types are added in fp32 and rounded once."""

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
    """SUM, or AVERAGE: the sum divided by the number of ranks before it is rounded. Integers are only
    summed."""

    SUM = 0
    AVERAGE = 1


HEADER = struct.Struct("<4sBBBxH2xIQQIIQQ")
"""The magic and the fields of `Header`, in their order."""
_MAGIC = b"TSR2"


class Header(NamedTuple):
    """The header of every frame. Fields that a kind does not use are 0."""

    kind: Kind
    dtype: int = 0
    reduction: int = 0
    rank: int = 0
    #: Index of the chunk in its operation.
    chunk: int = 0
    #: Number of the operation among those that the group's reducers do, from 0 on.
    operation: int = 0
    #: Elements of the whole operation.
    total: int = 0
    #: Elements of each of its chunks but the last.
    step: int = 0
    #: Bytes of the payload.
    nbytes: int = 0
    #: From a worker: how many results of this lane it has; from a reducer: how many all ranks have.
    acknowledged: int = 0
    #: Number of the operation as messages name it, from 1 on; 0: none.
    ordinal: int = 0


def pack(header: Header) -> bytes:
    return HEADER.pack(_MAGIC, *header)


def unpack(data: "bytes | bytearray | memoryview") -> Header:
    """Return the header in HEADER.size bytes. Raises Malformed: wrong magic or kind. The part in C has
    checked before that a chunk fits its operation."""
    magic, kind, *rest = HEADER.unpack(data)
    if magic != _MAGIC or kind not in _KINDS:
        raise Malformed(STRANGE)
    return Header(Kind(kind), *rest)


class Hello(NamedTuple):
    """A worker's first message on a lane."""

    #: Digest of the group's name.
    group: bytes
    #: Increases with each restart of the ranks; chosen by rank 0.
    generation: int
    rank: int
    world: int
    #: Index of the reducer's thread.
    lane: int = 0
    #: Results that this rank has on this lane in this generation.
    received: int = 0


class Accept(NamedTuple):
    """A reducer's answer to `Hello`."""

    #: Number of the reducer's threads. A worker has a lane to each.
    threads: int


class Start(NamedTuple):
    """A reducer's message that all ranks are connected."""

    #: The lane's next position: the minimum of all ranks' received positions.
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
    """Raises Malformed."""
    shape = _SHAPES[kind]
    if len(data) != shape.size:
        raise Malformed(f"a {kind.__name__} of {len(data)} bytes should have {shape.size}")
    return kind(*shape.unpack(data))
