import argparse
import os

import hypertune
import joblib
from google.cloud import storage
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score


def save(model, model_dir):
    joblib.dump(model, "model.joblib")
    bucket_name, _, prefix = model_dir[len("gs://") :].partition("/")
    bucket = storage.Client().bucket(bucket_name)
    bucket.blob(prefix.rstrip("/") + "/model.joblib").upload_from_filename("model.joblib")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--n_estimators", type=int, default=10)
    parser.add_argument("--max_features", type=float, default=0.5)
    parser.add_argument("--criterion", default="gini")
    args = parser.parse_args()

    X, y = load_wine(return_X_y=True)
    model = RandomForestClassifier(
        n_estimators=args.n_estimators,
        max_features=args.max_features,
        criterion=args.criterion,
        random_state=0,
    )
    accuracy = cross_val_score(model, X, y, cv=3).mean()

    hpt = hypertune.HyperTune()
    hpt.report_hyperparameter_tuning_metric(
        hyperparameter_metric_tag="accuracy", metric_value=accuracy, global_step=1
    )
    save(model.fit(X, y), os.environ["AIP_MODEL_DIR"])
