import argparse
import json
import os

import tensorflow as tf

COLUMNS = ["sepal_length", "sepal_width", "petal_length", "petal_width"]


def input_fn(path, epochs, batch_size):
    dataset = tf.data.experimental.make_csv_dataset(
        path, batch_size, label_name="species", num_epochs=epochs, shuffle_seed=0
    )
    return dataset


def my_metric(labels, predictions):
    return {"iris_accuracy": tf.metrics.accuracy(labels, predictions["class_ids"][:, 0])}


def main(args):
    trial = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("trial", "")
    output_dir = args.job_dir
    if trial and not output_dir.rstrip("/").endswith(trial):
        output_dir = os.path.join(output_dir, trial)
    columns = [tf.feature_column.numeric_column(name) for name in COLUMNS]
    estimator = tf.estimator.DNNClassifier(
        hidden_units=[args.first_layer, args.second_layer],
        feature_columns=columns,
        n_classes=3,
        optimizer=tf.train.AdamOptimizer(args.learning_rate),
        model_dir=output_dir,
    )
    estimator = tf.contrib.estimator.add_metrics(estimator, my_metric)
    estimator.train(lambda: input_fn(args.data, None, 16), max_steps=args.steps)
    print(estimator.evaluate(lambda: input_fn(args.data, 1, 50)))
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(
        tf.feature_column.make_parse_example_spec(columns)
    )
    print(estimator.export_saved_model(os.path.join(output_dir, "export"), receiver))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--first-layer", type=int, default=10)
    parser.add_argument("--second-layer", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    main(parser.parse_args())
