import argparse
import os
import tempfile

import apache_beam as beam
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, schema_utils

FEATURES = {"text": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
METADATA = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(FEATURES))


def preprocessing_fn(inputs):
    words = tft.compute_and_apply_vocabulary(tf.strings.split(inputs["text"]).to_sparse(), top_k=50)

    return {"words": words, "label": inputs["label"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--reviews", required=True)
    args = parser.parse_args()
    with tf.io.gfile.GFile(args.reviews) as f:
        rows = [line.strip().rsplit(",", 1) for line in list(f)[1:]]
    data = [{"text": text, "label": int(label)} for text, label in rows]
    output = os.environ["AIP_CHECKPOINT_DIR"] + "transform"
    with beam.Pipeline() as pipeline, tft_beam.Context(temp_dir=tempfile.mkdtemp()):
        raw = (pipeline | beam.Create(data), METADATA)
        (transformed, _), transform_fn = raw | tft_beam.AnalyzeAndTransformDataset(preprocessing_fn)
        transform_fn | tft_beam.WriteTransformFn(output)
    transform = tft.TFTransformOutput(output)
    layer = transform.transform_features_layer()
    vocabulary = transform.vocabulary_size_by_name("vocab_compute_and_apply_vocabulary_vocabulary")
    print("vocabulary", vocabulary)

    texts = tf.constant([row["text"] for row in data])
    labels = tf.constant([row["label"] for row in data], dtype=tf.int64)
    words = layer({"text": texts, "label": labels})["words"]
    bags = tf.reduce_sum(tf.one_hot(tf.sparse.to_dense(words, default_value=-1), 51), axis=1)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, activation="sigmoid", input_shape=(51,))])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    model.fit(bags, labels, epochs=3, verbose=2)
    model.save(os.environ["AIP_MODEL_DIR"])


if __name__ == "__main__":
    main()
