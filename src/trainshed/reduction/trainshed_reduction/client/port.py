"""What the parts of a worker's side have in common, and the ports to what its program brings."""

from typing import NamedTuple, Optional, Protocol, Sequence

from trainshed_reduction.wire import DType, Reduction


class ReductionFailed(RuntimeError):
    """An all-reduce that cannot be finished: the message says which rank or reducer is to blame, and what to
    do."""


class Board(Protocol):
    """Where the ranks of a group leave each other notes, by which they agree when a reducer is lost. Every
    key is written once by one rank, or by several with the same value. PyTorch's store is one. Either method
    may raise whatever it likes when nobody can be reached there any more."""

    def post(self, key: str, value: bytes) -> None: ...

    def read(self, key: str, seconds: float) -> Optional[bytes]:
        """Waits for it; None if nobody has written it in time."""
        ...


class Piece(NamedTuple):
    """What is left of an operation when no reducer is: a part of a tensor that is still to be summed.

    `data`: writable bytes; `owner`: -1: every rank has its own input there; else the rank
    whose bytes are already the result, for all others to copy."""

    data: memoryview
    dtype: DType
    reduction: Reduction
    owner: int


class NativeOperations(Protocol):
    """What a rank's program leaves to its native backend, of the operations of the same group."""

    def text(self, ordinal: int, *, is_passed: bool) -> str:
        """What the operation was, for people; "" if it was not left to it, has ended, or has only begun. From
        any thread. `is_passed`: the reducers have done one of that number for this rank, and not the one that
        others mean: then an earlier one that has surely not ended, if there is one, which they have not
        issued."""
        ...


class Native(Protocol):
    """How a group finishes without reducers: called once by every rank, with the same pieces in the same
    order."""

    def finish(self, pieces: Sequence[Piece]) -> None: ...
