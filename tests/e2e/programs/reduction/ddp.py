"""Usual DDP training with gloo, once for each mode of DDP: prints losses."""

import contextlib
import hashlib
import os

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

STEPS = 3


class Model(torch.nn.Module):
    """About 2 MB of parameters, some of which are skipped at random."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 512)
        self.often = torch.nn.Linear(512, 512)
        self.last = torch.nn.Linear(512, 8)
        self.skips = False

    def forward(self, rows):
        rows = torch.relu(self.first(rows))
        if not self.skips:
            rows = torch.relu(self.often(rows))
        return self.last(rows)


def train(name, hook=None, accumulate=False, skips=False, **options):
    torch.manual_seed(1)
    bare = Model()
    bare.skips = skips
    model = DistributedDataParallel(bare, bucket_cap_mb=1, **options)
    if hook is not None:
        model.register_comm_hook(*hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    losses = []
    for step in range(STEPS):
        rows = torch.randn(16, 64, generator=generator)
        labels = torch.randint(8, (16,), generator=generator)
        waits = accumulate and step % 2 == 0
        with model.no_sync() if waits else contextlib.nullcontext():
            loss = torch.nn.functional.cross_entropy(model(rows), labels)
            loss.backward()
        if not waits:
            optimizer.step()
            optimizer.zero_grad()
        dist.all_reduce(loss.detach_())
        losses.append(loss.item() / dist.get_world_size())
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, hashlib.sha256(flat.numpy().tobytes()).hexdigest())
    assert len(set(digests)) == 1, f"{name}: parameters differ"
    if dist.get_rank() == 0:
        print(name, " ".join(f"{loss:.5f}" for loss in losses), flush=True)


def train_all():
    train("plain")
    train("static graph", static_graph=True)
    train("unused parameters", find_unused_parameters=True, skips=True)
    train("no_sync", accumulate=True)
    train("bucket views", gradient_as_bucket_view=True)
    train("fp16 hook", hook=(None, default_hooks.fp16_compress_hook))


def main():
    dist.init_process_group("gloo")
    print(type(dist.group.WORLD).__name__, flush=True)
    train_all()
    dist.destroy_process_group()
    # The same training again without reducers.
    c10d._new_process_group_helper = c10d._new_process_group_helper.__wrapped__
    dist.init_process_group(
        "gloo",
        init_method=os.environ["TEST_STORE"],
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    print(type(dist.group.WORLD).__name__, flush=True)
    train_all()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
