"""The smoke tests of all families: each uses a runtime as jobs would. `python -I smoke.py FOLDER` runs one.

The runtime's own Python does so, from 3.7 on; it imports nothing of Trainshed.
"""

import contextlib
import importlib
import importlib.util
import io
import os
import sys
import tempfile
from typing import Any

_OF_JOBS = ("setuptools.build_meta", "google.cloud.storage", "hypertune")
"""What jobs of every framework import."""


def python() -> None:
    _load(*_OF_JOBS, "pip", "requests", "pandas")


def scikit_learn() -> None:
    """Fit a classifier to eight points."""
    np, linear_model, *_ = _load("numpy", "sklearn.linear_model", "scipy", *_OF_JOBS)
    # The slim release is for programs that need neither.
    if importlib.util.find_spec("pandas"):
        _load("pandas", "xgboost", "requests")
    points, classes = np.arange(8.0).reshape(8, 1), np.array([0, 0, 0, 0, 1, 1, 1, 1])
    model = linear_model.LogisticRegression().fit(points, classes)
    assert list(model.predict([[0.0], [7.0]])) == [0, 1]


def xgboost() -> None:
    """Train two trees through XGBoost's own interface and through the one of scikit-learn."""
    np, trees, *_ = _load("numpy", "xgboost", "sklearn", "pandas", *_OF_JOBS)
    points, classes = np.arange(8.0).reshape(8, 1), np.array([0, 0, 0, 0, 1, 1, 1, 1])
    model = trees.XGBClassifier(n_estimators=2, max_depth=1).fit(points, classes)
    assert model.predict(points).shape == (8,)
    booster = trees.train({"max_depth": 1}, trees.DMatrix(points, label=classes), 2)
    assert len(booster.get_dump()) == 2


def pytorch() -> None:
    """Take one step of gradient descent, with the backend of `torch.distributed` that jobs rely on."""
    torch, *_ = _load("torch", "numpy", "pandas", *_OF_JOBS)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = (model(torch.ones(4, 2)) - 1).pow(2).mean()
    loss.backward()
    optimizer.step()
    assert torch.distributed.is_gloo_available()
    assert torch.from_numpy(model.weight.detach().numpy()).shape == (1, 2)


def tensorflow() -> None:
    """Fit one weight of a Keras model for a step, and find a file through TensorFlow's own file system."""
    tf, np, *_ = _load(
        *("tensorflow", "numpy", "sklearn", "pandas", "google.cloud.storage", "hypertune")
    )
    companions = ("tensorflow_datasets", "tensorflow_hub", "gcsfs", "xgboost", "cv2")
    # Not every release has these on every Python.
    for name in (*companions, "tensorflow_text", "tensorflow_io", "tfx_bsl"):
        if importlib.util.find_spec(name):
            try:
                _load(name)
            except Exception as failure:
                # Libraries fail at import in many ways; programs that do not need them run all the same.
                sys.stdout.write(f"{name} does not load in this runtime: {failure}\n")
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    model.fit(np.ones((4, 2), dtype="float32"), np.ones((4, 1), dtype="float32"), verbose=0)
    with tempfile.NamedTemporaryFile("w") as file:
        assert tf.io.gfile.exists(file.name)


def reduction_server() -> None:
    """Add two arrays in place, which is what reducers do."""
    (np,) = _load("numpy")
    total = np.arange(4, dtype=np.float32)
    np.add(total, np.frombuffer(bytes(16), np.float32), out=total)
    assert total.tolist() == [0, 1, 2, 3]


def tensorboard() -> None:
    """Set TensorBoard up for an empty directory, as it is before it serves."""
    default, program, _ = _load("tensorboard.default", "tensorboard.program", "werkzeug.serving")
    with tempfile.TemporaryDirectory() as place:
        board = program.TensorBoard(plugins=default.get_static_plugins())
        board.configure(logdir=place, load_fast="false")
        assert board.flags.logdir == place


def gsutil() -> None:
    """Load what gsutil is made of, and have it say its version."""
    output = io.StringIO()
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(HOME=home, BOTO_CONFIG=os.devnull)
        sys.argv = ["gsutil", "version"]
        with contextlib.redirect_stdout(output):
            _load("gslib.__main__")[0].main()
    assert output.getvalue().startswith("gsutil version: "), output.getvalue()


def _load(*names: str) -> "list[Any]":
    return [importlib.import_module(name) for name in names]


if __name__ == "__main__":
    globals()[sys.argv[1]]()
