import argparse
import os
import sys

import dask.array as da
import joblib
import lightgbm as lgb
import numpy as np
from distributed import Client
from sklearn.datasets import make_regression

from trainer.cluster import ClusterSpec, run


def train(client, rows):
    X, y = make_regression(n_samples=rows, n_features=8, noise=0.1, random_state=5)
    dX, dy = da.from_array(X, chunks=(rows // 4, 8)), da.from_array(y, chunks=rows // 4)
    model = lgb.DaskLGBMRegressor(client=client, n_estimators=20, num_leaves=7)
    model.fit(dX, dy)
    local = model.to_local()
    print("r2", local.score(X, y))
    return local


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1000)
    args = parser.parse_args()
    spec = ClusterSpec()
    if not spec.is_chief:
        sys.exit(
            run(
                "distributed.cli.dask_worker",
                spec.scheduler_address,
                "--nthreads=1",
                "--no-dashboard",
            ).wait()
        )
    scheduler = run("distributed.cli.dask_scheduler", "--port=8786", "--no-dashboard")
    worker = run(
        "distributed.cli.dask_worker", spec.scheduler_address, "--nthreads=1", "--no-dashboard"
    )
    try:
        with Client(spec.scheduler_address, timeout="120s") as client:
            client.wait_for_workers(2, timeout=120)
            print(client)
            model = train(client, args.rows)
    finally:
        worker.terminate()
        scheduler.terminate()
    path = os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/")
    os.makedirs(path, exist_ok=True)
    joblib.dump(model, os.path.join(path, "model.joblib"))


if __name__ == "__main__":
    main()
