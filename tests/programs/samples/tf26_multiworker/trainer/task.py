import argparse
import json
import os

import numpy as np
import tensorflow as tf

NUM_EXAMPLES = 512


def _is_chief(task_type, task_id):
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    first_worker = task_type == "worker" and task_id == 0 and "chief" not in cluster
    return task_type in (None, "chief") or first_worker


def _get_temp_dir(dirpath, task_id):
    temp_dir = os.path.join(dirpath, "workertemp_" + str(task_id))
    tf.io.gfile.makedirs(temp_dir)
    return temp_dir


def write_filepath(filepath, task_type, task_id):
    dirpath = os.path.dirname(filepath)
    if not _is_chief(task_type, task_id):
        dirpath = _get_temp_dir(dirpath, task_id)
    return os.path.join(dirpath, os.path.basename(filepath))


def make_dataset(batch_size):
    rng = np.random.RandomState(3)
    x = rng.rand(NUM_EXAMPLES, 10).astype("float32")
    y = x.dot(rng.rand(10, 1)).astype("float32")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(batch_size)
    return dataset.with_options(options)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    task_type, task_id = resolver.task_type, resolver.task_id
    print("TF_CONFIG", json.loads(os.environ["TF_CONFIG"])["task"], task_type, task_id)
    print("replicas in sync:", strategy.num_replicas_in_sync)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(10,))])
        model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    batch = 32 * strategy.num_replicas_in_sync
    backup = tf.keras.callbacks.experimental.BackupAndRestore(os.path.join(args.job_dir, "backup"))
    model.fit(
        make_dataset(batch),
        epochs=args.epochs,
        steps_per_epoch=NUM_EXAMPLES // batch,
        callbacks=[backup],
        verbose=2,
    )
    path = write_filepath(os.path.join(args.job_dir, "keras-model"), task_type, task_id)
    model.save(path)
    if not _is_chief(task_type, task_id):
        tf.io.gfile.rmtree(os.path.dirname(path))


if __name__ == "__main__":
    main()
