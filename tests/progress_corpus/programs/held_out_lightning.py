"""Lightning with a validation in the middle of each epoch."""

import random
import time

import lightning
import torch

print("imported", flush=True)
chance = random.Random(21)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, index):
        time.sleep(0.1 * chance.lognormvariate(0, 0.3))
        loss = self.layer(batch[0]).mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        time.sleep(0.08)
        self.log("val", self.layer(batch[0]).mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def batches(count):
    data = torch.utils.data.TensorDataset(torch.randn(count * 4, 3))
    return torch.utils.data.DataLoader(data, batch_size=4)


trainer = lightning.Trainer(
    max_epochs=8,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    val_check_interval=0.5,
    num_sanity_val_steps=2,
)
trainer.fit(Module(), batches(40), batches(10))
