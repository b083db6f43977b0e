"""DistributedDataParallel with 12 MB of gradients, set up from the environment; prints its loss at every
step."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=1000)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="env://")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world_size}, backend {dist.get_backend()}")

    torch.manual_seed(7)
    layers = []
    for _ in range(3):
        layers += [nn.Linear(args.width, args.width), nn.Tanh()]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(args.width, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(100 + rank)
    for step in range(1, args.steps + 1):
        features = torch.randn(16, args.width, generator=generator)
        target = features[:, :1] - features[:, 1:2]
        loss = nn.functional.mse_loss(model(features), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        print(f"step {step} loss {shown.item() / world_size:.6f}", flush=True)

    own = torch.cat([p.detach().flatten() for p in model.parameters()])
    first = own.clone()
    dist.broadcast(first, src=0)
    assert torch.equal(own, first), "the replicas have drifted apart"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
