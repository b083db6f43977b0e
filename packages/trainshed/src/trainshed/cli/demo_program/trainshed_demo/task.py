"""The demo job: several hosts learn together to classify handwritten digits.

Every replica runs `python -m trainshed_demo.task`. In each epoch the primary and the workers train on their
shares of the images, and go on with the average of their weights, which the primary keeps. The primary saves
checkpoints, and resumes from the last one when it is started again; workers keep nothing. The evaluator
judges each checkpoint on images that no replica has learned from.
"""

import argparse
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.managers import BaseManager
from threading import Condition, Thread
from typing import Any, cast

import numpy as np

from trainshed_demo.digits import UNTRAINED, judge, load_digits, train
from trainshed_demo.folder import Folder

# Flushed at every line, because logs are read while the program runs.
say = functools.partial(print, flush=True)


class Learned:
    """The weights that the replicas have learned together. The primary keeps them; workers call its methods
    over connections."""

    def __init__(self, size: int, epoch: int, weights: Any) -> None:
        self.size, self.epoch, self.weights = size, epoch, weights
        self._parts: dict[int, Any] = {}
        self._complete = Condition()

    def join(self, rank: int) -> tuple[int, Any]:
        """Return the number of epochs that are done, and the weights after them, to a worker that starts."""
        say(f"worker {rank} joined")
        return self.epoch, self.weights

    def add(self, rank: int, epoch: int, weights: Any) -> tuple[int, Any]:
        """Wait until all replicas have added their part of an epoch; return the next epoch and its weights.

        A worker that was started again may add its part twice; both are equal.
        """
        with self._complete:
            if epoch == self.epoch:
                self._parts[rank] = weights
            if len(self._parts) == self.size:
                self.weights = np.mean([part for _, part in sorted(self._parts.items())], axis=0)
                self.epoch, self._parts = epoch + 1, {}
                self._complete.notify_all()
            self._complete.wait_for(lambda: self.epoch > epoch)
            return self.epoch, self.weights


def main(options: argparse.Namespace) -> None:
    # The service tells every replica the addresses of all, and which of them it is.
    spec = json.loads(os.environ["CLUSTER_SPEC"])
    cluster, task = spec["cluster"], spec["task"]
    host, _, port = cluster["workerpool0"][0].partition(":")
    # Only this job's replicas know the key, since each job's hosts have names of their own.
    manager = BaseManager((host, int(port)), json.dumps(cluster, sort_keys=True).encode())
    size = 1 + len(cluster.get("workerpool1", []))
    if task["type"] == "workerpool0":
        lead(options, manager, size)
    elif task["type"] == "workerpool1":
        work(options, manager, task["index"] + 1, size)
    else:
        evaluate(options)


def lead(options: argparse.Namespace, manager: BaseManager, size: int) -> None:
    """The primary trains with the workers, saves checkpoints and, in the end, the model."""
    say("checkpoints go to", os.environ["AIP_CHECKPOINT_DIR"])
    checkpoints, (examples, held_out) = Folder(os.environ["AIP_CHECKPOINT_DIR"]), load_digits()
    epoch, weights = 0, UNTRAINED
    if saved := checkpoints.names():
        epoch, weights = checkpoints.load(saved[-1])
        say(f"resuming from the checkpoint after epoch {epoch}")
    learned = Learned(size, epoch, weights)
    BaseManager.register("learned", lambda: learned)
    Thread(target=manager.get_server().serve_forever, daemon=True).start()
    # The service asks a replica to end by SIGTERM, and gives it time to save its state.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while epoch < options.epochs:
            began = time.monotonic()
            epoch, weights = learned.add(0, epoch, train(weights, examples.share(0, size), epoch))
            loss, accuracy = judge(weights, examples)
            progress = f"loss {loss:.3f} accuracy {accuracy:.3f}"
            say(f"epoch {epoch}/{options.epochs} {progress} ({size} replicas)")
            if epoch % options.checkpoint_epochs == 0 or epoch == options.epochs:
                say("saved", checkpoints.save(f"epoch-{epoch:04}.npz", epoch, weights))
            # Slows the job down, which would otherwise be over before anybody can watch it.
            time.sleep(max(0.0, began + options.epoch_seconds - time.monotonic()))
    except KeyboardInterrupt:
        say("asked to end; saved", checkpoints.save(f"epoch-{epoch:04}.npz", epoch, weights))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    model, (_, accuracy) = Folder(os.environ["AIP_MODEL_DIR"]), judge(weights, held_out)
    model.save("model.npz", epoch, weights)
    model.write("metrics.json", json.dumps({"accuracy": accuracy, "epochs": epoch}).encode())
    say(f"final accuracy {accuracy:.3f} on {len(held_out.labels)} held-out images")
    if accuracy < 0.9:
        sys.exit("It has not learned enough. Give it more --epochs.")


def work(options: argparse.Namespace, manager: BaseManager, rank: int, size: int) -> None:
    """A worker trains on its share of the images, beginning at the primary's current epoch."""
    examples, epoch = load_digits()[0].share(rank, size), 0
    BaseManager.register("learned")
    while epoch < options.epochs:
        try:
            manager.connect()
        except (EOFError, OSError):
            # The primary may start later than this replica, and it is started again when it was lost.
            time.sleep(0.1)
            continue
        try:
            learned = cast(Any, manager).learned()
            epoch, weights = learned.join(rank)
            say(f"joined the primary after epoch {epoch}")
            while epoch < options.epochs:
                epoch, weights = learned.add(rank, epoch, train(weights, examples, epoch))
        except (EOFError, OSError):
            say("lost the primary; joining again")


def evaluate(options: argparse.Namespace) -> None:
    """The evaluator judges each checkpoint, until the service ends it together with the job."""
    say("waiting for checkpoints")
    checkpoints, (_, held_out) = Folder(os.environ["AIP_CHECKPOINT_DIR"]), load_digits()
    asked_to_end, judged = list[int](), set[str]()
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_end.append(number))
    while True:
        # After it was asked to end it looks once more, since the last checkpoint may be new.
        last = bool(asked_to_end)
        for name in sorted({*checkpoints.names()} - judged):
            epoch, weights = checkpoints.load(name)
            _, accuracy = judge(weights, held_out)
            say(f"after epoch {epoch}: accuracy {accuracy:.3f} on held-out images")
            judged.add(name)
        if last:
            return
        time.sleep(options.poll_seconds)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trainshed_demo.task")
    add = parser.add_argument
    add("--epochs", type=int, default=30, help="passes over the images")
    add("--checkpoint-epochs", type=int, default=5, help="epochs between two checkpoints")
    add("--epoch-seconds", type=float, default=0.12, help="the least time an epoch takes")
    add("--poll-seconds", type=float, default=0.5, help="how often the evaluator looks")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(parse())
