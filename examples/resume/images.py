"""Trains with PyTorch, and resumes from its last checkpoint after a restart."""

import argparse
import os
import pathlib
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--pause", type=float, default=0.0, help="seconds after each epoch")
options = parser.parse_args()

place = pathlib.Path(os.environ["AIP_CHECKPOINT_DIR"].replace("gs://", "/gcs/"))
place.mkdir(parents=True, exist_ok=True)
last = place / "last.pt"

torch.manual_seed(0)
inputs = torch.rand(512, 8)
targets = inputs.sum(1, keepdim=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
epoch = 0
if last.exists():
    saved = torch.load(last)
    model.load_state_dict(saved["model"])
    # Without its momentum, the optimizer would start from zero.
    optimizer.load_state_dict(saved["optimizer"])
    epoch = saved["epoch"]
    print(f"resumes after epoch {epoch}", flush=True)
while epoch < options.epochs:
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    epoch += 1
    # Write atomically: a program may be killed during the write.
    written = last.with_suffix(".written")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, written)
    written.replace(last)
    print(f"epoch {epoch}/{options.epochs} loss {loss.item():.4f}", flush=True)
    time.sleep(options.pause)
