import datetime
import os
import subprocess
import sys

import pandas as pd
import xgboost as xgb

BUCKET = sys.argv[sys.argv.index("--bucket") + 1]

# Download the data
data_dir = "gs://{}/iris/data".format(BUCKET)
subprocess.check_call(["gsutil", "-m", "cp", os.path.join(data_dir, "*.csv"), "."], stderr=sys.stdout)
print(sorted(os.listdir(".")))

# Load it into pandas, then into XGBoost's own matrix
iris = pd.read_csv("./iris.csv")
target = iris.pop("species")
dtrain = xgb.DMatrix(iris, label=target)
bst = xgb.train({"objective": "multi:softmax", "num_class": 3}, dtrain, 20)

model_filename = "model.bst"
bst.save_model(model_filename)

gcs_model_path = os.path.join(
    "gs://", BUCKET, datetime.datetime.now().strftime("iris_%Y%m%d_%H%M%S"), model_filename
)
subprocess.check_call(["gsutil", "cp", model_filename, gcs_model_path], stderr=sys.stdout)
