"""Finishes sums when no reducer is left, in a separate gloo group over host memory, made when needed."""

from __future__ import annotations

import datetime
import functools
from typing import Sequence

import torch
import torch.distributed as dist

from trainshed_reduction.client.port import Piece
from trainshed_reduction.native import library, sums


class Fallback:
    """A `client.port.Native`. Every rank must make the same calls in the same order, and call each object in
    one thread only."""

    def __init__(self, store: dist.Store, rank: int, world: int, seconds: float) -> None:
        """`store`: this object's alone on each rank."""
        self._store = store
        self._rank = rank
        self._world = world
        self._limit = datetime.timedelta(seconds=seconds)

    def finish(self, pieces: Sequence[Piece]) -> None:
        """Sum each piece, to the same bits as the reducers would have made of it. Raises RuntimeError
        (another rank is gone)."""
        native = library.load()
        assert native is not None, "there were reducers"
        for piece in pieces:
            raw = torch.frombuffer(piece.data, dtype=torch.uint8)
            if piece.owner >= 0:
                options = dist.BroadcastOptions()
                options.rootRank = piece.owner
                self._gloo.broadcast([raw], options).wait()
            else:
                parts = [memoryview(part.numpy()) for part in self._gather(raw)]
                sums.add_up(native, piece.dtype, piece.reduction, parts, piece.data)

    def largest(self, number: int) -> int:
        """Return the largest of the numbers that the ranks give."""
        return max(int(value.item()) for value in self._gather(torch.tensor([number])))

    def _gather(self, own: torch.Tensor) -> "list[torch.Tensor]":
        parts = [torch.empty_like(own) for _ in range(self._world)]
        self._gloo.allgather([parts], [own]).wait()
        return parts

    @functools.cached_property
    def _gloo(self) -> dist.ProcessGroupGloo:
        return dist.ProcessGroupGloo(self._store, self._rank, self._world, self._limit)
