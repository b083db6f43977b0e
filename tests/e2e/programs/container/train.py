"""Linear regression without libraries, as the entry point of an image."""

import argparse
import json
import os
import random


def mounted(uri):
    return uri.replace("gs://", "/gcs/", 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    args = parser.parse_args()

    rng = random.Random(3)
    slope = intercept = 0.0
    for _ in range(args.steps):
        x = rng.uniform(-1, 1)
        error = slope * x + intercept - (3 * x - 1)
        slope -= args.learning_rate * error * x
        intercept -= args.learning_rate * error
    print(json.dumps({"severity": "NOTICE", "message": f"y = {slope:.2f} x + {intercept:.2f}"}))

    for name, file in (
        ("AIP_MODEL_DIR", "model.json"),
        ("AIP_CHECKPOINT_DIR", "last.json"),
        ("AIP_TENSORBOARD_LOG_DIR", "events.json"),
    ):
        directory = mounted(os.environ[name])
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, file), "w") as stream:
            json.dump({"slope": slope, "intercept": intercept}, stream)


if __name__ == "__main__":
    main()
