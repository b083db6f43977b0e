"""NumPy arrays without PyTorch, one rank."""

import os

import numpy as np

import trainshed_reduction

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
for name in ("float32", "float64", "float16", "int32", "int64"):
    array = np.arange(6, dtype=name).reshape(2, 3) + rank
    assert trainshed_reduction.allreduce(array) is array
    assert (array == np.arange(6).reshape(2, 3) * world + sum(range(world))).all(), array
mean = trainshed_reduction.allreduce(np.full(3, float(rank)), average=True, group="other")
assert (mean == sum(range(world)) / world).all(), mean
for wrong in (np.zeros(3, np.uint8), np.zeros((4, 4))[:, ::2], "text"):
    try:
        trainshed_reduction.allreduce(wrong)
    except (TypeError, ValueError) as error:
        print(error)
    else:
        raise AssertionError(wrong)
print("ok", flush=True)
