import argparse
import os

import lightgbm as lgb
import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

parser = argparse.ArgumentParser()
parser.add_argument("--training_data_uri", default=os.environ.get("AIP_TRAINING_DATA_URI"))
parser.add_argument("--num_leaves", default=15, type=int)
parser.add_argument("--learning_rate", default=0.1, type=float)
args = parser.parse_args()
print(args)

data = pd.read_csv(args.training_data_uri)
train, valid = train_test_split(data, test_size=0.2, random_state=42)
features = [c for c in data.columns if c != "price"]
lgb_train = lgb.Dataset(train[features], train["price"])
lgb_eval = lgb.Dataset(valid[features], valid["price"], reference=lgb_train)

gbm = lgb.train(
    {"objective": "regression", "num_leaves": args.num_leaves, "learning_rate": args.learning_rate},
    lgb_train,
    num_boost_round=40,
    valid_sets=[lgb_eval],
    callbacks=[lgb.early_stopping(stopping_rounds=5), lgb.log_evaluation(10)],
)
error = np.abs(gbm.predict(valid[features]) - valid["price"]).mean()
print("mean absolute error", error)

output = os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/", 1)
os.makedirs(output, exist_ok=True)
gbm.save_model(os.path.join(output, "model.txt"))
