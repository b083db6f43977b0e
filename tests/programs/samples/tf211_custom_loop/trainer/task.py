import argparse
import os
import time

import tensorflow as tf
import numpy as np
from tensorflow.python.client import device_lib

parser = argparse.ArgumentParser()
parser.add_argument("--lr", dest="lr", default=0.01, type=float, help="Learning rate.")
parser.add_argument("--epochs", dest="epochs", default=3, type=int, help="Number of epochs.")
parser.add_argument("--distribute", dest="distribute", type=str, default="single")
parser.add_argument("--data", required=True)
args = parser.parse_args()

print("DEVICES", device_lib.list_local_devices())
print("TensorFlow Version = {}".format(tf.__version__))
print("TF_CONFIG = {}".format(os.environ.get("TF_CONFIG", "Not found")))

if args.distribute == "single":
    if tf.config.list_physical_devices("GPU"):
        strategy = tf.distribute.OneDeviceStrategy(device="/gpu:0")
    else:
        strategy = tf.distribute.OneDeviceStrategy(device="/cpu:0")
elif args.distribute == "mirror":
    strategy = tf.distribute.MirroredStrategy()
else:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("num_replicas_in_sync = {}".format(strategy.num_replicas_in_sync))

GLOBAL_BATCH = 32 * strategy.num_replicas_in_sync
raw = np.genfromtxt(tf.io.gfile.GFile(args.data), delimiter=",", skip_header=1, dtype="float32")
features = tf.keras.utils.normalize(raw[:, :-1], axis=0)
dataset = (
    tf.data.Dataset.from_tensor_slices((features, raw[:, -1:])).shuffle(1000).batch(GLOBAL_BATCH)
)

with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(16, activation="relu", input_shape=(8,)), tf.keras.layers.Dense(1)]
    )
    optimizer = tf.keras.optimizers.Adam(args.lr)
    loss_object = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.NONE)
    checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model)


def train_step(inputs):
    x, y = inputs
    with tf.GradientTape() as tape:
        loss = tf.nn.compute_average_loss(
            loss_object(y, model(x, training=True)), global_batch_size=GLOBAL_BATCH
        )
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def distributed_train_step(inputs):
    losses = strategy.run(train_step, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


writer = tf.summary.create_file_writer(os.environ["AIP_TENSORBOARD_LOG_DIR"])
manager = tf.train.CheckpointManager(checkpoint, os.environ["AIP_CHECKPOINT_DIR"], max_to_keep=2)
if manager.latest_checkpoint:
    checkpoint.restore(manager.latest_checkpoint)
for epoch in range(args.epochs):
    start, total = time.time(), 0.0
    for batch in strategy.experimental_distribute_dataset(dataset):
        total += distributed_train_step(batch)
    with writer.as_default():
        tf.summary.scalar("loss", total, step=epoch)
    print("epoch", epoch, "loss", float(total), "saved", manager.save(), time.time() - start, "s")
writer.close()
model.save(os.getenv("AIP_MODEL_DIR"))
