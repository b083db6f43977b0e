import argparse
import csv
import io
import os

import cloudpickle
import tabulate
import yaml
from google.cloud import storage
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline, make_union

from sentiment import features


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--blob", default="data/reviews.csv")
    parser.add_argument("--alpha", type=float, default=1e-3)
    args = parser.parse_args()

    client = storage.Client()
    text = client.bucket(args.bucket).blob(args.blob).download_as_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    reviews, labels = [row["text"] for row in rows], [int(row["label"]) for row in rows]

    model = make_pipeline(
        make_union(features.LexiconFeatures(), TfidfVectorizer()),
        SGDClassifier(alpha=args.alpha, random_state=0),
    )
    model.fit(reviews, labels)
    print(tabulate.tabulate([["accuracy", model.score(reviews, labels)]], headers=["", "value"]))
    print(yaml.safe_dump(vars(args)))

    model_dir = os.environ["AIP_MODEL_DIR"]
    blob = storage.Blob.from_string(model_dir.rstrip("/") + "/model.pkl", client=client)
    with blob.open("wb") as f:
        cloudpickle.dump(model, f)


if __name__ == "__main__":
    main()
