"""Describes the state of a running group's chunks, and creates messages about chunks that do not match."""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Protocol

from trainshed_reduction.wire import DType, Header, Reduction


class ArrivedChunks(NamedTuple):
    """The chunks that have arrived for one position. `shape`: header of the first chunk. `since`: time at
    which the first chunk arrived. `ranks`: ranks of the chunks, in order of arrival."""

    shape: Header
    since: float
    ranks: List[int]


class MemberState(NamedTuple):
    """The progress of one rank. `position`: position of the rank's next chunk. `ordinal`: number of the
    latest operation that the rank has started."""

    position: int
    ordinal: int


class Progress(NamedTuple):
    """The progress of a group. `head`: the oldest position for which a chunk is missing. `operation`: number,
    from 0, of the latest operation with a finished chunk; -1 = no chunk is finished. `ordinal`: number of the
    same operation in messages to users, from 1. `partial_count`: number of positions for which some ranks
    have sent chunks, but not all."""

    head: int
    operation: int
    ordinal: int
    partial_count: int


class RunningRows(Protocol):
    """The sums of a running group. The class `native.reducing.NativeGroup` implements this protocol."""

    def progress(self) -> Progress: ...

    def chunks(self, position: int) -> Optional[ArrivedChunks]:
        """Return the chunks that have arrived for a position; None = no chunk has arrived."""
        ...

    def state(self, rank: int) -> MemberState: ...

    def leave(self, rank: int) -> None:
        """Remove a rank. The other ranks continue. The sums include the chunks that the rank has sent."""
        ...


def are_alike(shape: Header, other: Header) -> bool:
    """Return whether the chunks of two ranks for one position can be added. Their ordinals may differ: if
    callbacks issue native all-reduces, ranks may have counted different numbers of operations."""
    return _comparable(shape) == _comparable(other)


def _comparable(shape: Header) -> tuple[int, ...]:
    _, dtype, reduction, _, chunk, operation, total, step, *_ = shape
    return dtype, reduction, chunk, operation, total, step


def describe(shape: Header) -> str:
    """Return a description of the operation to which a chunk belongs. `shape`: the chunk's header."""
    reduction, dtype = Reduction(shape.reduction), DType(shape.dtype)
    return f"the {reduction.name} of {shape.total} elements of {dtype.name}"


def disagreement(rank: int, shape: Header, others: List[int], theirs: Header) -> str:
    """Return a message for users about a rank whose operation differs from that of other ranks. It describes
    both operations, because either operation may be wrong. If there are only two ranks, the message starts
    with the lower rank."""
    if others[1:] == [] and others[0] < rank:
        rank, shape, others, theirs = others[0], theirs, [rank], shape
    mine, other = describe(shape), describe(theirs)
    if shape.ordinal != theirs.ordinal:
        return (
            f"{have([rank])} {mine} as operation {shape.ordinal}, {have(others)} {other} as operation "
            f"{theirs.ordinal}: every rank must issue the same all-reduces in the same order"
        )
    if mine == other:
        mine, other = (
            f"{describe(row)}, chunk {row.chunk} of {row.step} elements each" for row in (shape, theirs)
        )
    return f"operation {shape.ordinal}: {have([rank])} {mine}, {have(others)} {other}"


def have(numbers: List[int]) -> str:
    return f"{format_ranks(numbers)} {'have' if len(numbers) > 1 else 'has'}"


def format_ranks(numbers: List[int]) -> str:
    """Return a text that lists at most eight ranks, and the number of further ranks."""
    shown = ", ".join(str(rank) for rank in sorted(numbers)[:8])
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return f"rank{'' if len(numbers) == 1 else 's'} {shown}{more}"
