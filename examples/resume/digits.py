"""Trains on digits with scikit-learn, and resumes from its last checkpoint after a restart."""

import argparse
import os
import pathlib
import pickle
import time

from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--pause", type=float, default=0.0, help="seconds after each epoch")
options = parser.parse_args()

place = pathlib.Path(os.environ["AIP_CHECKPOINT_DIR"].replace("gs://", "/gcs/"))
place.mkdir(parents=True, exist_ok=True)
last = place / "last.pickle"

images, labels = load_digits(return_X_y=True)
epoch, model = 0, SGDClassifier(random_state=0)
if last.exists():
    epoch, model = pickle.loads(last.read_bytes())
    print(f"resumes after epoch {epoch}", flush=True)
while epoch < options.epochs:
    model.partial_fit(images, labels, classes=range(10))
    epoch += 1
    # Write atomically: a program may be killed during the write.
    written = last.with_suffix(".written")
    written.write_bytes(pickle.dumps((epoch, model)))
    written.replace(last)
    print(f"epoch {epoch}/{options.epochs} accuracy {model.score(images, labels):.4f}", flush=True)
    time.sleep(options.pause)
