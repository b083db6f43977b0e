import argparse
import os

import pandas as pd
import tensorflow as tf


def get_args():
    args_parser = argparse.ArgumentParser()
    args_parser.add_argument("--job-dir", type=str, required=True)
    args_parser.add_argument("--train-file", type=str, required=True)
    args_parser.add_argument("--num-epochs", type=float, default=5)
    args_parser.add_argument("--batch-size", default=32, type=int)
    args_parser.add_argument("--learning-rate", default=0.01, type=float)
    args_parser.add_argument("--verbosity", default="INFO")
    return args_parser.parse_args()


def load(path):
    with tf.io.gfile.GFile(path) as f:
        df = pd.read_csv(f)
    target = df.pop("price")
    df = (df - df.mean()) / df.std()
    return df, target


def create_model(input_dim, learning_rate):
    Dense = tf.keras.layers.Dense
    model = tf.keras.Sequential(
        [
            Dense(16, activation="relu", kernel_initializer="uniform", input_shape=(input_dim,)),
            Dense(8, activation="relu"),
            Dense(1),
        ]
    )
    model.compile(loss="mse", optimizer=tf.keras.optimizers.RMSprop(lr=learning_rate), metrics=["mae"])
    return model


def train_and_evaluate(args):
    x, y = load(args.train_file)
    dataset = tf.data.Dataset.from_tensor_slices((x.values, y.values)).shuffle(100).batch(args.batch_size)
    model = create_model(x.shape[1], args.learning_rate)
    model.summary()
    lr_decay = tf.keras.callbacks.LearningRateScheduler(
        lambda epoch: args.learning_rate + 0.02 * (0.5 ** (1 + epoch)), verbose=True
    )
    tensorboard = tf.keras.callbacks.TensorBoard(
        os.path.join(args.job_dir, "keras_tensorboard"), histogram_freq=1
    )
    checkpoints = tf.keras.callbacks.ModelCheckpoint(
        os.path.join(args.job_dir, "checkpoints", "cp-{epoch:03d}.ckpt"), save_weights_only=True
    )
    model.fit(dataset, epochs=int(args.num_epochs), callbacks=[lr_decay, tensorboard, checkpoints])
    export_path = os.path.join(args.job_dir, "keras_export")
    tf.keras.models.save_model(model, export_path)
    print("Model exported to: {}".format(export_path))
    print(tf.io.gfile.listdir(args.job_dir))


if __name__ == "__main__":
    args = get_args()
    tf.compat.v1.logging.set_verbosity(args.verbosity)
    train_and_evaluate(args)
