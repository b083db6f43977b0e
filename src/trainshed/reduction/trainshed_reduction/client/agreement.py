"""A rank's membership of its group, and what the ranks tell each other over the group's board: the
generation, and what to do when reducers are lost.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Callable, List, NamedTuple, Optional, Tuple

from trainshed_reduction.client.ledger import Share
from trainshed_reduction.client.operations import OperationQueue
from trainshed_reduction.client.port import Board, Native, NativeOperations, ReductionFailed
from trainshed_reduction.reports import Reports
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import Hello

_SLICE = 0.5
"""Seconds after which a rank that waits looks whether it still should."""
_LOG = logging.getLogger(__name__)


class GenerationStart(NamedTuple):
    """What rank 0 decides. `lost`: indexes of reducers that the service had given up before."""

    generation: int
    lost: Tuple[int, ...]


class OwnReducerAddress(NamedTuple):
    """Where a worker's own reducer listens (HOST:PORT), or, without an address, what keeps the worker from
    having one."""

    address: str
    lack: str = ""


class Post(NamedTuple):
    """A rank's, at the end of an epoch. `lost`: lanes that it cannot reach any more."""

    lost: Tuple[int, ...]
    share: Share


class Agreement:
    """What one rank tells and hears over the group's board."""

    def __init__(
        self, board: Board, prefix: str, rank: int, world: int, closing: "Callable[[], bool]"
    ) -> None:
        self._board = board
        #: Of the keys, the group's own.
        self._prefix = prefix
        self._rank = rank
        self._world = world
        #: Whether waiting is of no use any more.
        self._closing = closing

    def begin(self, attempt: int, lost: "Tuple[int, ...]", seconds: float) -> GenerationStart:
        """Raises ReductionFailed: rank 0 said nothing in time."""
        if self._rank == 0:
            beginning = GenerationStart(new_generation(attempt), lost)
            self._post("generation", beginning)
            return beginning
        told = self._read("generation", seconds)
        if told is None:
            raise ReductionFailed("rank 0 has not begun this group within {:g} s".format(seconds))
        generation, indexes = json.loads(told)
        return GenerationStart(int(generation), tuple(int(index) for index in indexes))

    def publish_place(self, place: OwnReducerAddress) -> None:
        """Of this worker's own reducer."""
        self._post("beside/{}".format(self._rank), place)

    def places(self, seconds: float) -> List[OwnReducerAddress]:
        """All ranks' own reducers, by rank. Raises ReductionFailed."""
        deadline = time.monotonic() + seconds
        found: List[OwnReducerAddress] = []
        for rank in range(self._world):
            told = self._read("beside/{}".format(rank), deadline - time.monotonic())
            if told is None:
                raise ReductionFailed(
                    "rank {} has not said within {:g} s where its own reducer listens".format(
                        rank, seconds
                    )
                )
            address, lack = json.loads(told)
            found.append(OwnReducerAddress(str(address), str(lack)))
        return found

    def is_called_for(self, generation: int, epoch: int) -> bool:
        """Whether some rank wants to begin this epoch; not if the board cannot be read, which is no reason to
        fail for a rank that may need nothing of it."""
        try:
            return self._board.read(self._full(_call(generation, epoch)), 0) is not None
        except Exception as error:
            # A board is whatever store the ranks have; what it raises is its own.
            _LOG.debug("the ranks' board cannot be read: %s", error)
            return False

    def exchange(self, generation: int, epoch: int, own: Post, seconds: float) -> List[Post]:
        """All ranks' posts for this epoch, by rank. Raises ReductionFailed, which names who has said
        nothing."""
        self._post(_call(generation, epoch), self._world)
        self._post(
            _key(generation, epoch, self._rank),
            [list(own.lost), list(own.share.received), own.share.issued],
        )
        deadline = time.monotonic() + seconds
        posts: List[Post] = []
        for rank in range(self._world):
            if rank == self._rank:
                posts.append(own)
                continue
            told = self._read(_key(generation, epoch, rank), deadline - time.monotonic())
            if told is None:
                raise ReductionFailed(
                    "a reducer was lost, and rank {} has not said within {:g} s what it has received".format(
                        rank, seconds
                    )
                )
            lost, received, issued = json.loads(told)
            posts.append(Post(tuple(lost), Share(received, int(issued))))
        return posts

    def _full(self, key: str) -> str:
        return "{}/{}".format(self._prefix, key)

    def _post(self, key: str, value: object) -> None:
        try:
            self._board.post(self._full(key), json.dumps(value).encode())
        except Exception as error:
            # As in `is_called_for`; so below.
            raise _unusable(error) from error

    def _read(self, key: str, seconds: float) -> Optional[bytes]:
        """In slices, so that a group can be closed while it waits."""
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            try:
                told = self._board.read(self._full(key), max(0.0, min(_SLICE, left)))
            except Exception as error:
                raise _unusable(error) from error
            if told is not None or left <= 0 or self._closing():
                return told


def _key(generation: int, epoch: int, rank: int) -> str:
    return "{:x}/{}/{}".format(generation, epoch, rank)


def new_generation(attempt: int) -> int:
    """Greater than all that earlier attempts had, and than earlier groups of this one."""
    return (attempt << 48) | int(time.time() * 1000) & (2**48 - 1)


def _call(generation: int, epoch: int) -> str:
    return "{:x}/{}/called".format(generation, epoch)


def _unusable(error: Exception) -> ReductionFailed:
    return ReductionFailed(
        "the ranks cannot agree, for the store that they meet at fails: {!r}".format(error)
    )


class Membership(NamedTuple):
    """What all parts of a rank's side work with, from the first connection to the last."""

    settings: Settings
    operations: OperationQueue
    #: Which rank of which group, without a generation.
    hello: Hello
    #: None: the group has no board. A reducer that is lost for good ends it, and workers reduce nothing
    #: themselves.
    agreement: Optional[Agreement]
    #: How to finish when the last reducer is lost; None: the group cannot. `finish` is called in the
    #: communicator's thread, and no `issue` returns until it has.
    native: Optional[Native]
    #: What the program sums without the communicator, to tell ranks that disagree on that; None: nothing.
    apart: Optional[NativeOperations]
    #: None: nobody reads them.
    reports: Optional[Reports]
    #: Takes a line.
    log: Callable[[str], None]
