"""A row: the chunks that the ranks have sent for one position of a group, and their sum. Pure."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional

from trainshed_reduction.arithmetic import Kernels
from trainshed_reduction.reducer.buffers import Block, Buffers
from trainshed_reduction.wire import DType, Header, Reduction


class Shape(NamedTuple):
    """What the ranks' headers for one position must agree in, but for the ordinal: where callbacks issue
    native all-reduces, the ranks may have come by different numbers of those."""

    ordinal: int
    operation: int
    chunk: int
    total: int
    step: int
    dtype: int
    reduction: int

    @staticmethod
    def of(header: Header) -> "Shape":
        return Shape(
            header.ordinal,
            header.operation,
            header.chunk,
            header.total,
            header.step,
            header.dtype,
            header.reduction,
        )

    def agrees(self, other: "Shape") -> bool:
        return self[1:] == other[1:]

    @property
    def text(self) -> str:
        """What a rank has, for people."""
        return "the {} of {} elements of {}".format(
            Reduction(self.reduction).name, self.total, DType(self.dtype).name
        )


class Seen(NamedTuple):
    """What has come for one position. `shape`: of the first chunk, which came at `since`; `arrived`: ranks,
    in the order in which they came."""

    shape: Shape
    since: float
    arrived: List[int]


class Progress(NamedTuple):
    """`head`: the oldest position that not all have sent; `operation`, `ordinal`: of the chunk that was
    finished last, -1: none was; `begun`: positions that some have sent and others not."""

    head: int
    operation: int
    ordinal: int
    begun: int


class Row:
    """Adds each rank's chunk as soon as those of all lower ranks are in, so that the sum does not depend on
    who comes first. Times are seconds of whatever clock the caller has."""

    __slots__ = (
        "_accumulator",
        "_buffers",
        "_dtype",
        "_early",
        "_final",
        "_first",
        "_kernels",
        "_next",
        "arrived",
        "latest",
        "shape",
        "since",
        "takers",
    )

    def __init__(self, shape: Shape, kernels: Kernels, buffers: Buffers, now: float) -> None:
        self.shape = shape
        self.since = now
        self.latest = now
        """When the last chunk came."""
        self.arrived: List[int] = []
        """Ranks, in the order in which they came."""
        self.takers: List[int] = []
        """Those of them that the result is to go to."""
        self._dtype = DType(shape.dtype)
        self._kernels = kernels
        self._buffers = buffers
        self._next = 0
        self._early: Dict[int, Block] = {}
        self._first: Optional[Block] = None
        self._accumulator: Optional[Block] = None
        self._final: Optional[Block] = None

    def add(self, rank: int, payload: Block, is_final: bool, now: float) -> None:
        """`payload` is the row's from now on. `is_final`: it is the result already, and no rank's own chunk
        matters."""
        self.arrived.append(rank)
        self.latest = now
        if self._final is not None:
            return
        if is_final:
            self._final = payload
            self._accumulator = self._first = None
            self._early.clear()
            return
        self._early[rank] = payload
        while self._next in self._early:
            self._accumulate(self._early.pop(self._next))
            self._next += 1

    def _accumulate(self, payload: Block) -> None:
        if self._accumulator is not None:
            self._kernels.add(self._dtype, self._accumulator.data, payload.data)
        elif self._dtype.itemsize > 2:
            self._first = self._accumulator = payload
        else:
            self._first = payload
            self._accumulator = self._buffers.take(2 * len(payload.data))
            self._kernels.widen(self._dtype, self._accumulator.data, payload.data)

    def result(self, world: int) -> Optional[Block]:
        """To be called once; None if a rank's chunk is missing and nobody has brought the result."""
        if self._final is not None:
            return self._final
        if self._next < world or self._first is None or self._accumulator is None:
            return None
        self._kernels.finish(
            self._dtype,
            Reduction(self.shape.reduction),
            world,
            self._accumulator.data,
            self._first.data,
        )
        return self._first


def disagreement(rank: int, shape: Shape, others: "List[int]", theirs: Shape) -> str:
    """Says what one rank has and what the others have, each in full: of two nobody can tell who is wrong. Of
    two the lower one is named first."""
    if others[1:] == [] and others[0] < rank:
        rank, shape, others, theirs = others[0], theirs, [rank], shape
    has = "have" if len(others) > 1 else "has"
    if shape.ordinal != theirs.ordinal:
        return (
            "{} has {} as operation {}, {} {} {} as operation {}: every rank must issue the same "
            "all-reduces in the same "
            "order".format(
                ranks([rank]),
                shape.text,
                shape.ordinal,
                ranks(others),
                has,
                theirs.text,
                theirs.ordinal,
            )
        )
    mine, other = shape.text, theirs.text
    if mine == other:
        mine, other = (
            "{}, chunk {} of {} elements each".format(each.text, each.chunk, each.step)
            for each in (shape, theirs)
        )
    return "operation {}: {} has {}, {} {} {}".format(
        shape.ordinal, ranks([rank]), mine, ranks(others), has, other
    )


def ranks(numbers: "List[int]") -> str:
    """Of many only the first few."""
    shown = ", ".join(str(each) for each in sorted(numbers)[:8])
    more = " and {} more".format(len(numbers) - 8) if len(numbers) > 8 else ""
    return "rank{} {}{}".format("" if len(numbers) == 1 else "s", shown, more)
