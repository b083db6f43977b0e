"""If nodes have several ranks, sums tensors within each node first, so that each byte leaves a node only
once.

- Step 1: a reduce-scatter within the node. Each rank then has the node's sum of one part of the tensor.
- Step 2: an all-reduce of each part by the reducers, among the ranks with the same index on all nodes.
- Step 3: an all-gather of the parts within the node.

The local backend decides the order of additions within a node, and also rounds half-precision types there.
Nevertheless, all ranks receive identical bits.
"""

from __future__ import annotations

import datetime
import os
import socket
from typing import Dict, List, Optional, Sequence

import torch
import torch.distributed as dist

from trainshed_reduction.variables import NODE_FIRST, REPLICA

_TIMEOUT = datetime.timedelta(minutes=30)


def node_first(backend: "Optional[type]") -> "Optional[type]":
    """Return the backend that sums within a node before the reducers are used; None = every rank uses the
    reducers directly. Local sums help because the ranks of a node share one link. `backend`: the group's
    native backend."""
    known = backend is not None and backend.__name__ in ("ProcessGroupNCCL", "ProcessGroupGloo")
    return backend if known and os.environ.get(NODE_FIRST) != "0" else None


def own_place() -> Dict[str, str]:
    """Return the location of this process: the node's name, the number of processes that the launcher
    (torchrun) started on the node, and the replica's name ("" if no service runs the program)."""
    replica = os.environ.get(REPLICA, "")
    return {
        "name": os.environ.get("GROUP_RANK") or replica or socket.gethostname(),
        "processes": os.environ.get("LOCAL_WORLD_SIZE", "1"),
        "replica": replica,
    }


class UnevenNodes(ValueError):
    """Nodes have different numbers of ranks. Local sums need a rank with the same index on each node."""


def nodes_of(places: "Sequence[Dict[str, str]]") -> Optional[List[List[int]]]:
    """Return the ranks of each node; None if each node has one rank, or if the nodes are unknown. `places`:
    results of `own_place`, by rank.

    Without a launcher such as torchrun, for example with mp.spawn, each replica counts as a node. Raises
    UnevenNodes if the numbers of ranks differ.
    """
    launched = any(place["processes"] not in ("", "1") for place in places)
    if not launched and not all(place["replica"] for place in places):
        return None
    nodes: Dict[str, List[int]] = {}
    for rank, place in enumerate(places):
        nodes.setdefault(place["name" if launched else "replica"], []).append(rank)
    sizes = {len(ranks) for ranks in nodes.values()}
    if len(sizes) > 1:
        raise UnevenNodes("nodes have different numbers of ranks: {}".format(sorted(sizes)))
    return list(nodes.values()) if sizes != {1} else None


class Node:
    """This rank's node. `number`: the node's index. `place`: this rank's index in the node; ranks with the
    same index on all nodes sum the same part. One thread calls `scatter` and another thread calls `gather`,
    each in the same order on all ranks of the node.

    With gloo, each of these threads has its own communicator, so that neither waits for the other. Operations
    of two NCCL communicators may deadlock on the GPUs if ranks start them in different orders. Therefore NCCL
    has only one communicator, and a tensor is scattered only after the previous tensor has been gathered
    (`is_one_at_a_time`)."""

    def __init__(self, backend: type, nodes: List[List[int]], rank: int, store: dist.Store) -> None:
        self.number = next(number for number, ranks in enumerate(nodes) if rank in ranks)
        self.place = nodes[self.number].index(rank)
        self.size = len(nodes[self.number])
        self._backend = backend
        self.is_one_at_a_time = backend.__name__ == "ProcessGroupNCCL"
        self._store = dist.PrefixStore(str(self.number), store)
        self._made: Dict[str, dist.Backend] = {}

    def pad(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the tensor, with zeros appended if necessary, so that its length is a multiple of the node's
        number of ranks."""
        rest = -flat.numel() % self.size
        return torch.cat([flat, flat.new_zeros(rest)]) if rest else flat

    def scatter(self, flat: torch.Tensor, average: bool) -> torch.Tensor:
        """Sum a tensor over the ranks of the node, and return this rank's part of the sum (or mean). GPU
        tensors use the current stream."""
        part = flat.new_empty(flat.numel() // self.size)
        options = dist.ReduceScatterOptions()
        options.reduceOp = dist.ReduceOp.SUM
        self._local("scatter")._reduce_scatter_base(part, flat, options).wait()
        return part.div_(self.size) if average else part

    def gather(self, flat: torch.Tensor, part: torch.Tensor) -> None:
        """Write the parts of all ranks of the node to `flat`. `part`: this rank's part."""
        self._local("gather")._allgather_base(flat, part).wait()

    def _local(self, use: str) -> dist.Backend:
        use = "both" if self.is_one_at_a_time else use
        if use not in self._made:
            limit: object = _TIMEOUT
            if self.is_one_at_a_time:  # NCCL.
                limit = self._backend.Options()
                limit._timeout = _TIMEOUT
            store = dist.PrefixStore(use, self._store)
            self._made[use] = self._backend(store, self.place, self.size, limit)
        return self._made[use]

    def shutdown(self) -> None:
        for made in self._made.values():
            made.shutdown()
        # Drop the last references to the local groups, so that the threads of gloo end. Until then, these
        # threads may hold tensors, even after `wait`. If one of the threads released a tensor while the
        # interpreter exits, the process would abort (pytorch/pytorch#179291).
        self._made.clear()
