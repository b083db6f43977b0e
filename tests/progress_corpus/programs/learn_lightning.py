"""Programs that Lightning trains a network for: `learn_lightning.py KIND --epochs N`. Each batch takes a
while because it pauses."""

import argparse
import os
import random
import sys
import time

import lightning
import torch
from lightning.pytorch.callbacks import TQDMProgressBar
from torch.utils.data import DataLoader, TensorDataset

chance = random.Random(5)
print("imported", flush=True)


class Small(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        time.sleep(0.1 * chance.lognormvariate(0, 0.2))
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch, index):
        time.sleep(0.05)
        self.log("val_loss", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader(batches):
    inputs = torch.randn(batches * 4, 4)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("bars", "no_validation"))
    parser.add_argument("--max_epochs", type=int, default=6)
    options = parser.parse_args()
    trainer = lightning.Trainer(
        max_epochs=options.max_epochs,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        accelerator="cpu",
        callbacks=[TQDMProgressBar()],
    )
    validation = [loader(12)] if options.kind == "bars" else []
    trainer.fit(Small(), loader(50), *validation)
    # What is taken apart then takes as long as much of this short run.
    sys.stdout.flush()
    os._exit(0)
