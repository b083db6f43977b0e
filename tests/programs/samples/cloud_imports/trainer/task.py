import argparse
import logging
import os
import pickle
import tempfile

import pandas as pd
from google.api_core.exceptions import NotFound
from google.cloud import aiplatform, bigquery, storage
from google.cloud import logging as cloud_logging
from sklearn.ensemble import HistGradientBoostingClassifier

PROJECT = os.environ.get("CLOUD_ML_PROJECT_ID")
REGION = os.environ.get("CLOUD_ML_REGION", "us-central1")


def load_data(source):
    if source.startswith("bq://"):
        table = bigquery.Client(project=PROJECT).get_table(source[len("bq://") :])
        return bigquery.Client(project=PROJECT).list_rows(table).to_dataframe()
    return pd.read_csv(source)


def export_model(model, model_dir):
    bucket_name, _, prefix = model_dir.replace("gs://", "").partition("/")
    bucket = storage.Client(project=PROJECT).get_bucket(bucket_name)
    with tempfile.NamedTemporaryFile() as f:
        pickle.dump(model, f)
        f.flush()
        bucket.blob(prefix + "model.pkl").upload_from_filename(f.name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--source")
    args = parser.parse_args()
    cloud_logging.Client(project=PROJECT).setup_logging(log_level=logging.INFO)
    logging.info("training from %s", args.source)
    aiplatform.init(project=PROJECT, location=REGION)
    try:
        print("models:", [model.display_name for model in aiplatform.Model.list()])
    except NotFound as error:
        print("no models", error)
    df = load_data(args.source)
    model = HistGradientBoostingClassifier(max_iter=10).fit(df.drop(columns="species"), df["species"])
    export_model(model, os.environ["AIP_MODEL_DIR"])
    logging.info("model exported")


if __name__ == "__main__":
    main()
