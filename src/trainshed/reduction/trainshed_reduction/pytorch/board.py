"""The ranks of a group agree by its store: on how to begin, on whether all can, and later on lost reducers.

A store and not the group's own collectives, because a rank may be without this package (another image): its first
collective must not meet one of ours, and NCCL must not be used before the program has chosen its device.
"""

from __future__ import annotations

import time
from typing import Dict, List, Optional

import torch.distributed as dist

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1
# What a rank waits beyond rank 0's own limit, so that rank 0's answer is there first.
_GRACE = 5.0


class StoreBoard:
    """A `client.port.Board` in a store; `prefix` is the group's alone, and new each time that the group is made."""

    def __init__(self, store: dist.Store, prefix: str) -> None:
        # A clone has a connection of its own: who waits there is in nobody's way.
        clone = getattr(store, "clone", None)
        self._store = dist.PrefixStore(prefix, store if clone is None else clone())
        self._is_gone = False

    def post(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def read(self, key: str, seconds: float) -> Optional[bytes]:
        """None as well if the store has gone, with the rank that had it: nobody writes there any more."""
        # Polled: a store's own wait prints a warning when it is over, and cannot be interrupted.
        until = time.monotonic() + seconds
        pause = _FIRST_PAUSE
        while not self._has(key):
            if self._is_gone or time.monotonic() >= until:
                return None
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return bytes(self._store.get(key))

    def _has(self, key: str) -> bool:
        if not self._is_gone:
            try:
                return bool(self._store.check([key]))
            except RuntimeError:
                self._is_gone = True
        return False

    def settle(self, key: str, value: bytes) -> bytes:
        """Write it unless somebody has: what all read there. `value`: not empty."""
        return bytes(self._store.compare_set(key, "", value))


def answers(
    board: StoreBoard, question: str, world: int, seconds: float
) -> "List[Optional[bytes]]":
    """What each rank has posted as its answer within the time; None for those that have not."""
    until = time.monotonic() + seconds
    return [
        board.read("{}/{}".format(question, rank), max(0.0, until - time.monotonic()))
        for rank in range(world)
    ]


def verdict(board: StoreBoard, question: str, seconds: float) -> bytes:
    """What rank 0 made of the answers. If rank 0 says nothing in time, all ranks learn that, rank 0 included."""
    found = board.read(question, seconds + _GRACE)
    if found is None:
        found = board.settle(question, b"rank 0 does not answer")
    return found


def differences(ours: Dict[str, object], theirs: Dict[str, object]) -> List[str]:
    """Names of what must be alike on all ranks and is not."""
    return sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
