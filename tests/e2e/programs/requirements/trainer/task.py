"""Reads a table from Cloud Storage with pandas, fits a model, writes results with gcsfs and with default
credentials."""

import argparse
import json

import gcsfs
import google.auth
import pandas as pd
from google.cloud import storage
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True, help="gs:// path of a CSV file")
parser.add_argument("--job-dir", required=True)
args = parser.parse_args()

table = pd.read_csv(args.data)
print(f"{len(table)} rows of {args.data}")
columns = make_column_transformer(
    (OneHotEncoder(handle_unknown="ignore"), ["work"]),
    (StandardScaler(), ["age", "hours"]),
)
model = make_pipeline(columns, LogisticRegression())
model.fit(table.drop(columns="income"), table["income"])
accuracy = model.score(table.drop(columns="income"), table["income"])
print(f"accuracy {accuracy:.2f}")

fs = gcsfs.GCSFileSystem()
job_dir = args.job_dir.rstrip("/")
with fs.open(f"{job_dir}/metrics.json", "w") as file:
    json.dump({"accuracy": accuracy}, file)
table.describe().to_csv(f"{job_dir}/summary.csv")
print("written", sorted(path.rpartition("/")[2] for path in fs.ls(job_dir)))

credentials, project = google.auth.default(
    scopes=["https://www.googleapis.com/auth/cloud-platform"]
)
client = storage.Client(project=project, credentials=credentials)
bucket, _, prefix = job_dir[len("gs://") :].partition("/")
print(
    "listed",
    [blob.name[len(prefix) + 1 :] for blob in client.list_blobs(bucket, prefix=prefix + "/")],
)
