"""A program that imports torch, and trains in processes that it spawns, each a rank of its own."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing


def train(index: int, count: int) -> None:
    rank = int(os.environ["RANK"]) * count + index
    dist.init_process_group("gloo", rank=rank, world_size=int(os.environ["WORLD_SIZE"]) * count)
    tensor = torch.ones(1 << 20)
    dist.all_reduce(tensor)
    assert tensor[0].item() == dist.get_world_size()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (2,), 2)
    sys.stdout.write("ok\n")
