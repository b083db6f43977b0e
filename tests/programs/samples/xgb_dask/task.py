"""XGBoost by Dask over the replicas of one job: the primary is scheduler and client, the others are
workers."""

import argparse
import asyncio
import json
import os
import socket
import time

import dask.array as da
import dask.dataframe as dd
import xgboost as xgb
from dask.distributed import Client, Scheduler, Worker, wait
from xgboost import dask as dxgb

SCHEDULER_PORT = 8786


def cluster():
    spec = json.loads(os.environ["CLUSTER_SPEC"])
    chief = spec["cluster"]["workerpool0"][0].split(":")[0]
    workers = sum(len(hosts) for name, hosts in spec["cluster"].items() if name != "workerpool0")
    return spec["task"]["type"], int(spec["task"]["index"]), chief, workers


async def serve_worker(address):
    while True:
        try:
            worker = await Worker(address, nthreads=1, memory_limit=0, dashboard=False)
            break
        except OSError:
            await asyncio.sleep(0.5)
    await worker.finished()


async def train(args, workers):
    async with Scheduler(port=SCHEDULER_PORT, dashboard=False, host=socket.gethostname()) as scheduler:
        async with Client(scheduler.address, asynchronous=True) as client:
            print("dashboard", client.dashboard_link)
            await client.wait_for_workers(workers, timeout=120)
            frame = dd.read_csv(args.data, storage_options={"token": "google_default"})
            label = frame["price"]
            frame = frame.drop(columns="price")
            frame, label = client.persist([frame, label])
            await wait([frame, label])
            dtrain = await dxgb.DaskDMatrix(client, frame, label)
            output = await dxgb.train(
                client,
                {"tree_method": "hist", "objective": "reg:squarederror", "max_depth": 3},
                dtrain,
                num_boost_round=args.rounds,
                evals=[(dtrain, "train")],
            )
            print("history", output["history"]["train"]["rmse"][-1])
            return output["booster"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    role, index, chief, workers = cluster()
    print("I am", role, index, "of", workers + 1, "chief", chief)
    if role != "workerpool0":
        asyncio.run(serve_worker("tcp://{}:{}".format(chief, SCHEDULER_PORT)))
        return
    started = time.time()
    booster = asyncio.run(train(args, workers))
    print("trained in", round(time.time() - started, 1), "s")
    directory = os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/")
    os.makedirs(directory, exist_ok=True)
    booster.save_model(directory + "/model.json")


if __name__ == "__main__":
    main()
