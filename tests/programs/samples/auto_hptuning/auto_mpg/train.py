"""Fuel consumption by a regularized regression; the service chooses the regularization."""

from __future__ import absolute_import, division, print_function

import argparse
import os
import sys

import hypertune
import numpy as np
import pandas as pd
from joblib import dump
from sklearn.linear_model import ElasticNet
from sklearn.metrics import mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.pipeline import Pipeline
from six.moves import urllib


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir", help="GCS location to write checkpoints and export models")
    parser.add_argument("--data-file", required=True)
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--l1-ratio", type=float, default=0.5)
    parser.add_argument("--degree", type=int, default=1)
    args = parser.parse_args(argv)

    assert urllib.parse.urlparse(args.job_dir).scheme == "gs"
    table = pd.read_csv(args.data_file)
    x_train, x_test, y_train, y_test = train_test_split(
        table.drop("price", axis=1).values, table["price"].values, random_state=3
    )
    model = Pipeline(
        [
            ("poly", PolynomialFeatures(args.degree)),
            ("scale", StandardScaler()),
            ("net", ElasticNet(alpha=args.alpha, l1_ratio=args.l1_ratio)),
        ]
    )
    model.fit(x_train, y_train)
    rmse = np.sqrt(mean_squared_error(y_test, model.predict(x_test)))
    print("trial", os.environ.get("CLOUD_ML_TRIAL_ID"), "rmse", rmse)

    hpt = hypertune.HyperTune()
    hpt.report_hyperparameter_tuning_metric(
        hyperparameter_metric_tag="rmse", metric_value=rmse, global_step=1000
    )

    local_path = os.path.join("/tmp", "model.joblib")
    dump(model, local_path)
    os.system("gsutil cp {} {}".format(local_path, os.path.join(args.job_dir, "model.joblib")))


if __name__ == "__main__":
    main(sys.argv[1:])
