"""Sums first within each node if nodes have several ranks, so that a byte leaves the node only once.

The steps are a reduce-scatter within the node, an all-reduce of each part by the reducers, among the ranks
with the same index on all nodes, and an all-gather within the node. The local backend decides the order of
additions within a node, and also rounds half types there. Still, all ranks get identical bits.
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
    """Return the backend that sums within a node before the reducers are used, because the ranks of a node
    share one link. None = every rank uses the reducers directly."""
    known = backend is not None and backend.__name__ in ("ProcessGroupNCCL", "ProcessGroupGloo")
    return backend if known and os.environ.get(NODE_FIRST) != "0" else None


def own_place() -> Dict[str, str]:
    """Return this process's location: the node's name, the number of processes that the launcher (torchrun)
    started there, and the name of the replica ("" without a service)."""
    replica = os.environ.get(REPLICA, "")
    return {
        "name": os.environ.get("GROUP_RANK") or replica or socket.gethostname(),
        "processes": os.environ.get("LOCAL_WORLD_SIZE", "1"),
        "replica": replica,
    }


class UnevenNodes(ValueError):
    """Nodes have different numbers of ranks, so a rank has no counterpart on some node."""


def nodes_of(places: "Sequence[Dict[str, str]]") -> Optional[List[List[int]]]:
    """Return the ranks of each node; None if each node has one rank, or if the nodes are unknown. `places`:
    results of `own_place`, by rank. Without a launcher such as torchrun, for example with mp.spawn, a replica
    counts as a node. Raises UnevenNodes."""
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
    same index on all nodes sum the same part. One thread calls `scatter` and another one `gather`, each in
    the same order on all ranks of the node.

    With gloo, each of these threads has its own communicator, so that neither waits for the other. Operations
    of two NCCL communicators may deadlock on the GPUs if ranks start them in different orders. Therefore NCCL
    has only one communicator, and a tensor is scattered only after the previous one has been gathered
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
        """Return the tensor, padded with zeros if necessary, so that all ranks get equal parts."""
        rest = -flat.numel() % self.size
        return torch.cat([flat, flat.new_zeros(rest)]) if rest else flat

    def scatter(self, flat: torch.Tensor, average: bool) -> torch.Tensor:
        """Return this rank's part of the sum (or mean) over the node; GPU tensors use the current stream."""
        part = flat.new_empty(flat.numel() // self.size)
        options = dist.ReduceScatterOptions()
        options.reduceOp = dist.ReduceOp.SUM
        self._local("scatter")._reduce_scatter_base(part, flat, options).wait()
        return part.div_(self.size) if average else part

    def gather(self, flat: torch.Tensor, part: torch.Tensor) -> None:
        """Collect the parts of the node's ranks in `flat`."""
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
        # Gloo's threads end when the last reference is dropped, and may hold tensors even after `wait`. A
        # thread that releases a tensor during the interpreter's exit aborts the process
        # (pytorch/pytorch#179291).
        self._made.clear()
