# Distributed training over two machines

import argparse
import os

import tensorflow as tf
import tensorflow_datasets as tfds  # noqa: F401

tf.get_logger().setLevel("INFO")
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", dest="epochs", default=2, type=int)
parser.add_argument("--steps", dest="steps", default=10, type=int)
parser.add_argument("--distribute", dest="distribute", type=str, default="multi")
parser.add_argument("--pattern", type=str)
args = parser.parse_args()

strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("num_replicas_in_sync = {}".format(strategy.num_replicas_in_sync))


def make_datasets(pattern):
    def parse(record):
        spec = {
            "image": tf.io.FixedLenFeature([64], tf.float32),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }
        parsed = tf.io.parse_single_example(record, spec)
        return parsed["image"], parsed["label"]

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return (
        tf.data.TFRecordDataset(tf.io.gfile.glob(pattern))
        .map(parse)
        .shuffle(200)
        .repeat()
        .batch(16 * strategy.num_replicas_in_sync)
        .with_options(options)
    )


with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(32, activation="relu", input_shape=(64,)), tf.keras.layers.Dense(10)]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.01),
        metrics=["accuracy"],
    )
model.fit(make_datasets(args.pattern), epochs=args.epochs, steps_per_epoch=args.steps)

resolver = strategy.cluster_resolver
chief = resolver.task_type in (None, "chief") or (
    resolver.task_type == "worker"
    and resolver.task_id == 0
    and "chief" not in resolver.cluster_spec().jobs
)
MODEL_DIR = os.environ["AIP_MODEL_DIR"]
if not chief:
    MODEL_DIR = "/tmp/worker_%d" % resolver.task_id
model.save(MODEL_DIR)
