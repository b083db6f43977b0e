"""One all-reduce, which reducers run if they can be used. One rank. TEST_AUTOLOAD: the ranks with the
plug-in.
"""

import os

if os.environ["RANK"] not in os.environ["TEST_AUTOLOAD"]:
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.full((700_000,), float(dist.get_rank() + 1))
dist.all_reduce(tensor)
assert tensor.unique().tolist() == [sum(range(dist.get_world_size() + 1))]
dist.destroy_process_group()
print("ok", flush=True)
