"""Programs that count as well-known training programs do, in lines of their kind: `formats.py KIND`. They
learn nothing: a step is a pause."""

import argparse
import random
import time

from tqdm import tqdm, trange

chance = random.Random(27)


def step(seconds, spread=0.25):
    time.sleep(seconds * chance.lognormvariate(0, spread))


def brackets(options):
    """An epoch and a batch, each in brackets; a test after each epoch."""
    for epoch in range(options.epochs):
        for batch in range(80):
            step(0.09)
            if batch % 10 == 0:
                print(
                    f"Epoch: [{epoch}][{batch:3d}/80]\tTime  0.090 ( 0.091)\tLoss 2.1e+00 (2.2e+00)"
                )
        for batch in range(20):
            time.sleep(0.07)
            if batch % 10 == 0:
                print(f"Test: [{batch:3d}/20]\tTime  0.070 ( 0.071)\tLoss 1.9e+00 (2.0e+00)")


def pairs(options):
    """No word says what is counted."""
    time.sleep(1.5)
    for epoch in range(options.epochs):
        for batch in range(90):
            step(0.09)
            if batch % 10 == 0:
                print(f"[{epoch}/{options.epochs}][{batch}/90]\tLoss_D: 0.4000\tLoss_G: 3.1000")


def padded(options):
    """Numbers in columns; the first step compiles."""
    time.sleep(3)
    for done in range(1, 101):
        step(2.0 if done == 1 else 0.35)
        if done % 5 == 0:
            print(
                f" iteration {done:8d}/{100:8d} | consumed samples: {done * 512:12d} | lm loss: 4.2E+00"
            )


def settings(options):
    """How many iterations there are is a setting, and each line says how long it will still take."""
    total = int(options.rest[options.rest.index("SOLVER.MAX_ITER") + 1])
    began = time.monotonic()
    for done in range(total):
        step(0.09)
        if done % 20 == 19:
            left = int((time.monotonic() - began) / (done + 1) * (total - done - 1))
            print(
                f"eta: 0:{left // 60:02d}:{left % 60:02d}  iter: {done}  total_loss: 1.203  lr: 0.00025"
            )


def folds(options):
    for _ in trange(4, desc="fold"):
        for _ in trange(3, desc="epoch", leave=False, position=1):
            for _ in tqdm(range(30), desc="batch", leave=False, position=2):
                step(0.1)


KINDS = {each.__name__: each for each in (brackets, pairs, padded, settings, folds)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("rest", nargs="*")
    options = parser.parse_args()
    KINDS[options.kind](options)
