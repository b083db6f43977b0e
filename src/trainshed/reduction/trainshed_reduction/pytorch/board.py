"""Where the ranks of a group leave each other notes: PyTorch's store.

Not the group's own collectives, because a rank may be without this package (another image): its first
collective must not meet one of ours, and NCCL must not be used before the program has chosen its device.
"""

from __future__ import annotations

import time
from typing import Callable, List, Optional

import torch.distributed as dist

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1
# What a rank waits beyond rank 0's own limit, so that rank 0's answer is there first.
_GRACE = 5.0


def apart(store: dist.Store, prefix: str) -> dist.Store:
    """Keys of their own in that store, by a connection of its own: who waits there is in nobody's way."""
    clone = getattr(store, "clone", None)
    return dist.PrefixStore(prefix, store if clone is None else clone())


class StoreBoard:
    """A `client.port.Board` in a store, which is the group's alone, and new each time that the group is
    made."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store
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
        """What rank 0 makes of all ranks' answers, the same on all ranks. `judge`: gets them by rank, None of
        those that did not come within the time, and returns what is not empty. `rounds`: how often that time
        rank 0 may need. If rank 0 says nothing, all ranks learn that, rank 0 included."""
        self.post("{}/{}".format(question, rank), own)
        if rank == 0:
            until = time.monotonic() + seconds
            answers = [
                self.read("{}/{}".format(question, each), max(0.0, until - time.monotonic()))
                for each in range(world)
            ]
            self._settle(question, judge(answers))
        decision = self.read(question, rounds * seconds + _GRACE)
        return self._settle(question, b"rank 0 does not answer") if decision is None else decision

    def _settle(self, key: str, value: bytes) -> bytes:
        """Write it unless somebody has: what all read there."""
        return bytes(self._store.compare_set(key, "", value))
