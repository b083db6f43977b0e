"""The fallback of a group without reducers: a gloo group of its own over the host's memory, made when it is
needed."""

from __future__ import annotations

import datetime
from typing import Optional, Sequence

import torch
import torch.distributed as dist

from trainshed_reduction.client.port import Piece
from trainshed_reduction.native import library, sums
from trainshed_reduction.pytorch.tensors import tensor_of
from trainshed_reduction.wire import Reduction


class Fallback:
    """A `client.port.Native`. Every rank makes the same calls in the same order, of each object in one
    thread."""

    def __init__(
        self, store: dist.Store, prefix: str, rank: int, world: int, seconds: float
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._world = world
        self._seconds = seconds
        self._made: Optional[dist.ProcessGroupGloo] = None

    def finish(self, pieces: Sequence[Piece]) -> None:
        """The same bits as the reducers would have made of each piece. Raises RuntimeError (another rank is
        gone)."""
        for piece in pieces:
            raw = tensor_of(piece.data, torch.uint8)
            if piece.owner >= 0:
                options = dist.BroadcastOptions()
                options.rootRank = piece.owner
                self._gloo().broadcast([raw], options).wait()
            else:
                parts = [torch.empty_like(raw) for _ in range(self._world)]
                self._gloo().allgather([parts], [raw]).wait()
                _add(piece, parts)

    def allreduce(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """As gloo does it: alike on all ranks, in no order of ranks. `tensor`: of the CPU, in place."""
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM
        self._gloo().allreduce([tensor], options).wait()
        if reduction is Reduction.AVERAGE:
            tensor.div_(self._world)

    def largest(self, number: int) -> int:
        """Of what the ranks give."""
        value = torch.tensor([number], dtype=torch.int64)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self._gloo().allreduce([value], options).wait()
        return int(value.item())

    def _gloo(self) -> dist.ProcessGroupGloo:
        if self._made is None:
            self._made = dist.ProcessGroupGloo(
                dist.PrefixStore(self._prefix, self._store),
                self._rank,
                self._world,
                datetime.timedelta(seconds=self._seconds),
            )
        return self._made


def _add(piece: Piece, parts: "list[torch.Tensor]") -> None:
    found = library.load()
    assert found is not None, "there were reducers"
    payloads = [memoryview(part.numpy()) for part in parts]
    sums.add_up(found, piece.dtype, piece.reduction, payloads, piece.data)
