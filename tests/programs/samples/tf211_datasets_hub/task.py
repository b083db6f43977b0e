import argparse
import os

import tensorflow as tf
import tensorflow_datasets as tfds
import tensorflow_hub as hub
from google.cloud import storage

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--reviews", required=True)
args = parser.parse_args()


class Reviews(tfds.core.GeneratorBasedBuilder):
    """Reviews with a label, from one CSV file."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(num_classes=2)}
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), supervised_keys=("text", "label")
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(args.reviews)}

    def _generate_examples(self, path):
        with tf.io.gfile.GFile(path) as f:
            next(f)
            for i, line in enumerate(f):
                text, label = line.strip().rsplit(",", 1)
                yield i, {"text": text, "label": int(label)}


builder = Reviews(data_dir=os.environ["AIP_CHECKPOINT_DIR"] + "tfds")
builder.download_and_prepare()
dataset = builder.as_dataset(split="train", as_supervised=True, shuffle_files=True).batch(16)


class Embedding(tf.Module):
    """Stand-in for a TensorFlow Hub layer: text to vector."""

    def __init__(self):
        super().__init__()
        self.table = tf.Variable(tf.random.stateless_normal([64, 8], seed=[1, 2]))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, text):
        words = tf.strings.split(text)
        ids = tf.ragged.map_flat_values(tf.strings.to_hash_bucket_fast, words, 64)
        return tf.reduce_mean(tf.nn.embedding_lookup(self.table, ids), axis=1)


module_dir = os.environ["AIP_CHECKPOINT_DIR"] + "module"
tf.saved_model.save(Embedding(), module_dir)
hub_layer = hub.KerasLayer(module_dir, input_shape=[], dtype=tf.string, trainable=False)
model = tf.keras.Sequential([hub_layer, tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(1)])
model.compile("adam", tf.keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(dataset, epochs=args.epochs)
model.save(os.environ["AIP_MODEL_DIR"])
