import logging
import os
import sys

import hypertune
import joblib
from google.cloud import storage
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import classification_report
from tabulate import tabulate

logging.basicConfig(stream=sys.stdout, level=logging.INFO)

iris = datasets.load_iris(as_frame=True)
classifier = LogisticRegression(max_iter=500)
classifier.fit(iris.data, iris.target)
logging.info("\n%s", classification_report(iris.target, classifier.predict(iris.data)))

artifact_filename = "model.joblib"
logging.info(tabulate(zip(iris.feature_names, classifier.coef_[0]), headers=["feature", "weight"]))
joblib.dump(classifier, artifact_filename)

# The directory that the service gives, and the file in it
model_directory = os.environ["AIP_MODEL_DIR"]
storage_path = os.path.join(model_directory, artifact_filename)
blob = storage.blob.Blob.from_string(storage_path, client=storage.Client())
blob.upload_from_filename(artifact_filename)
logging.info("model exported to %s", storage_path)
