"""Tuning programs of TensorFlow as they were published: an estimator's evaluation and Keras' callback write
to gs://, and nothing else reports."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.packages import source_package, upload
from tests.e2e.running import CACHE, PROJECT, REGION, Service, running
from tests.e2e.test_apiclient import built
from tests.e2e.test_tuning_summaries import ref
from tests.e2e.tuning_programs import BUCKET, bucket

pytestmark = pytest.mark.runtimes

_ESTIMATOR = """
import argparse
import tensorflow as tf

tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
parser = argparse.ArgumentParser()
parser.add_argument("--job-dir")
parser.add_argument("--learning_rate", type=float)
args = parser.parse_args()

def data():
    x = [[number / 8] for number in range(8)]
    return tf.data.Dataset.from_tensors(({"x": x}, [[3 * row[0] + 1] for row in x])).repeat()

def rmse(labels, predictions):
    return {"rmse": tf.compat.v1.metrics.root_mean_squared_error(labels, predictions["predictions"])}

estimator = tf.estimator.LinearRegressor(
    [tf.feature_column.numeric_column("x")],
    model_dir=args.job_dir,
    optimizer=tf.compat.v1.train.GradientDescentOptimizer(args.learning_rate),
    config=tf.estimator.RunConfig(save_checkpoints_steps=20),
)
estimator = tf.estimator.add_metrics(estimator, rmse)
tf.estimator.train_and_evaluate(
    estimator,
    tf.estimator.TrainSpec(data, max_steps=40),
    tf.estimator.EvalSpec(data, steps=1, name="holdout", start_delay_secs=0, throttle_secs=0),
)
measured = estimator.evaluate(data, steps=1, name="holdout")
with tf.io.gfile.GFile(args.job_dir + "/measured", "w") as file:
    file.write(str(measured["rmse"]))
"""

_KERAS = """
import argparse
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--job-dir")
parser.add_argument("--learning_rate", type=float)
args = parser.parse_args()

inputs = np.arange(8, dtype="float32").reshape(8, 1) / 8
targets = 3 * inputs + 1
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
model.compile(optimizer=tf.keras.optimizers.SGD(args.learning_rate), loss="mse")
history = model.fit(
    inputs[:6], targets[:6], epochs=4, validation_data=(inputs[6:], targets[6:]), verbose=2,
    callbacks=[tf.keras.callbacks.TensorBoard(args.job_dir + "/keras_tensorboard")],
)
with tf.io.gfile.GFile(args.job_dir + "/measured", "w") as file:
    file.write(str(history.history["val_loss"][-1]))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose runtimes of gigabytes are kept for the next time."""
    place = tmp_path_factory.mktemp("large")
    config = place / "service.toml"
    config.write_text(f'cache = "{os.environ.get("TRAINSHED_CACHE") or CACHE}"\n')
    with running(place / "data", "--config", str(config)) as service:
        yield service


@pytest.mark.parametrize(
    ("program", "version", "python", "tag", "step"),
    [
        (_ESTIMATOR, "1.15", "3.7", "rmse", "40"),
        (_KERAS, "2.11", "3.7", "epoch_loss", "3"),
    ],
    ids=["estimator-1.15", "keras-2.11"],
)
def test_tensorflow_tunes_by_its_summaries(
    large: Service, program: str, version: str, python: str, tag: str, step: str
) -> None:
    job_id = f"tuned_{tag}"
    rates = {"parameterName": "learning_rate", "type": "DISCRETE", "discreteValues": [0.0001, 0.01]}
    hyperparameters = {
        "goal": "MINIMIZE",
        "hyperparameterMetricTag": tag,
        "maxTrials": 2,
        "maxParallelTrials": 2,
        "algorithm": "GRID_SEARCH",
        "params": [rates],
    }
    training = {
        "region": REGION,
        "runtimeVersion": version,
        "pythonVersion": python,
        "packageUris": [upload(large, f"packages/{job_id}.tar.gz", source_package(program))],
        "pythonModule": "trainer.task",
        "jobDir": f"gs://{BUCKET}/{job_id}",
        "hyperparameters": hyperparameters,
    }
    jobs: Any = built(large, "ml", "v1").projects().jobs()
    body = {"jobId": job_id, "trainingInput": training}
    jobs.create(parent=f"projects/{PROJECT}", body=body).execute()
    large.finish(ref(PROJECT, job_id), 900)
    job = jobs.get(name=f"projects/{PROJECT}/jobs/{job_id}").execute()
    assert job["state"] == "SUCCEEDED", job["errorMessage"]
    trials = job["trainingOutput"]["trials"]
    for trial in trials:
        place: Path = bucket(large) / job_id / trial["trialId"]
        final = trial["finalMetric"]
        assert final["objectiveValue"] == pytest.approx(float((place / "measured").read_text())), (
            json.dumps(job)
        )
        assert final["trainingStep"] == step
    assert [trial["hyperparameters"]["learning_rate"] for trial in trials] == ["0.01", "0.0001"]
