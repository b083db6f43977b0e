import os

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self, hidden=16, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def gcs(name):
    return os.environ[name].replace("gs://", "/gcs/")


if __name__ == "__main__":
    L.seed_everything(0)
    x = torch.randn(200, 8)
    y = (x.sum(1) > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=20)
    checkpoints = ModelCheckpoint(gcs("AIP_CHECKPOINT_DIR"), filename="best", monitor="val_loss")
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="auto",
        callbacks=[checkpoints],
        logger=[TensorBoardLogger(gcs("AIP_TENSORBOARD_LOG_DIR")), CSVLogger("/tmp/csv")],
        enable_progress_bar=True,
    )
    trainer.fit(Classifier(), loader, loader)
    best = Classifier.load_from_checkpoint(checkpoints.best_model_path)
    os.makedirs(gcs("AIP_MODEL_DIR"), exist_ok=True)
    best.to_torchscript(gcs("AIP_MODEL_DIR") + "/model.pt", method="trace", example_inputs=x[:1])
