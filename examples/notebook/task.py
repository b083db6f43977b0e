"""The training program of notebook.py. It reads its splits, writes curves and a model, and logs into a run of
the experiment."""

import argparse
import glob
import os

import pandas as pd
import torch
from google.cloud import aiplatform
from torch.utils.tensorboard import SummaryWriter

parser = argparse.ArgumentParser()
parser.add_argument("--experiment", required=True)
parser.add_argument("--run", required=True)
parser.add_argument("--learning-rate", type=float, required=True)
parser.add_argument("--epochs", type=int, default=30)
args = parser.parse_args()


def split(name):
    """Return the features and the labels of one split. Buckets are mounted below /gcs."""
    pattern = os.environ[f"AIP_{name}_DATA_URI"].replace("gs://", "/gcs/")
    frame = pd.concat(pd.read_csv(path) for path in sorted(glob.glob(pattern)))
    features = torch.tensor(frame[["months", "calls"]].values, dtype=torch.float32)
    return features, torch.tensor(frame["left"].values, dtype=torch.float32)


features, labels = split("TRAINING")
mean, deviation = features.mean(0), features.std(0)
test_features, test_labels = split("TEST")

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)
loss_of = torch.nn.BCEWithLogitsLoss()

# The notebook has created the run. The values that it has logged remain.
aiplatform.init(experiment=args.experiment)
aiplatform.start_run(args.run, resume=True)
with SummaryWriter(os.environ["AIP_TENSORBOARD_LOG_DIR"].replace("gs://", "/gcs/")) as curves:
    for epoch in range(args.epochs):
        optimizer.zero_grad()
        loss = loss_of(model((features - mean) / deviation).squeeze(1), labels)
        loss.backward()
        optimizer.step()
        curves.add_scalar("loss", loss.item(), epoch)
with torch.no_grad():
    right = (model((test_features - mean) / deviation).squeeze(1) > 0) == (test_labels > 0.5)
accuracy = right.float().mean().item()
aiplatform.log_metrics({"accuracy": accuracy, "rows": len(features), "tested": len(test_features)})
aiplatform.end_run()

directory = os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/")
os.makedirs(directory, exist_ok=True)
torch.save(model.state_dict(), os.path.join(directory, "model.pt"))
print(f"accuracy {accuracy:.3f} of {len(test_features)} rows")
