from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import multiprocessing

import six
import tensorflow as tf

CSV_COLUMNS = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "gender",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
    "income_bracket",
]
CSV_COLUMN_DEFAULTS = [[0], [""], [0], [""], [0], [""], [""], [""], [""], [""], [0], [0], [0], [""], [""]]
LABEL_COLUMN = "income_bracket"
LABELS = [" <=50K", " >50K"]
UNUSED_COLUMNS = {"fnlwgt", "race", LABEL_COLUMN}

INPUT_COLUMNS = [
    tf.feature_column.categorical_column_with_vocabulary_list("gender", [" Female", " Male"]),
    tf.feature_column.categorical_column_with_hash_bucket("education", 16, dtype=tf.string),
    tf.feature_column.categorical_column_with_hash_bucket("occupation", 100, dtype=tf.string),
    tf.feature_column.categorical_column_with_hash_bucket("workclass", 100, dtype=tf.string),
    tf.feature_column.numeric_column("age"),
    tf.feature_column.numeric_column("education_num"),
    tf.feature_column.numeric_column("hours_per_week"),
    tf.feature_column.numeric_column("capital_gain"),
]


def build_estimator(config, embedding_size=4, hidden_units=None):
    gender, education, occupation, workclass, age, education_num, hours, gain = INPUT_COLUMNS
    age_buckets = tf.feature_column.bucketized_column(age, boundaries=[18, 25, 35, 45, 55, 65])
    wide_columns = [
        tf.feature_column.crossed_column(["education", "occupation"], hash_bucket_size=int(1e3)),
        tf.feature_column.crossed_column([age_buckets, "gender"], hash_bucket_size=int(1e3)),
        gender,
        education,
        age_buckets,
    ]
    deep_columns = [
        tf.feature_column.indicator_column(workclass),
        tf.feature_column.indicator_column(gender),
        tf.feature_column.embedding_column(occupation, dimension=embedding_size),
        age,
        education_num,
        hours,
        gain,
    ]
    return tf.estimator.DNNLinearCombinedClassifier(
        config=config,
        linear_feature_columns=wide_columns,
        dnn_feature_columns=deep_columns,
        dnn_hidden_units=hidden_units or [32, 16],
    )


def parse_csv(rows_string_tensor):
    columns = tf.io.decode_csv(rows_string_tensor, record_defaults=CSV_COLUMN_DEFAULTS)
    features = dict(zip(CSV_COLUMNS, columns))
    for column in UNUSED_COLUMNS - {LABEL_COLUMN}:
        features.pop(column)
    label = features.pop(LABEL_COLUMN)
    for key, value in six.iteritems(features):
        features[key] = tf.expand_dims(value, -1)
    return features, tf.cast(tf.equal(label, LABELS[1]), tf.int32)


def input_fn(filenames, num_epochs=None, shuffle=True, batch_size=40):
    files = tf.gfile.Glob(filenames)
    dataset = tf.data.TextLineDataset(files)
    dataset = dataset.map(parse_csv, num_parallel_calls=multiprocessing.cpu_count())
    if shuffle:
        dataset = dataset.shuffle(buffer_size=batch_size * 10)
    dataset = dataset.repeat(num_epochs).batch(batch_size)
    return dataset.make_one_shot_iterator().get_next()


def csv_serving_input_fn():
    csv_row = tf.compat.v1.placeholder(shape=[None], dtype=tf.string)
    features, _ = parse_csv(csv_row)
    return tf.estimator.export.ServingInputReceiver(features, {"csv_row": csv_row})


def json_serving_input_fn():
    inputs = {}
    for feat in INPUT_COLUMNS:
        inputs[feat.name] = tf.compat.v1.placeholder(shape=[None], dtype=feat.dtype)
    features = {key: tf.expand_dims(tensor, -1) for key, tensor in inputs.items()}
    return tf.estimator.export.ServingInputReceiver(features, inputs)


SERVING_FUNCTIONS = {"JSON": json_serving_input_fn, "CSV": csv_serving_input_fn}
