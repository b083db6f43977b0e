"""Fits one weight of a Keras model for a step, reads a file through TensorFlow's own file system, and loads what is built
against one TensorFlow only."""

import importlib
import importlib.util
import tempfile

tf = importlib.import_module("tensorflow")
np = importlib.import_module("numpy")
for name in ("sklearn", "pandas", "google.cloud.storage", "hypertune"):
    importlib.import_module(name)
for name in ("tensorflow_datasets", "tensorflow_hub", "gcsfs", "xgboost", "cv2"):
    importlib.import_module(name)
# Not every release has these on every Python.
for name in ("tensorflow_text", "tensorflow_io", "tfx_bsl"):
    if importlib.util.find_spec(name):
        importlib.import_module(name)

model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
model.fit(np.ones((4, 2), dtype="float32"), np.ones((4, 1), dtype="float32"), verbose=0)
with tempfile.NamedTemporaryFile("w") as file:
    assert tf.io.gfile.exists(file.name)
