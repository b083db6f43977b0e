"""Uploads TensorFlow's event files twice, then concurrent writes. Prints the data read back."""

import json
import os
import sys
import time

import tensorflow as tf
from google.cloud import aiplatform

logdir, transport = sys.argv[1], sys.argv[2]
variable = "TRAINSHED_ENDPOINT" if transport == "rest" else "TRAINSHED_GRPC_ENDPOINT"
aiplatform.init(
    project="trainshed", location="us-central1", api_endpoint=os.environ[variable], api_transport=transport
)


def write(steps, run):
    with tf.summary.create_file_writer(f"{logdir}/{run}").as_default():
        for step in steps:
            tf.summary.scalar("loss", 1.0 / step, step=step)
            tf.summary.histogram("weights", [1.0, 2.0, step], step=step)


board = aiplatform.Tensorboard.create(display_name=f"uploads over {transport}")
name = f"uploaded-{transport}"
where = {"tensorboard_id": board.name, "tensorboard_experiment_name": name, "logdir": logdir}
write((1, 2, 4), "train")
aiplatform.upload_tb_log(**where)
aiplatform.upload_tb_log(**where)
aiplatform.start_upload_tb_log(**where)
write((1, 8), "eval")


def read_back():
    seen = {}
    experiment = aiplatform.TensorboardExperiment(name, tensorboard_id=board.name)
    for run in aiplatform.TensorboardRun.list(tensorboard_experiment_name=experiment.resource_name):
        for series in aiplatform.TensorboardTimeSeries.list(tensorboard_run_name=run.resource_name):
            read = run.api_client.read_tensorboard_time_series_data(
                tensorboard_time_series=series.resource_name
            )
            kind = series.gca_resource.value_type.name
            values = [
                [value.step, value.scalar.value if kind == "SCALAR" else None]
                for value in read.time_series_data.values
            ]
            seen[f"{run.display_name} {series.gca_resource.display_name}"] = [kind, values]
    return seen


# The uploader polls every few seconds, does not report when it has sent, and does not flush at its end.
end = time.monotonic() + 120
while len(read_back().get("eval loss", ["", []])[1]) < 2 and time.monotonic() < end:
    time.sleep(1)
aiplatform.end_upload_tb_log()
prefix = board.gca_resource.blob_storage_path_prefix
print("SEEN " + json.dumps({**read_back(), "prefix": prefix}))
