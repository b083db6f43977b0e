"""Programs that show bars of tqdm: `bars.py KIND`. They learn nothing: a step is a pause of about the
length that a step would take, so that the bars are what tqdm itself draws."""

import argparse
import random
import sys
import time
from pathlib import Path

from tqdm import tqdm, trange

chance = random.Random(7)


def step(seconds, spread=0.25):
    time.sleep(seconds * chance.lognormvariate(0, spread))


def single(options):
    for _ in tqdm(range(400)):
        step(0.1)


def warm_up(options):
    time.sleep(3)
    for done in trange(300, desc="train"):
        step(0.6 if done < 8 else 0.12)


def epochs(options):
    for epoch in range(8):
        for _ in tqdm(range(50), desc=f"Epoch {epoch + 1}/8"):
            step(0.1)


def nested(options):
    for _ in trange(10, desc="epochs"):
        for _ in trange(40, desc="steps", leave=False):
            step(0.1)


def validation(options):
    for epoch in range(1, 7):
        print(f"Epoch {epoch}/6", flush=True)
        for _ in tqdm(range(60), desc="train"):
            step(0.09)
        for _ in tqdm(range(20), desc="valid"):
            step(0.06)
        print(f"train loss {1 / epoch:.3f} valid loss {1.1 / epoch:.3f}", flush=True)


def slower(options):
    """The data get longer: from the middle on a step takes 1.3 times as long."""
    for done in trange(400, desc="train"):
        step(0.1 if done < 200 else 0.13)


def preparation(options):
    for _ in tqdm(range(1000), desc="Map", unit=" examples"):
        step(0.003)
    for _ in tqdm(range(60), desc="Loading weights"):
        step(0.02)
    for _ in tqdm(range(500), desc="Training"):
        step(0.08)


def unnamed(options):
    """Bars that do not say how many of them there will be; how many epochs there are the command line
    says."""
    for epoch in range(options.epochs):
        for _ in tqdm(range(45), desc=f"Epoch {epoch}"):
            step(0.1)


def restart(options):
    """Dies in the middle, and goes on from its checkpoint."""
    checkpoint = Path(options.state)
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    time.sleep(2)
    for now in tqdm(range(done, 400), initial=done, total=400, desc="train"):
        step(0.1)
        if now % 50 == 49:
            checkpoint.write_text(str(now + 1))
        if now == 170 and not done:
            sys.exit(75)


KINDS = {
    each.__name__: each
    for each in (single, warm_up, epochs, nested, validation, slower, preparation, unnamed, restart)
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--state", default="")
    options = parser.parse_args()
    KINDS[options.kind](options)
