"""Boosted trees on the diabetes data; the booster is saved below the /gcs mount."""

import argparse
import os

import numpy as np
import xgboost as xgb
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

parser = argparse.ArgumentParser()
parser.add_argument("--learning-rate", type=float, default=0.1)
parser.add_argument("--boost-rounds", type=int, default=50)
args = parser.parse_args()

x, y = load_diabetes(return_X_y=True)
x_train, x_val, y_train, y_val = train_test_split(x, y, test_size=0.25, random_state=1)
dtrain = xgb.DMatrix(x_train, label=y_train)
dval = xgb.DMatrix(x_val, label=y_val)

booster = xgb.train(
    {"objective": "reg:squarederror", "eta": args.learning_rate, "max_depth": 3, "seed": 1},
    dtrain,
    num_boost_round=args.boost_rounds,
    evals=[(dtrain, "train"), (dval, "validation")],
    verbose_eval=10,
)
error = float(np.sqrt(np.mean((booster.predict(dval) - y_val) ** 2)))
baseline = float(np.sqrt(np.mean((np.mean(y_train) - y_val) ** 2)))
print(f"rmse {error:.1f}, of the mean {baseline:.1f}")

model_dir = os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/", 1)
os.makedirs(model_dir, exist_ok=True)
booster.save_model(os.path.join(model_dir, "model.bst"))
