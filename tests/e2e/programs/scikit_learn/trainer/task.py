"""Trains a classifier of irises and exports it to Cloud Storage."""

import argparse
import logging
import os
from urllib.parse import urlparse

import joblib
from google.cloud import storage
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split

MODEL_FILE = "model.joblib"


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n-estimators", type=int, default=100)
    parser.add_argument("--max-depth", type=int, default=None)
    parser.add_argument("--model-dir", default=os.environ.get("AIP_MODEL_DIR", ""))
    return parser.parse_args()


def train(args):
    features, labels = load_iris(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        features, labels, test_size=0.2, random_state=7, stratify=labels
    )
    classifier = RandomForestClassifier(
        n_estimators=args.n_estimators, max_depth=args.max_depth, random_state=7
    )
    classifier.fit(x_train, y_train)
    logging.info("accuracy: %.3f", accuracy_score(y_test, classifier.predict(x_test)))
    return classifier


def export(classifier, model_dir):
    joblib.dump(classifier, MODEL_FILE)
    location = urlparse(model_dir)
    name = os.path.join(location.path.lstrip("/"), MODEL_FILE)
    storage.Client().bucket(location.netloc).blob(name).upload_from_filename(MODEL_FILE)
    logging.info("model exported to gs://%s/%s", location.netloc, name)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    arguments = get_args()
    export(train(arguments), arguments.model_dir)
