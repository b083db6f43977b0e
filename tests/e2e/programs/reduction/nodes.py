"""Two ranks on each of two nodes, as torchrun says it: they sum within a node first. One rank; says "ok" and
what it is."""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
os.environ.update(LOCAL_WORLD_SIZE="2", LOCAL_RANK=str(rank % 2), GROUP_RANK=str(rank // 2))

dist.init_process_group("gloo")
works = []
for count in (700_000, 700_001, 3):
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for operation in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            if count > 3 and (dtype.is_floating_point or operation == dist.ReduceOp.SUM):
                tensor = torch.full((count,), 10 * (rank + 1)).to(dtype)
                tensor[-1] = 4 * rank
                works.append((tensor, operation, dist.all_reduce(tensor, operation, async_op=True)))
for tensor, operation, work in works:
    work.wait()
    divisor = 1 if operation == dist.ReduceOp.SUM else 4
    assert tensor[0].item() == 100 / divisor and tensor[-2].item() == 100 / divisor
    assert tensor[-1].item() == 24 / divisor
    every = [torch.empty_like(tensor) for _ in range(4)]
    dist.all_gather(every, tensor)
    assert all(torch.equal(gathered, tensor) for gathered in every)
print("ok", type(dist.group.WORLD).__name__, flush=True)
