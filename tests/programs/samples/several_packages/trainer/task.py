import argparse

import click
from google.cloud import storage
from joblib import dump
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge

from shared_lib import scoring


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--job-dir", required=True)
@click.option("--alpha", default=1.0)
@click.option("--verbose/--no-verbose", default=False)
def main(job_dir, alpha, verbose):
    X, y = load_diabetes(return_X_y=True)
    model = Ridge(alpha=alpha).fit(X, y)
    print("score", scoring.explained(model, X, y))
    dump(model, "model.joblib")
    bucket, _, path = job_dir.replace("gs://", "").partition("/")
    blob = storage.Client().get_bucket(bucket).blob(path + "/model.joblib")
    blob.upload_from_filename("model.joblib")
    print("saved to", blob.public_url)


if __name__ == "__main__":
    main()
