"""The messages between workers and reducers: fixed headers, little-endian, bounded before anything is
allocated.

A connection is one worker's to one thread of a reducer, a *lane*. It begins with a mutual proof that both
know the job's token, then carries frames, each a header and its payload:

    reducer → worker   CHALLENGE   reducer's nonce
    worker  → reducer  HELLO       worker's nonce and proof, the group, its generation, rank, what was
                                   received
    reducer → worker   ACCEPT      reducer's proof, how many threads it has; or REFUSE and why
    reducer → worker   START       all ranks are there: from which position the lane goes on, the group's
                                   generation
    worker  → reducer  DATA        a chunk of its own input
    worker  → reducer  FINAL       a chunk whose result it has already, sent again after a reducer was lost
    reducer → worker   RESULT      the sum of a chunk, to each rank that sent DATA for it
    reducer → worker   STATUS      what it waits for, at least once a second while it does; to the rank that
                                   it waits for, with the operation's ordinal: what the others have there
    either             ERROR       the group cannot go on; the text says which rank did what
    worker  → reducer  BYE         the worker leaves in good order

The *n*-th DATA or FINAL of a lane has position n since START's; every rank sends the same chunks in the same
order, and results come back in that order. Nothing is ever unpickled. Without TLS frames are not
authenticated one by one: who can write into a worker's TCP connection can change its numbers.
"""

import enum
import struct
from typing import Any, NamedTuple

from trainshed_reduction.variables import MOST_THREADS

VERSION = 4
MAX_CHUNK = 4 << 20
"""Bytes of payload that a DATA, FINAL or RESULT frame carries at most."""
MAX_TEXT = 1024
"""Bytes of UTF-8 in an ERROR, REFUSE or STATUS frame."""
MAX_WORLD = 4096
NONCE = 32
GROUP = 16


class Malformed(ValueError):
    """What came is no message of this protocol; the connection cannot be used any more."""


class Kind(enum.IntEnum):
    CHALLENGE = 1
    HELLO = 2
    ACCEPT = 3
    REFUSE = 4
    START = 5
    DATA = 6
    FINAL = 7
    RESULT = 8
    STATUS = 9
    ERROR = 10
    BYE = 11


class DType(enum.IntEnum):
    """Types of elements. Half types are added in fp32 and rounded once."""

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
_CHUNKS = frozenset((Kind.DATA, Kind.FINAL, Kind.RESULT))
LIMITS = {
    Kind.CHALLENGE: NONCE,
    Kind.HELLO: 512,
    Kind.ACCEPT: 1024,
    Kind.REFUSE: MAX_TEXT,
    Kind.START: 64,
    Kind.DATA: MAX_CHUNK,
    Kind.FINAL: MAX_CHUNK,
    Kind.RESULT: MAX_CHUNK,
    Kind.STATUS: MAX_TEXT,
    Kind.ERROR: MAX_TEXT,
    Kind.BYE: 0,
}
"""Bytes of payload that a frame has at most; the part in C is told of them."""


class Header(NamedTuple):
    """What stands before every payload. What a kind has no use for is 0."""

    kind: Kind
    dtype: int = 0
    reduction: int = 0
    rank: int = 0
    #: Index of the chunk in its operation.
    chunk: int = 0
    #: Its number among those of the group's reducers, from 0 on.
    operation: int = 0
    #: Elements of the whole operation.
    total: int = 0
    #: Elements of all its chunks but the last.
    step: int = 0
    #: Of the payload.
    nbytes: int = 0
    #: From a worker: how many results of this lane it has; from a reducer: how many all ranks have.
    acknowledged: int = 0
    #: Which of the program's all-reduces in the group it is part of, native ones counted, from 1 on; 0: of
    #: none.
    ordinal: int = 0


def pack(header: Header) -> bytes:
    return HEADER.pack(_MAGIC, *header)


def unpack(data: "bytes | bytearray | memoryview") -> Header:
    """The header in HEADER.size bytes. Raises Malformed: wrong magic, kind or type, a payload longer than its
    kind may have, or a chunk that does not fit into its operation."""
    magic, kind, *rest = HEADER.unpack(data)
    if magic != _MAGIC:
        raise Malformed("these are no frames of a Reduction Server, or of another version of it")
    if kind not in LIMITS:
        raise Malformed(f"there is no frame of kind {kind}")
    header = Header(Kind(kind), *rest)
    if header.nbytes > LIMITS[kind]:
        raise Malformed(
            f"a {header.kind.name} frame announces {header.nbytes} bytes; {LIMITS[kind]} are allowed"
        )
    if kind in _CHUNKS:
        _check_chunk(header)
    return header


def _check_chunk(header: Header) -> None:
    if header.dtype not in _ITEMSIZE:
        raise Malformed(f"there is no element type {header.dtype}")
    if header.reduction not in (Reduction.SUM, Reduction.AVERAGE):
        raise Malformed(f"there is no reduction {header.reduction}")
    rest = header.total - header.chunk * header.step
    size = min(header.step, rest) * DType(header.dtype).itemsize
    if not size == header.nbytes > 0:
        raise Malformed(
            f"chunk {header.chunk} of {header.step} elements with {header.nbytes} bytes is not in an "
            f"operation of {header.total}"
        )


_HELLO = struct.Struct("<H32s32s16sQIIIQ")
_ACCEPT = struct.Struct("<H32sI")
_START = struct.Struct("<QQ")


class Hello(NamedTuple):
    """A worker's first message on a lane."""

    nonce: bytes
    proof: bytes
    #: Digest of the group's name.
    group: bytes
    #: Grows when a reducer is dropped; 0 = whichever rank 0 brings.
    generation: int
    rank: int
    world: int
    #: To which thread of the reducer.
    lane: int
    #: Results that this rank has on this lane in this generation.
    received: int

    @property
    def body(self) -> bytes:
        """What the proofs of both sides are over, besides the nonces."""
        return _HELLO.pack(VERSION, b"", b"", *self[2:])


class Accept(NamedTuple):
    """A reducer's answer to `Hello`."""

    proof: bytes
    #: Of the reducer: so many lanes a worker has to it.
    threads: int


class Start(NamedTuple):
    """A reducer's word that all ranks are there."""

    #: At which the lane goes on: the least that any rank has received.
    position: int
    #: The group's.
    generation: int


def pack_hello(hello: Hello) -> bytes:
    return _HELLO.pack(VERSION, *hello)


def unpack_hello(data: bytes) -> Hello:
    """Raises Malformed."""
    hello = Hello(*_fields(_HELLO, data, "worker"))
    if not 0 < hello.world <= MAX_WORLD or hello.rank >= hello.world:
        raise Malformed(f"rank {hello.rank} of {hello.world} is none")
    return hello


def pack_accept(accept: Accept) -> bytes:
    return _ACCEPT.pack(VERSION, *accept)


def unpack_accept(data: bytes) -> Accept:
    """Raises Malformed."""
    accept = Accept(*_fields(_ACCEPT, data, "reducer"))
    if not 0 < accept.threads <= MOST_THREADS:
        raise Malformed(f"a reducer of {accept.threads} threads is none")
    return accept


def pack_start(start: Start) -> bytes:
    return _START.pack(*start)


def unpack_start(data: bytes) -> Start:
    """Raises Malformed."""
    if len(data) != _START.size:
        raise Malformed(f"a START of {len(data)} bytes should have {_START.size}")
    return Start(*_START.unpack(data))


def _fields(shape: struct.Struct, data: bytes, whose: str) -> "list[Any]":
    """After the version, which other versions have there as well."""
    version = int.from_bytes(data[:2], "little")
    if version != VERSION:
        raise Malformed(
            f"the {whose} speaks version {version} of the protocol and this side {VERSION}: install the same "
            "trainshed_reduction on both"
        )
    if len(data) != shape.size:
        raise Malformed(f"a message of {len(data)} bytes should have {shape.size}")
    return list(shape.unpack(data)[1:])
