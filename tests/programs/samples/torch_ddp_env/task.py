import argparse
import os
import shutil
import warnings

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

warnings.filterwarnings("ignore")


def makedirs(model_dir):
    if os.path.exists(model_dir) and os.path.isdir(model_dir):
        shutil.rmtree(model_dir)
    os.makedirs(model_dir)
    return model_dir


def distributed_is_initialized():
    return dist.is_available() and dist.is_initialized()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
    parser.add_argument("--init-method", default="env://")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    local_model_dir = makedirs("./tmp/model")
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"):
        print(name, os.environ.get(name))
    dist.init_process_group(
        backend=args.backend,
        init_method=args.init_method,
        world_size=int(os.environ["WORLD_SIZE"]),
        rank=int(os.environ["RANK"]),
    )
    torch.manual_seed(0)
    x = torch.randn(256, 4)
    y = x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
    dataset = TensorDataset(x, y)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    model = DDP(nn.Linear(4, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for data, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(data), target)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print("epoch", epoch, "loss", loss.item())
    dist.barrier()
    if dist.get_rank() == 0:
        path = os.path.join(local_model_dir, "model.pt")
        torch.save(model.module.state_dict(), path)
        gcs = os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/")
        os.makedirs(gcs, exist_ok=True)
        shutil.copyfile(path, os.path.join(gcs, "model.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
