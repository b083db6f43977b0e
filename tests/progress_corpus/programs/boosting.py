"""A program that grows trees by XGBoost, which tells its rounds: `boosting.py --num_round N`."""

import argparse
import random
import time

import numpy as np
import xgboost

parser = argparse.ArgumentParser()
parser.add_argument("--num_round", type=int, default=60)
rounds = parser.parse_args().num_round
chance = random.Random(1)


class Pause(xgboost.callback.TrainingCallback):
    def after_iteration(self, model, epoch, log):
        time.sleep(0.5 * chance.lognormvariate(0, 0.2))
        return False


inputs = np.random.default_rng(1).normal(size=(500, 5))
data = xgboost.DMatrix(inputs, inputs.sum(axis=1))
print("imported", flush=True)
told = xgboost.callback.EvaluationMonitor(period=2)
xgboost.train(
    {"nthread": 1}, data, rounds, [(data, "train")], callbacks=[Pause(), told], verbose_eval=False
)
