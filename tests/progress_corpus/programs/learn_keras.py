"""Programs that Keras fits a network for: `learn_keras.py KIND`. The network is nearly nothing; each batch
takes a while because a callback pauses."""

import argparse
import os
import random
import sys
import time

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

chance = random.Random(3)
print("imported", flush=True)


class Pause(keras.callbacks.Callback):
    def __init__(self, seconds, first=1.0):
        super().__init__()
        self.seconds, self.first, self.epoch = seconds, first, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        more = self.first if self.epoch == 0 else 1
        time.sleep(more * self.seconds * chance.lognormvariate(0, 0.2))

    def on_test_batch_end(self, batch, logs=None):
        time.sleep(self.seconds / 2)


def fit(epochs, batches, *, verbose, seconds=0.1, validate=True, first=1.0):
    inputs = np.random.default_rng(1).normal(size=(batches * 8, 4))
    target = inputs.sum(axis=1, keepdims=True)
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    part = (inputs[: batches * 2], target[: batches * 2]) if validate else None
    model.fit(
        inputs,
        target,
        batch_size=8,
        epochs=epochs,
        verbose=verbose,
        validation_data=part,
        callbacks=[Pause(seconds, first)],
    )


KINDS = {
    "bars": lambda: fit(6, 50, verbose=1),
    "lines": lambda: fit(10, 30, verbose=2),
    "no_validation": lambda: fit(8, 40, verbose=1, validate=False),
    "slow_first": lambda: fit(8, 30, verbose=2, first=2.5),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    KINDS[parser.parse_args().kind]()
    # What is taken apart then takes as long as much of this short run.
    sys.stdout.flush()
    os._exit(0)
