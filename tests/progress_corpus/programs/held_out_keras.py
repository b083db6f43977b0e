"""Keras fits a network: `held_out_keras.py EPOCHS VERBOSE`. Each batch takes a while because a callback
pauses."""

import os
import random
import sys
import time

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

print("imported", flush=True)
chance = random.Random(77)


class Pause(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.15 * chance.lognormvariate(0, 0.3))

    def on_test_batch_end(self, batch, logs=None):
        time.sleep(0.08)


inputs = np.random.default_rng(1).normal(size=(400, 3))
target = inputs.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("adam", "mae")
model.fit(
    inputs,
    target,
    batch_size=8,
    epochs=int(sys.argv[1]),
    validation_data=(inputs[:80], target[:80]),
    verbose=int(sys.argv[2]),
    callbacks=[Pause()],
)
