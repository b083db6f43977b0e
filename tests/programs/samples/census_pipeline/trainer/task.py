"""Predicts who earns more than 50K with a scikit-learn pipeline."""

import argparse
import datetime
import os
import subprocess

import joblib
import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from trainer import metadata


def build_pipeline(n_estimators, max_depth):
    numeric = Pipeline([("impute", SimpleImputer(strategy="median")), ("scale", StandardScaler())])
    categorical = Pipeline(
        [
            ("impute", SimpleImputer(strategy="constant", fill_value="?")),
            ("encode", OneHotEncoder(handle_unknown="ignore")),
        ]
    )
    columns = ColumnTransformer(
        [("numeric", numeric, metadata.NUMERIC), ("categorical", categorical, metadata.CATEGORICAL)]
    )
    forest = RandomForestClassifier(n_estimators=n_estimators, max_depth=max_depth, random_state=7)
    return Pipeline([("columns", columns), ("forest", forest)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True, help="gs:// path of the training data")
    parser.add_argument("--job-dir", required=True, help="where the model goes")
    parser.add_argument("--n-estimators", default=100, type=int)
    parser.add_argument("--max-depth", default=None, type=int)
    args, unknown = parser.parse_known_args()
    print("unknown arguments: {}".format(unknown))

    frame = pd.read_csv(args.input, names=metadata.COLUMNS, skipinitialspace=True, na_values="?")
    target = np.where(frame.pop(metadata.LABEL) == ">50K", 1, 0)
    train_x, test_x, train_y, test_y = train_test_split(frame, target, random_state=1)

    model = build_pipeline(args.n_estimators, args.max_depth)
    model.fit(train_x, train_y)
    print("accuracy: {:.3f}".format(accuracy_score(test_y, model.predict(test_x))))

    file_name = "model.joblib"
    joblib.dump(model, file_name)
    stamp = datetime.datetime.now().strftime("census_%Y%m%d_%H%M%S")
    target_path = os.path.join(args.job_dir, stamp, file_name)
    subprocess.check_call(["gsutil", "cp", file_name, target_path])


if __name__ == "__main__":
    main()
