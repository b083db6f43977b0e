"""Fits one weight of a Keras model for a step, and reads a file through TensorFlow's own file system. Further
libraries that programs import are tried as well; one that does not load is only reported, because most
programs do not need it."""

import importlib
import importlib.util
import sys
import tempfile

tf = importlib.import_module("tensorflow")
np = importlib.import_module("numpy")
for name in ("sklearn", "pandas", "google.cloud.storage", "hypertune"):
    importlib.import_module(name)
companions = ("tensorflow_datasets", "tensorflow_hub", "gcsfs", "xgboost", "cv2")
# Not every release has these on every Python.
for name in (*companions, "tensorflow_text", "tensorflow_io", "tfx_bsl"):
    if importlib.util.find_spec(name):
        try:
            importlib.import_module(name)
        except Exception as failure:
            # Libraries fail at import in many ways; programs that do not need them run all the same.
            sys.stdout.write(f"{name} does not load in this runtime: {failure}\n")

model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
model.fit(np.ones((4, 2), dtype="float32"), np.ones((4, 1), dtype="float32"), verbose=0)
with tempfile.NamedTemporaryFile("w") as file:
    assert tf.io.gfile.exists(file.name)
