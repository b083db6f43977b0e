"""Two ranks on each of two nodes, as set by torchrun: they sum within a node first. One rank; prints "ok" and
its role.
"""

import atexit
import contextlib
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
os.environ.update(LOCAL_WORLD_SIZE="2", LOCAL_RANK=str(rank % 2), GROUP_RANK=str(rank // 2))


def gloos_threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # It has ended since.
            names.append(Path(f"/proc/self/task/{task}/comm").read_text())
    return len([name for name in names if "gloo" in name])


dist.init_process_group("gloo")
while (own := gloos_threads()) < 3:  # They have this name in their first operation.
    time.sleep(0.01)
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
    work.get_future().wait()
    divisor = 1 if operation == dist.ReduceOp.SUM else 4
    assert tensor[0].item() == 100 / divisor and tensor[-2].item() == 100 / divisor
    assert tensor[-1].item() == 24 / divisor
    every = [torch.empty_like(tensor) for _ in range(4)]
    dist.all_gather(every, tensor)
    assert all(torch.equal(gathered, tensor) for gathered in every)

# Resources closed at the exit of a program that does not destroy its group; the rest belongs to the group.
name = type(dist.group.WORLD).__name__
atexit._run_exitfuncs()
while gloos_threads() != own:  # A joined thread stays listed for a moment.
    time.sleep(0.01)
assert threading.enumerate() == [threading.main_thread()]
dist.destroy_process_group()
while gloos_threads():
    time.sleep(0.01)
print("ok", name, flush=True)
