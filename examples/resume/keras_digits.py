"""Trains on digits with Keras, whose callback resumes from the last checkpoint after a restart."""

import argparse
import os
import time

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--pause", type=float, default=0.0, help="seconds after each epoch")
options = parser.parse_args()

place = os.environ["AIP_CHECKPOINT_DIR"].replace("gs://", "/gcs/")
inputs = np.random.default_rng(0).random((512, 8), dtype=np.float32)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
callbacks = [
    keras.callbacks.BackupAndRestore(place),
    keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: time.sleep(options.pause)),
]
model.fit(inputs, inputs.sum(1), epochs=options.epochs, verbose=2, callbacks=callbacks)
