"""Programs that write summaries with the public libraries, and the expected values.

They wrote the files in `golden/summaries`:

    python -m tests.summary_writers WRITER PYTHON     e.g. tensorflow-2.17-scalars, and a Python with that
    TensorFlow
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden" / "summaries"

STEPS = (0, 10, 20)


@dataclass(frozen=True)
class Writer:
    """A writer. `source`: a program that writes below `sys.argv[1]`. `run`: the directory of the expected
    file. `scalars`: value by step and tag. `runtime`: (family, version) of the runtime that has the library.
    """

    source: str
    run: str
    scalars: Mapping[str, Mapping[int, float]]
    runtime: tuple[str, str]


_TF1 = """
import sys
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
with v1.Graph().as_default() as graph, v1.Session() as session:
    given = v1.placeholder(tf.float32, [])
    merged = v1.summary.merge([v1.summary.scalar("accuracy", given), v1.summary.histogram("weights", given)])
    writer = v1.summary.FileWriter(sys.argv[1] + "/eval", graph)
    for step in (0, 10, 20):
        writer.add_summary(session.run(merged, {given: 0.5 + step / 64}), step)
        value = v1.Summary.Value(tag="training/hptuning/metric", simple_value=step / 64)
        writer.add_summary(v1.Summary(value=[value]), step)
    writer.close()
"""

_TF1_PLAIN = """
import sys
import tensorflow as tf

v1 = tf.compat.v1
writer = v1.summary.FileWriter(sys.argv[1])
for step in (0, 10, 20):
    value = v1.Summary.Value(tag="accuracy", simple_value=0.5 + step / 64)
    writer.add_summary(v1.Summary(value=[value]), step)
writer.close()
"""

_TF2 = """
import sys
import tensorflow as tf

writer = tf.summary.create_file_writer(sys.argv[1] + "/eval")
plugin = tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
scalars = tf.compat.v1.SummaryMetadata(plugin_data=plugin)
with writer.as_default():
    for step in (0, 10, 20):
        value = 0.5 + step / 64
        tf.summary.scalar("accuracy", value, step=step)
        for name in ("float64", "float16", "bfloat16"):
            tf.summary.write("as_" + name, tf.cast(value, name), step=step, metadata=scalars)
        for name in ("int32", "int64", "uint8"):
            tf.summary.write("as_" + name, tf.cast(step, name), step=step, metadata=scalars)
        tf.summary.write("vector", tf.constant([1.0, 2.0]), step=step)
        tf.summary.histogram("weights", [value, 1.0], step=step)
        tf.summary.text("said", "step %d" % step, step=step)
writer.close()
"""

_KERAS = """
import os, sys
import numpy as np
import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="zeros", input_shape=(2,))])
model.compile(optimizer=tf.keras.optimizers.SGD(0.0), loss="mse")
inputs, targets = np.ones((8, 2), "float32"), np.full((8, 1), 0.5, "float32")
board = tf.keras.callbacks.TensorBoard(os.path.join(sys.argv[1], "logs"))
model.fit(inputs, targets, epochs=3, validation_data=(inputs, targets * 2), callbacks=[board], verbose=0)
"""

_TORCH = """
import sys
import torch
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter(sys.argv[1] + "/eval")
for step in (0, 10, 20):
    value = 0.5 + step / 64
    writer.add_scalar("accuracy", value, step)
    writer.add_scalar("new_style", value, step, new_style=True)
    writer.add_scalar("double", value, step, new_style=True, double_precision=True)
    writer.add_histogram("weights", torch.ones(3), step)
    writer.add_text("said", "step", step)
writer.close()
"""

_RISING = {step: 0.5 + step / 64 for step in STEPS}
_TENSORS = {
    "accuracy": _RISING,
    **{f"as_{name}": _RISING for name in ("float64", "float16", "bfloat16")},
    **{f"as_{name}": {step: float(step) for step in STEPS} for name in ("int32", "int64", "uint8")},
}
_EPOCHS = dict.fromkeys(range(3), 1.0)

WRITERS = {
    "tensorflow-1.15-session": Writer(
        _TF1,
        "eval",
        {"accuracy": _RISING, "training/hptuning/metric": {step: step / 64 for step in STEPS}},
        ("tensorflow", "1.15"),
    ),
    "tensorflow-1.15-plain": Writer(_TF1_PLAIN, "", {"accuracy": _RISING}, ("tensorflow", "1.15")),
    "tensorflow-1.15-keras": Writer(
        _KERAS,
        "logs",
        {"epoch_loss": dict.fromkeys(range(3), 0.25), "epoch_val_loss": _EPOCHS},
        ("tensorflow", "1.15"),
    ),
    "tensorflow-2.1-scalars": Writer(_TF2, "eval", _TENSORS, ("tensorflow", "2.1")),
    "tensorflow-2.17-scalars": Writer(_TF2, "eval", _TENSORS, ("tensorflow", "2.17")),
    "tensorflow-2.17-keras": Writer(
        _KERAS,
        "logs/validation",
        {"epoch_loss": _EPOCHS, "evaluation_loss_vs_iterations": dict.fromkeys((1, 2, 3), 1.0)},
        ("tensorflow", "2.17"),
    ),
    "torch-scalars": Writer(
        _TORCH, "eval", {"accuracy": _RISING, "new_style": _RISING, "double": _RISING}, ("pytorch", "2.4")
    ),
}


def write(writer: Writer, python: str, directory: Path) -> Path:
    """Run the writer below the directory and return its file."""
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [python, "-c", writer.source, str(directory)]
    subprocess.run(command, env=environ, check=True, timeout=300)
    (event_file,) = [
        path for path in (directory / writer.run).glob("*tfevents*") if path.suffix != ".profile-empty"
    ]
    return event_file


def main() -> None:
    name, python = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        written = write(WRITERS[name], python, Path(scratch))
        (GOLDEN / f"{name}.tfevents").write_bytes(written.read_bytes())


if __name__ == "__main__":
    main()
