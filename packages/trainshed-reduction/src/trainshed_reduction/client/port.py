"""The ports by which a worker's side uses what its program brings, and its one kind of failure."""

from typing import NamedTuple, Optional, Protocol, Sequence

from trainshed_reduction.wire import DType, Reduction


class ReductionFailed(RuntimeError):
    """An all-reduce cannot be finished; the text says which rank or reducer is to blame, and what to do."""


class Board(Protocol):
    """A store through which the ranks of a group agree, as when a reducer is lost. Every key is written once
    by one rank, or by several with the same value. PyTorch's store is one. Either method may raise any
    Exception when the store cannot be reached any more."""

    def post(self, key: str, value: bytes) -> None: ...

    def read(self, key: str, seconds: float) -> Optional[bytes]:
        """Wait for a key's value; None if nobody has written it in time."""
        ...


class Piece(NamedTuple):
    """A part of a tensor that is still to be summed when no reducer is left.

    `data`: writable bytes. `owner`: the rank whose bytes are already the result, for all others to copy; -1:
    every rank has its own input there."""

    data: memoryview
    dtype: DType
    reduction: Reduction
    owner: int


class Native(Protocol):
    """Finishes a group's operations without reducers: called once by every rank, with the same pieces in the
    same order."""

    def finish(self, pieces: Sequence[Piece]) -> None: ...
