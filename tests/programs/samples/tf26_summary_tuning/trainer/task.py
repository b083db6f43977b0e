"""The tuner reads the metric from the summaries that the TensorBoard callback writes."""

import argparse
import os

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--job-dir", required=True)
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--optimizer", default="adam")
args = parser.parse_args()

rng = np.random.RandomState(0)
x = rng.rand(400, 6)
y = (x.sum(axis=1) > 3).astype("int")
model = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(12, activation="relu", input_shape=(6,)),
        tf.keras.layers.Dropout(args.dropout),
        tf.keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(args.optimizer, "binary_crossentropy", metrics=["accuracy"])
tensorboard = tf.keras.callbacks.TensorBoard(log_dir=os.path.join(args.job_dir, "logs"))
model.fit(x, y, validation_split=0.2, epochs=4, callbacks=[tensorboard], verbose=2)
model.save(os.path.join(args.job_dir, "model"))
