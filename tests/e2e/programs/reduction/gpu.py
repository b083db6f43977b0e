"""Sums of GPU tensors: several ranks on one GPU, over gloo, because NCCL needs one GPU per rank. One rank;
prints "ok".
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def inputs(dtype, count):
    return [
        (100 * torch.randn(count, generator=torch.Generator().manual_seed(rank))).to(dtype)
        for rank in range(WORLD)
    ]


def check_exact():
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64):
        for count in (1_500_000, 5_000_003):
            tensors = inputs(dtype, count)
            half = dtype in (torch.float16, torch.bfloat16)
            total = tensors[0].to(torch.float32 if half else dtype, copy=True)
            for tensor in tensors[1:]:
                total += tensor
            mine = tensors[RANK].cuda()
            dist.all_reduce(mine)
            assert torch.equal(mine.cpu(), total.to(dtype)), (dtype, count)


def check_order():
    """The sum includes earlier work of the stream, and later work sees the sum. Several sums are active."""
    tensors = [torch.zeros(3_000_000, device="cuda") for _ in range(12)]
    works = []
    for number, tensor in enumerate(tensors):
        torch.cuda._sleep(2_000_000)
        tensor.fill_(number + RANK)
        works.append(dist.all_reduce(tensor, async_op=True))
    for number, (tensor, work) in enumerate(zip(tensors, works, strict=True)):
        work.wait()
        doubled = 2 * tensor
        wanted = 2 * (WORLD * number + sum(range(WORLD)))
        assert doubled.unique().tolist() == [wanted]


def check_futures():
    tensor = torch.full((3_000_000,), float(RANK), device="cuda")
    future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: 2 * done.value()[0])
    assert future.wait().unique().tolist() == [2 * sum(range(WORLD))]


def check_overlap():
    """Computation continues during a sum."""
    tensor = torch.ones(16_000_000, device="cuda")
    factor = torch.ones(1024, 1024, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    began = time.monotonic()
    work = dist.all_reduce(tensor, async_op=True)
    issued = time.monotonic() - began
    for _ in range(10):
        factor @ factor
    work.wait()
    torch.cuda.synchronize()
    whole = time.monotonic() - began
    assert issued < whole / 2, (issued, whole)
    assert tensor.unique().tolist() == [WORLD * WORLD]


def check_ddp():
    torch.manual_seed(1)
    bare = torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 256))
    model = DistributedDataParallel(bare.cuda(), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        loss = model(torch.randn(8, 256, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    every = [torch.empty_like(flat) for _ in range(WORLD)]
    dist.all_gather(every, flat)
    assert all(torch.equal(gradient, flat) for gradient in every)


if not torch.cuda.is_available():
    sys.exit(77)
dist.init_process_group("gloo")
assert type(dist.group.WORLD).__name__ == "ReducingGroup"
for name, check in list(globals().items()):
    if name.startswith("check_"):
        check()
        print("ok", name[6:], flush=True)
dist.destroy_process_group()
