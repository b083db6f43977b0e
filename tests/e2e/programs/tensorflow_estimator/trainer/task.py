"""A wide and deep estimator of TensorFlow 1.x: trained and evaluated from CSV files, exported, and loaded
again."""

import argparse

import tensorflow as tf

tf.logging.set_verbosity(tf.logging.INFO)

COLUMNS = ["age", "hours", "work", "income"]
DEFAULTS = [[0.0], [0.0], [""], [""]]
LABELS = ["<=50K", ">50K"]

age = tf.feature_column.numeric_column("age")
hours = tf.feature_column.numeric_column("hours", normalizer_fn=lambda x: (x - 35.0) / 15.0)
work = tf.feature_column.categorical_column_with_vocabulary_list("work", ["office", "farm"])
age_groups = tf.feature_column.bucketized_column(age, [25, 35, 45])
WIDE = [work, tf.feature_column.crossed_column([age_groups, work], hash_bucket_size=100)]
DEEP = [hours, tf.feature_column.indicator_column(work)]


def input_fn(pattern, epochs, batch_size=40, shuffle=True):
    def parse(rows):
        columns = tf.io.decode_csv(rows, record_defaults=DEFAULTS)
        features = dict(zip(COLUMNS, columns))
        return features, features.pop("income")

    dataset = tf.data.TextLineDataset(tf.io.gfile.glob(pattern))
    if shuffle:
        dataset = dataset.shuffle(1000)
    return dataset.repeat(epochs).batch(batch_size).map(parse).prefetch(1)


def serving_input_fn():
    rows = tf.placeholder(shape=[None], dtype=tf.string)
    columns = tf.io.decode_csv(rows, record_defaults=DEFAULTS[:-1])
    features = dict(zip(COLUMNS, columns))
    return tf.estimator.export.ServingInputReceiver(features, {"csv_row": rows})


parser = argparse.ArgumentParser()
parser.add_argument("--job-dir", required=True)
parser.add_argument("--train-files", required=True)
parser.add_argument("--eval-files", required=True)
parser.add_argument("--train-steps", type=int, default=200)
args = parser.parse_args()

estimator = tf.estimator.DNNLinearCombinedClassifier(
    linear_feature_columns=WIDE,
    dnn_feature_columns=DEEP,
    dnn_hidden_units=[16, 8],
    label_vocabulary=LABELS,
    config=tf.estimator.RunConfig(model_dir=args.job_dir, save_checkpoints_steps=100),
)
tf.estimator.train_and_evaluate(
    estimator,
    tf.estimator.TrainSpec(lambda: input_fn(args.train_files, None), max_steps=args.train_steps),
    tf.estimator.EvalSpec(
        lambda: input_fn(args.eval_files, 1, shuffle=False),
        steps=None,
        exporters=[tf.estimator.FinalExporter("census", serving_input_fn)],
        start_delay_secs=0,
        throttle_secs=0,
    ),
)
metrics = estimator.evaluate(lambda: input_fn(args.eval_files, 1, shuffle=False))
print(f"accuracy {metrics['accuracy']:.2f} after {metrics['global_step']} steps")

(path,) = tf.io.gfile.glob(args.job_dir + "/export/census/*")
with tf.Session(graph=tf.Graph()) as session:
    meta = tf.saved_model.loader.load(session, [tf.saved_model.tag_constants.SERVING], path)
    signature = meta.signature_def["predict"]
    rows = {signature.inputs["csv_row"].name: ["45,50,office", "20,20,farm"]}
    classes = session.run(signature.outputs["classes"].name, rows)
    print("predicted", [each[0].decode() for each in classes])
