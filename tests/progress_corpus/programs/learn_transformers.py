"""Programs that the Trainer of Hugging Face's transformers trains a network for: `learn_transformers.py
KIND`. Each step takes a while because it pauses."""

import argparse
import os
import random
import sys
import tempfile
import time

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

chance = random.Random(9)
print("imported", flush=True)


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, inputs, labels):
        time.sleep((0.1 if self.training else 0.04) * chance.lognormvariate(0, 0.2))
        found = self.layer(inputs)
        return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}


class Rows(Dataset):
    def __init__(self, count):
        self.inputs = torch.randn(count, 4)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        row = self.inputs[index]
        return {"inputs": row, "labels": row.sum().reshape(1)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("bars", "lines", "evaluates"))
    parser.add_argument("--num_train_epochs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(
            output_dir=output,
            num_train_epochs=options.num_train_epochs,
            per_device_train_batch_size=4,
            per_device_eval_batch_size=4,
            logging_steps=15,
            eval_strategy="epoch" if options.kind == "evaluates" else "no",
            save_strategy="no",
            disable_tqdm=options.kind == "lines",
            use_cpu=True,
            report_to=[],
        )
        Trainer(Small(), arguments, train_dataset=Rows(280), eval_dataset=Rows(80)).train()
    # What is taken apart then takes as long as much of this short run.
    sys.stdout.flush()
    os._exit(0)
