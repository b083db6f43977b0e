import argparse
import os
import tempfile

import hypertune
import numpy as np
import torch
from google.cloud import storage
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.001)
parser.add_argument("--hidden", type=int, default=16)
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()

images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(np.float32(images / 16), labels, random_state=0)
x, x_test, y = torch.tensor(x), torch.tensor(x_test), torch.tensor(y)
net = torch.nn.Sequential(torch.nn.Linear(64, args.hidden), torch.nn.ReLU(), torch.nn.Linear(args.hidden, 10))
optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)
for epoch in range(args.epochs):
    for batch in torch.randperm(len(x)).split(64):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
        optimizer.step()
    with torch.inference_mode():
        accuracy = float((net(x_test).argmax(1).numpy() == y_test).mean())
    print("epoch", epoch, "accuracy", accuracy)
    hypertune.HyperTune().report_hyperparameter_tuning_metric("accuracy", accuracy, epoch)

with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "model.pt")
    torch.save(net.state_dict(), path)
    blob = storage.Blob.from_string(os.environ["AIP_MODEL_DIR"] + "model.pt", client=storage.Client())
    blob.upload_from_filename(path)
