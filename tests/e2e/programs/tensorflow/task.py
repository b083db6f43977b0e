"""MultiWorkerMirroredStrategy with Keras, set up by TF_CONFIG; checkpoints and the model go to gs://
directories."""

import argparse
import json
import os

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()

strategy = tf.distribute.MultiWorkerMirroredStrategy()
resolver = strategy.cluster_resolver
task_type, task_id = resolver.task_type, resolver.task_id
has_chief = "chief" in resolver.cluster_spec().as_dict()
is_chief = task_type in (None, "chief") or (
    task_type == "worker" and task_id == 0 and not has_chief
)
print(f"{task_type} {task_id} of {strategy.num_replicas_in_sync}")


def temporary_unless_chief(directory):
    """Every worker has to write; only the chief's is kept."""
    if is_chief:
        return directory
    return os.path.join(directory, f"workertemp_{task_type}_{task_id}")


generator = np.random.default_rng(0)
x = generator.normal(size=(512, 3)).astype("float32")
y = (x @ np.array([[2.0], [-1.0], [0.5]]) + 1.0).astype("float32")
batch = 16 * strategy.num_replicas_in_sync
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(512, seed=1).repeat().batch(batch)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
dataset = dataset.with_options(options)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
    model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")

history = model.fit(dataset, epochs=args.epochs, steps_per_epoch=20, verbose=2 if is_chief else 0)
print(f"loss {history.history['loss'][-1]:.6f}")

checkpoint_dir = os.environ["AIP_CHECKPOINT_DIR"]
write_dir = temporary_unless_chief(checkpoint_dir)
checkpoint = tf.train.Checkpoint(model=model)
manager = tf.train.CheckpointManager(checkpoint, directory=write_dir, max_to_keep=1)
path = manager.save()
model.save(temporary_unless_chief(os.environ["AIP_MODEL_DIR"]))

if is_chief:
    with tf.io.gfile.GFile(os.path.join(checkpoint_dir, "history.json"), "w") as file:
        json.dump(history.history["loss"], file)
    print("kept", sorted(tf.io.gfile.listdir(checkpoint_dir)))
    assert tf.train.load_variable(
        path, "model/layer_with_weights-0/bias/.ATTRIBUTES/VARIABLE_VALUE"
    )
else:
    tf.io.gfile.rmtree(write_dir)
