import argparse
import os

import hypertune
import joblib
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--eta0", type=float, required=True)
parser.add_argument("--penalty", type=str, required=True)
parser.add_argument("--batch_size", type=int, required=True)
args = parser.parse_args()

X, y = load_digits(return_X_y=True)
X = X / 16.0
X_train, X_val, y_train, y_val = train_test_split(X, y, random_state=0)
model = SGDClassifier(
    loss="log_loss", penalty=args.penalty, eta0=args.eta0, learning_rate="constant", random_state=0
)
hpt = hypertune.HyperTune()
rng = np.random.default_rng(0)
for epoch in range(1, 4):
    for batch in np.array_split(rng.permutation(len(X_train)), len(X_train) // args.batch_size):
        model.partial_fit(X_train[batch], y_train[batch], classes=range(10))
    loss = log_loss(y_val, np.nan_to_num(model.predict_proba(X_val)), labels=range(10))
    print(f"epoch {epoch} val_loss {loss:.4f}")
    hpt.report_hyperparameter_tuning_metric(
        hyperparameter_metric_tag="val_loss", metric_value=loss, global_step=epoch
    )

model_dir = os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/")
os.makedirs(model_dir, exist_ok=True)
joblib.dump(model, f"{model_dir}/model.joblib")
