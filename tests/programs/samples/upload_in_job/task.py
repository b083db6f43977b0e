"""Trains, and registers the model by the SDK from inside the job."""

import argparse
import os

import joblib
from google.cloud import aiplatform, storage
from sklearn.datasets import load_breast_cancer
from sklearn.naive_bayes import GaussianNB

parser = argparse.ArgumentParser()
parser.add_argument("--project", required=True)
parser.add_argument("--location", required=True)
args = parser.parse_args()

X, y = load_breast_cancer(return_X_y=True)
model = GaussianNB().fit(X, y)
joblib.dump(model, "model.joblib")

model_dir = os.environ["AIP_MODEL_DIR"]
client = storage.Client(project=args.project)
storage.Blob.from_string(f"{model_dir}model.joblib", client=client).upload_from_filename(
    "model.joblib"
)

aiplatform.init(project=args.project, location=args.location)
registered = aiplatform.Model.upload(
    display_name="breast-cancer",
    artifact_uri=model_dir.rstrip("/"),
    serving_container_image_uri="us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest",
    sync=True,
)
print("registered", registered.resource_name)
