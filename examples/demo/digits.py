"""The demo: three replicas learn together to recognize handwritten digits.

In each epoch, every replica trains on its part of the images. It then continues with the average of the
weights of all replicas, which the first replica stores. The first replica saves checkpoints and resumes from
the last checkpoint after a restart. The other replicas keep no state.
"""

import io
import json
import os
import time
from importlib.util import find_spec
from multiprocessing.managers import BaseManager
from threading import Condition, Thread
from typing import Any, cast

import numpy as np

EPOCHS = 30
CHECKPOINT_EPOCHS = 5
EPOCH_SECONDS = 0.12
"""Minimum duration of an epoch in seconds. Without it, the job would finish before you can watch it."""


class Learned:
    """The shared weights. The other replicas call the methods over network connections."""

    def __init__(self, size: int, epoch: int, weights: Any) -> None:
        self.size, self.epoch, self.weights = size, epoch, weights
        self._parts: dict[int, Any] = {}
        self._complete = Condition()

    def now(self) -> tuple[int, Any]:
        """Return the number of finished epochs, and the weights after these epochs."""
        return self.epoch, self.weights

    def add(self, rank: int, epoch: int, weights: Any) -> tuple[int, Any]:
        """Add a replica's part of an epoch, and wait until all replicas have added their parts. Return the
        number of the next epoch and its weights. A restarted replica may add its part twice. Both parts are
        equal."""
        with self._complete:
            if epoch == self.epoch:
                self._parts[rank] = weights
            if len(self._parts) == self.size:
                self.weights = np.mean([part for _, part in sorted(self._parts.items())], axis=0)
                self.epoch, self._parts = epoch + 1, {}
                self._complete.notify_all()
            self._complete.wait_for(lambda: self.epoch > epoch)
            return self.epoch, self.weights


def main() -> None:
    """Run the role that the service assigned to this replica."""
    # The service gives every replica the addresses of all replicas, and the index of the replica.
    spec = json.loads(os.environ["CLUSTER_SPEC"])
    cluster, task = spec["cluster"], spec["task"]
    host, _, port = cluster["workerpool0"][0].partition(":")
    # Only replicas of this job know the key, because each job has its own host names.
    manager = BaseManager((host, int(port)), json.dumps(cluster, sort_keys=True).encode())
    size = 1 + len(cluster.get("workerpool1", []))
    if task["type"] == "workerpool0":
        lead(manager, size)
    else:
        work(manager, task["index"] + 1, size)


def lead(manager: BaseManager, size: int) -> None:
    """Train together with the other replicas and save checkpoints. At the end, save the model."""
    checkpoints = Folder(os.environ["AIP_CHECKPOINT_DIR"])
    (images, labels), held_out = load_digits()
    epoch, weights = 0, np.zeros((images.shape[1], 10))
    if saved := checkpoints.names():
        epoch, weights = checkpoints.load(saved[-1])
        print(f"resuming from the checkpoint after epoch {epoch}", flush=True)
    learned = Learned(size, epoch, weights)
    BaseManager.register("learned", lambda: learned)
    Thread(target=manager.get_server().serve_forever, daemon=True).start()
    while epoch < EPOCHS:
        began = time.monotonic()
        part = train(weights, images[::size], labels[::size], epoch)
        epoch, weights = learned.add(0, epoch, part)
        print(f"epoch {epoch}/{EPOCHS} accuracy {accuracy(weights, *held_out):.3f}", flush=True)
        if epoch % CHECKPOINT_EPOCHS == 0:
            checkpoints.save(f"epoch-{epoch:04}.npz", epoch, weights)
        time.sleep(max(0.0, began + EPOCH_SECONDS - time.monotonic()))
    Folder(os.environ["AIP_MODEL_DIR"]).save("model.npz", epoch, weights)
    final = accuracy(weights, *held_out)
    print(f"final accuracy {final:.3f} on {len(held_out[1])} images that it has not learned from")


def work(manager: BaseManager, rank: int, size: int) -> None:
    """Train on a share of the images, starting at the first replica's current epoch."""
    (images, labels), _ = load_digits()
    BaseManager.register("learned")
    epoch = 0
    while epoch < EPOCHS:
        try:
            manager.connect()
            learned = cast(Any, manager).learned()
            epoch, weights = learned.now()
            print(f"joined after epoch {epoch}", flush=True)
            while epoch < EPOCHS:
                part = train(weights, images[rank::size], labels[rank::size], epoch)
                epoch, weights = learned.add(rank, epoch, part)
        except (EOFError, OSError):
            # The first replica may start later than this replica, and is restarted if it is lost.
            time.sleep(0.1)


def load_digits() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return (images, labels) of 1,437 training digits and of 360 test digits. An image is a row of 64 pixels
    from 0 to 1, and the constant 1.
    """
    # Read the data as a file, because importing scikit-learn takes longer than the training.
    package = cast(Any, find_spec("sklearn")).submodule_search_locations[0]
    digits = np.loadtxt(f"{package}/datasets/data/digits.csv.gz", delimiter=",")
    images, labels = np.c_[digits[:, :64] / 16, np.ones(len(digits))], digits[:, 64].astype(int)
    held_out = np.arange(len(labels)) % 5 == 0
    return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])


def train(weights: Any, images: Any, labels: Any, epoch: int) -> Any:
    """Return the weights after one epoch of gradient descent (softmax regression)."""
    weights, order = weights.copy(), np.random.default_rng(epoch).permutation(len(labels))
    for rows in np.array_split(order, len(order) // 16):
        odds = np.exp(images[rows] @ weights)
        error = odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[labels[rows]]
        weights -= images[rows].T @ error / len(rows)
    return weights


def accuracy(weights: Any, images: Any, labels: Any) -> float:
    """Return the fraction of images whose digit is recognized."""
    return float(((images @ weights).argmax(axis=1) == labels).mean())


class Folder:
    """The NumPy archives below `gs://bucket/path/`. The client library finds the credentials of the job."""

    def __init__(self, uri: str) -> None:
        from google.cloud import storage

        bucket, _, self.path = uri.removeprefix("gs://").partition("/")
        self.bucket = cast(Any, storage.Client()).bucket(bucket)

    def names(self) -> list[str]:
        blobs = self.bucket.list_blobs(prefix=self.path)
        return sorted(str(blob.name).removeprefix(self.path) for blob in blobs)

    def save(self, name: str, epoch: int, weights: Any) -> None:
        content = io.BytesIO()
        np.savez(content, epoch=epoch, weights=weights)
        self.bucket.blob(self.path + name).upload_from_string(content.getvalue())
        print(f"saved gs://{self.bucket.name}/{self.path}{name}", flush=True)

    def load(self, name: str) -> tuple[int, Any]:
        """Return the epoch and the weights that a file contains."""
        content = io.BytesIO(self.bucket.blob(self.path + name).download_as_bytes())
        # Pickled objects are not allowed, because opening a checkpoint must not run code.
        with np.load(content, allow_pickle=False) as archive:
            return int(archive["epoch"]), archive["weights"]


if __name__ == "__main__":
    main()
