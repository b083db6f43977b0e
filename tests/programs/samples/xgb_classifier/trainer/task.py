import argparse
import logging
import os
from pathlib import Path

import hypertune
import pandas as pd
import xgboost as xgb
from google.cloud import storage
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

parser = argparse.ArgumentParser()
parser.add_argument("--model-dir", dest="model_dir", default=os.getenv("AIP_MODEL_DIR"), type=str)
parser.add_argument("--dataset-uri", dest="dataset_uri", required=True)
parser.add_argument("--boost-rounds", dest="rounds", default=20, type=int)
args = parser.parse_args()

logging.getLogger().setLevel(logging.INFO)


def get_data():
    logging.info("Downloading %s", args.dataset_uri)
    names = [f"c{i}" for i in range(14)] + ["label"]
    df = pd.read_csv(args.dataset_uri, names=names, skipinitialspace=True)
    y = (df.pop("label") == ">50K").astype(int)
    X = pd.get_dummies(df)
    X.columns = [str(i) for i in range(X.shape[1])]
    return train_test_split(X, y, test_size=0.2, random_state=7)


def train_model(X_train, X_test, y_train, y_test):
    model = xgb.XGBClassifier(n_estimators=args.rounds, max_depth=4, learning_rate=0.3, eval_metric="auc")
    model.fit(X_train, y_train, eval_set=[(X_test, y_test)], verbose=5)
    return model


X_train, X_test, y_train, y_test = get_data()
model = train_model(X_train, X_test, y_train, y_test)
auc = roc_auc_score(y_test, model.predict_proba(X_test)[:, 1])
logging.info("auc %.3f", auc)
hypertune.HyperTune().report_hyperparameter_tuning_metric("auc", auc)

# GCSFuse: the bucket is a directory
gs_prefix, gcsfuse_prefix = "gs://", "/gcs/"
if args.model_dir.startswith(gs_prefix):
    args.model_dir = args.model_dir.replace(gs_prefix, gcsfuse_prefix)
dirpath = Path(args.model_dir)
dirpath.mkdir(parents=True, exist_ok=True)
gcs_model_path = os.path.join(args.model_dir, "model.bst")
logging.info("Saving model artifacts to %s", gcs_model_path)
model.get_booster().save_model(gcs_model_path)
