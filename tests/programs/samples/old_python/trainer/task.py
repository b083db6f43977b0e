# -*- coding: utf-8 -*-
from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import argparse
import logging
import os
import sys

import hypertune
import joblib
import numpy as np
from sklearn import ensemble
from sklearn import model_selection

from trainer import util


def _train_and_evaluate(estimator, dataset, output_dir):
    x_all, y_all = dataset.drop(columns=["price"]), dataset["price"]
    x_train, x_val, y_train, y_val = model_selection.train_test_split(
        x_all, y_all, test_size=0.25, random_state=42
    )
    estimator.fit(x_train, y_train)
    scores = model_selection.cross_val_score(estimator, x_val, y_val, cv=3)
    logging.info("Scores: %s", scores)
    util.dump_object(estimator, output_dir, joblib.dump)
    hpt = hypertune.HyperTune()
    hpt.report_hyperparameter_tuning_metric("my_metric_tag", np.mean(scores), 1000)


def run_experiment(arguments):
    dataset = util.read_df_from_gcs(arguments.input)
    estimator = ensemble.RandomForestRegressor(
        n_estimators=arguments.n_estimators, max_depth=arguments.max_depth, random_state=0
    )
    _train_and_evaluate(estimator, dataset, arguments.job_dir)


def _parse_args(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", type=str, required=True)
    parser.add_argument("--job-dir", type=str, default=os.environ.get("AIP_MODEL_DIR"))
    parser.add_argument("--log-level", type=str, default="INFO")
    parser.add_argument("--n-estimators", type=int, default=10)
    parser.add_argument("--max-depth", type=int, default=3)
    return parser.parse_args(argv)


def main():
    arguments = _parse_args(sys.argv[1:])
    logging.basicConfig(level=arguments.log_level)
    run_experiment(arguments)


if __name__ == "__main__":
    main()
