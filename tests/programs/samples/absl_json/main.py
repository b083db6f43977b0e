import json
import os
import pickle
import sys
import time

from absl import app, flags, logging
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

FLAGS = flags.FLAGS
flags.DEFINE_integer("clusters", 4, "Number of clusters.", lower_bound=1)
flags.DEFINE_string("output_dir", None, "Where the model goes.")
flags.DEFINE_multi_string("tag", [], "Tags of this run.")
flags.DEFINE_enum("init", "k-means++", ["k-means++", "random"], "Initialization.")


def log(severity, message, **fields):
    entry = {"severity": severity, "message": message, "time": time.time(), **fields}
    print(json.dumps(entry), flush=True)


def main(argv):
    del argv
    logging.info("absl speaks")
    for name, value in sorted(os.environ.items()):
        if name.startswith(("AIP_", "CLOUD_ML_")):
            log("DEBUG", f"{name}={value}")
    points, _ = make_blobs(300, centers=FLAGS.clusters, random_state=0)
    model = KMeans(FLAGS.clusters, init=FLAGS.init, n_init=3, random_state=0).fit(points)
    log("INFO", "fitted", inertia=float(model.inertia_), tags=FLAGS.tag)
    log("WARNING", "this is only a test")
    output = FLAGS.output_dir or os.environ["AIP_MODEL_DIR"]
    output = output.replace("gs://", "/gcs/")
    os.makedirs(output, exist_ok=True)
    with open(os.path.join(output, "model.pkl"), "wb") as f:
        pickle.dump(model, f)
    print("done", file=sys.stderr)


if __name__ == "__main__":
    app.run(main)
