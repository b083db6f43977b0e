"""An own model_fn, trained by a master, workers and a parameter server."""

from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import argparse
import json
import logging
import os

import tensorflow as tf


def parse(record):
    parsed = tf.io.parse_single_example(
        record,
        {"image": tf.io.FixedLenFeature([64], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)},
    )
    return {"image": parsed["image"]}, parsed["label"]


def make_input_fn(pattern, batch_size, mode):
    def _input_fn():
        files = tf.data.Dataset.list_files(pattern)
        dataset = files.interleave(tf.data.TFRecordDataset, cycle_length=2)
        dataset = dataset.map(parse)
        if mode == tf.estimator.ModeKeys.TRAIN:
            dataset = dataset.shuffle(500).repeat()
        return dataset.batch(batch_size).prefetch(1)

    return _input_fn


def model_fn(features, labels, mode, params):
    net = features["image"]
    for units in params["hidden_units"]:
        net = tf.layers.dense(net, units, activation=tf.nn.relu)
    logits = tf.layers.dense(net, 10)
    classes = tf.argmax(logits, axis=1)
    predictions = {"class": classes, "probabilities": tf.nn.softmax(logits)}
    if mode == tf.estimator.ModeKeys.PREDICT:
        export = {"serving_default": tf.estimator.export.PredictOutput(predictions)}
        return tf.estimator.EstimatorSpec(mode, predictions=predictions, export_outputs=export)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    accuracy = tf.metrics.accuracy(labels, classes, name="acc_op")
    tf.summary.scalar("accuracy", accuracy[1])
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
    optimizer = tf.train.AdamOptimizer(params["learning_rate"])
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def serving_input_fn():
    images = tf.placeholder(tf.float32, [None, 64], name="image")
    return tf.estimator.export.ServingInputReceiver({"image": images}, {"image": images})


def main(_):
    print("TF_CONFIG", json.loads(os.environ.get("TF_CONFIG", "{}")).get("task"))
    params = {"hidden_units": [int(n) for n in FLAGS.hidden_units.split(",")], "learning_rate": FLAGS.lr}
    config = tf.estimator.RunConfig(
        model_dir=FLAGS.job_dir, save_checkpoints_secs=10, save_summary_steps=50, tf_random_seed=1
    )
    estimator = tf.estimator.Estimator(model_fn, params=params, config=config)
    train_spec = tf.estimator.TrainSpec(
        make_input_fn(FLAGS.train_data, FLAGS.batch_size, tf.estimator.ModeKeys.TRAIN),
        max_steps=FLAGS.max_steps,
    )
    eval_spec = tf.estimator.EvalSpec(
        make_input_fn(FLAGS.train_data, FLAGS.batch_size, tf.estimator.ModeKeys.EVAL),
        steps=None,
        exporters=[tf.estimator.LatestExporter("exporter", serving_input_fn)],
        start_delay_secs=5,
        throttle_secs=10,
    )
    tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir", required=True)
    parser.add_argument("--train-data", required=True)
    parser.add_argument("--hidden-units", default="32,16")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-steps", type=int, default=300)
    FLAGS, unparsed = parser.parse_known_args()
    logging.getLogger("tensorflow").setLevel(logging.INFO)
    tf.app.run(main=main, argv=[__file__] + unparsed)
