"""Fits one weight of a Keras model for a step, and reads a file through TensorFlow's own file system."""

import importlib
import tempfile

tf = importlib.import_module("tensorflow")
np = importlib.import_module("numpy")
for name in ("sklearn", "pandas", "google.cloud.storage", "hypertune"):
    importlib.import_module(name)

model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
model.fit(np.ones((4, 2), dtype="float32"), np.ones((4, 1), dtype="float32"), verbose=0)
with tempfile.NamedTemporaryFile("w") as file:
    assert tf.io.gfile.exists(file.name)
