"""The board of a group's ranks, in PyTorch's store.

The ranks do not agree by collectives, because a rank may be without this package (another image): its first
collective must not meet one of ours, and NCCL must not be used before the program has chosen its device.
"""

from __future__ import annotations

import time
from typing import Callable, List, Optional

import torch.distributed as dist

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1
# Seconds that a rank waits beyond rank 0's own limit, so that rank 0's answer is there first.
_GRACE = 5.0


def apart(store: dist.Store, prefix: str) -> dist.Store:
    """Return a view of the store with its own keys and connection: to wait there blocks nobody else."""
    clone = getattr(store, "clone", None)
    return dist.PrefixStore(prefix, store if clone is None else clone())


class StoreBoard:
    """A `client.port.Board` in a store that is the group's alone, and new each time the group is made."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store
        self._is_gone = False

    def post(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def read(self, key: str, seconds: float) -> Optional[bytes]:
        """Read as a `Board` does; None also if the store is gone with its rank, since nobody can write it."""
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

    def decide(
        self,
        question: str,
        rank: int,
        world: int,
        own: bytes,
        judge: "Callable[[List[Optional[bytes]]], bytes]",
        *,
        seconds: float,
        rounds: int = 1,
    ) -> bytes:
        """Return what rank 0 makes of all ranks' answers, the same on all ranks. `judge`: gets them by rank,
        None for those that did not come within `seconds`; its result must not be empty. `rounds`: how many
        times `seconds` rank 0 may need. If rank 0 is silent, all ranks learn that, rank 0 included."""
        self.post("{}/{}".format(question, rank), own)
        if rank == 0:
            until = time.monotonic() + seconds
            answers = [
                self.read("{}/{}".format(question, member), max(0.0, until - time.monotonic()))
                for member in range(world)
            ]
            self._settle(question, judge(answers))
        decision = self.read(question, rounds * seconds + _GRACE)
        return self._settle(question, b"rank 0 does not answer") if decision is None else decision

    def _settle(self, key: str, value: bytes) -> bytes:
        """Write a value unless there is one; return the one that all read there."""
        return bytes(self._store.compare_set(key, "", value))
