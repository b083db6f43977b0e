"""A first program to run as a job. The replicas fit a line together, and the first replica saves the
model."""

import argparse
import os
import pathlib

import pandas
import torch
from torch import distributed, nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
epochs = parser.parse_args().epochs

# The service sets MASTER_ADDR, RANK and WORLD_SIZE for each replica.
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(rank)
model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.003)
history = []
for epoch in range(1, epochs + 1):
    for _ in range(100):
        x = torch.randn(64, 3)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    history.append({"epoch": epoch, "loss": loss.item()})
    print(f"epoch {epoch}/{epochs} loss {loss.item():.2e}", flush=True)

if rank == 0:
    directory = pathlib.Path(os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/"))
    directory.mkdir(parents=True, exist_ok=True)
    torch.save(model.module.state_dict(), directory / "model.pt")
    pandas.DataFrame(history).to_csv(directory / "history.csv", index=False)
    print("The model is in", os.environ["AIP_MODEL_DIR"])
distributed.destroy_process_group()
