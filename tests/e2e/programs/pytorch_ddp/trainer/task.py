"""DistributedDataParallel over gloo, set up from the environment; resumes from its checkpoint if there is
one."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_data(size):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 4, generator=generator)
    y = x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]]) + 0.25
    return TensorDataset(x, y)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--checkpoint", required=True)
    args = parser.parse_args()

    dist.init_process_group(backend="gloo", init_method="env://")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world_size}, {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}")

    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss_fn = nn.MSELoss()
    dataset = make_data(1024)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

    start = 0
    if os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint)
        model.module.load_state_dict(saved["model"])
        start = saved["epoch"] + 1
        print(f"resumed at epoch {start}")
    dist.barrier()

    loss = torch.zeros(1)
    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        for features, target in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(features), target)
            loss.backward()
            optimizer.step()
        if rank == 0:
            os.makedirs(os.path.dirname(args.checkpoint), exist_ok=True)
            torch.save({"epoch": epoch, "model": model.module.state_dict()}, args.checkpoint)
        dist.barrier()

    weights = [p.detach().clone() for p in model.module.parameters()]
    for weight in weights:
        other = weight.clone()
        dist.broadcast(other, src=0)
        assert torch.equal(weight, other), "the replicas have drifted apart"
    print(f"loss {loss.item():.6f}, weights {[round(w, 2) for w in weights[0][0].tolist()]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
