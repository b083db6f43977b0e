"""Sums in a row, alone and two at a time, as sum and as mean: right on all ranks, whoever makes them. One
rank; says "half" in the middle, "ok" at the end.

All values are whole and small, so that no order of addition rounds.
"""

import os

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
OPERATIONS = 120
WHOLE = sum(range(WORLD))


def alone(number):
    average = number % 3 == 0
    tensor = torch.full((400_000,), 12.0 * (RANK + number))
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG if average else dist.ReduceOp.SUM)
    total = 12.0 * (WHOLE + WORLD * number)
    assert tensor.unique().tolist() == [total / WORLD if average else total], number


def together(number):
    tensors = [torch.full((50_000,), float(RANK + number + each)) for each in range(2)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future().then(lambda done: 2 * done.value()[0]) for work in works]
    for each, future in enumerate(futures):
        assert future.wait().unique().tolist() == [2.0 * (WHOLE + WORLD * (number + each))], number


def main():
    dist.init_process_group("gloo")
    for number in range(OPERATIONS):
        (together if number % 4 == 1 else alone)(number)
        if number == OPERATIONS // 2 and RANK == 0:
            print("half", flush=True)
    dist.destroy_process_group()
    print("ok", flush=True)


if __name__ == "__main__":
    main()
