import argparse
import os

import hypertune
import tensorflow as tf
import tensorflow_io  # noqa: F401


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning_rate", required=True, type=float, help="learning rate")
    parser.add_argument("--momentum", required=True, type=float, help="SGD momentum value")
    parser.add_argument("--units", required=True, type=int, help="units in last hidden layer")
    parser.add_argument("--epochs", required=False, type=int, default=2)
    return parser.parse_args()


class HypertuneCallback(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        hypertune.HyperTune().report_hyperparameter_tuning_metric(
            hyperparameter_metric_tag="val_accuracy",
            metric_value=logs["val_accuracy"],
            global_step=epoch,
        )


def main():
    args = get_args()
    rng = tf.random.Generator.from_seed(1)
    images = rng.uniform([200, 12, 12, 1])
    labels = tf.cast(tf.reduce_mean(images, [1, 2, 3]) > 0.5, tf.int32)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=(12, 12, 1)),
            tf.keras.layers.Dense(args.units, activation="relu"),
            tf.keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile(
        loss="sparse_categorical_crossentropy",
        optimizer=tf.keras.optimizers.SGD(learning_rate=args.learning_rate, momentum=args.momentum),
        metrics=["accuracy"],
    )
    model.fit(
        images, labels, validation_split=0.25, epochs=args.epochs, callbacks=[HypertuneCallback()]
    )
    model.save(os.environ["AIP_MODEL_DIR"])


if __name__ == "__main__":
    main()
