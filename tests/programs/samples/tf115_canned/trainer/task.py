from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import argparse
import json
import os

import tensorflow as tf
from tensorflow.contrib.training.python.training import hparam

from trainer import model


def train_and_maybe_evaluate(hparams):
    def train_input():
        return model.input_fn(hparams.train_files, hparams.num_epochs, True, hparams.batch_size)

    def eval_input():
        return model.input_fn(hparams.eval_files, 1, False, hparams.batch_size)

    train_spec = tf.estimator.TrainSpec(train_input, max_steps=hparams.train_steps)
    exporter = tf.estimator.FinalExporter("census", model.SERVING_FUNCTIONS[hparams.export_format])
    eval_spec = tf.estimator.EvalSpec(
        eval_input,
        steps=hparams.eval_steps,
        exporters=[exporter],
        name="census-eval",
        start_delay_secs=1,
        throttle_secs=1,
    )
    run_config = tf.estimator.RunConfig(
        session_config=_get_session_config_from_env_var(), save_checkpoints_steps=50
    )
    run_config = run_config.replace(model_dir=hparams.job_dir)
    print("Model dir %s" % run_config.model_dir)
    estimator = model.build_estimator(
        embedding_size=hparams.embedding_size,
        hidden_units=[
            max(2, int(hparams.first_layer_size * hparams.scale_factor**i)) for i in range(hparams.num_layers)
        ],
        config=run_config,
    )
    tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)


def _get_session_config_from_env_var():
    """A worker asks only the parameter servers and itself."""
    tf_config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    if "task" in tf_config and "type" in tf_config["task"] and "index" in tf_config["task"]:
        if tf_config["task"]["type"] == "master":
            return tf.ConfigProto(device_filters=["/job:ps", "/job:master"])
        if tf_config["task"]["type"] == "worker":
            return tf.ConfigProto(
                device_filters=["/job:ps", "/job:worker/task:%d" % tf_config["task"]["index"]]
            )
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-files", nargs="+", required=True)
    parser.add_argument("--eval-files", nargs="+", required=True)
    parser.add_argument("--job-dir", default="/tmp/census-estimator")
    parser.add_argument("--num-epochs", type=int)
    parser.add_argument("--batch-size", type=int, default=40)
    parser.add_argument("--embedding-size", default=8, type=int)
    parser.add_argument("--first-layer-size", default=32, type=int)
    parser.add_argument("--num-layers", default=2, type=int)
    parser.add_argument("--scale-factor", default=0.7, type=float)
    parser.add_argument("--train-steps", default=100, type=int)
    parser.add_argument("--eval-steps", default=5, type=int)
    parser.add_argument("--export-format", choices=["JSON", "CSV"], default="JSON")
    parser.add_argument("--verbosity", choices=["DEBUG", "ERROR", "FATAL", "INFO", "WARN"], default="INFO")
    args, _ = parser.parse_known_args()

    tf.compat.v1.logging.set_verbosity(args.verbosity)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1"
    hparams = hparam.HParams(**args.__dict__)
    train_and_maybe_evaluate(hparams)
