"""Functional Keras model over TFRecord files in Cloud Storage."""

from absl import app, flags, logging
import hypertune
import tensorflow as tf

FLAGS = flags.FLAGS
flags.DEFINE_string("job-dir", "", "AI Platform passes it")
flags.DEFINE_string("pattern", None, "TFRecord files", required=True)
flags.DEFINE_integer("epochs", 3, "")


class ReportToTuner(tf.keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.hpt = hypertune.HyperTune()

    def on_epoch_end(self, epoch, logs=None):
        self.hpt.report_hyperparameter_tuning_metric(
            hyperparameter_metric_tag="epoch_accuracy", metric_value=logs["accuracy"], global_step=epoch
        )


def dataset(pattern):
    spec = {"image": tf.io.FixedLenFeature([64], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(batch):
        parsed = tf.io.parse_example(batch, spec)
        return tf.reshape(parsed["image"], [-1, 8, 8, 1]), parsed["label"]

    files = tf.data.Dataset.list_files(pattern, shuffle=False)
    records = tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE)
    return records.cache().shuffle(1000).batch(32).map(parse).prefetch(tf.data.AUTOTUNE)


def build():
    inputs = tf.keras.Input((8, 8, 1), name="image")
    x = tf.keras.layers.Conv2D(8, 3, padding="same", activation="relu")(inputs)
    y = tf.keras.layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    x = tf.keras.layers.add([x, y])
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    x = tf.keras.layers.Dropout(0.1)(x)
    outputs = tf.keras.layers.Dense(10, activation="softmax")(x)
    model = tf.keras.Model(inputs, outputs)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main(argv):
    job_dir = FLAGS["job-dir"].value
    logging.info("tensorflow %s, job dir %s", tf.__version__, job_dir)
    model = build()
    callbacks = [
        tf.keras.callbacks.TensorBoard(f"{job_dir}/logs"),
        tf.keras.callbacks.ModelCheckpoint(
            f"{job_dir}/checkpoints/best", monitor="loss", save_best_only=True
        ),
        ReportToTuner(),
    ]
    history = model.fit(dataset(FLAGS.pattern), epochs=FLAGS.epochs, callbacks=callbacks, verbose=2)
    logging.info("history %s", history.history)
    model.save(f"{job_dir}/model")


if __name__ == "__main__":
    app.run(main)
