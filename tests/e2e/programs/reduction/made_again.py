"""A program that ends its group of processes and could make another at the same address: nothing of the old
one is left."""

import gc
import os
import socket

import torch
import torch.distributed as dist

gc.disable()  # What is left to it goes some time, or never.
dist.init_process_group("gloo")
tensor = torch.ones(1 << 20)
dist.all_reduce(tensor)
assert tensor[0].item() == dist.get_world_size()
dist.barrier()
dist.destroy_process_group()
if os.environ["RANK"] == "0":
    with socket.socket() as probe:
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        print("there" if probe.connect_ex(address) == 0 else "gone")
