"""Programs by which nothing of the estimates was chosen: `held_out.py KIND`. They learn nothing: a step is a
pause."""

import argparse
import logging
import random
import time

from tqdm import tqdm, trange

chance = random.Random(310)


def step(seconds):
    time.sleep(seconds * chance.lognormvariate(0, 0.3))


def warm_validated(options):
    """A slow beginning, and a slow validation now and then."""
    bar = tqdm(total=600, desc="Training", unit="step")
    for done in range(1, 601):
        step(0.7 if done <= 6 else 0.09)
        bar.update(1)
        if done % 150 == 0:
            time.sleep(4)
            tqdm.write("val: 0.3")


def steps(options):
    for done in range(1, 701):
        step(0.1)
        if done % 25 == 0:
            print(f"step {done}/700: loss={3 / done:.4f} lr=0.001")


def nested(options):
    for _ in trange(9, desc="Epochs"):
        for _ in tqdm(range(60), desc="Train", leave=False):
            step(0.1)
        for _ in tqdm(range(20), desc="Val", leave=False):
            step(0.06)


def faster(options):
    """The first epochs fill a cache."""
    for epoch in range(1, 21):
        for _ in range(30):
            step(0.15 if epoch < 5 else 0.1)
        print(
            f"Epoch {epoch}/20, train loss: {1 / epoch:.3f}, val loss: {1.1 / epoch:.3f}, time: 3.1s"
        )


def resumed(options):
    """Goes on from the checkpoint of an earlier job."""
    logging.basicConfig(level=logging.INFO)
    logging.info("resuming from epoch 12 of the checkpoint")
    time.sleep(2)
    for epoch in range(13, 31):
        for batch in range(40):
            step(0.1)
            if batch % 10 == 0:
                logging.info("Epoch [%d/30] Step [%d/40] Loss: %.4f", epoch, batch + 1, 1 / epoch)
        time.sleep(0.5)
        logging.info("Epoch [%d/30] validation accuracy %.3f", epoch, 0.8)


def numbered(options):
    """How many epochs there are the command line says."""
    for epoch in range(options.epochs):
        for batch in range(50):
            step(0.1)
            if batch % 10 == 0:
                print(f"Train Epoch: {epoch} [{batch * 32}/1600 ({2 * batch}%)]\tLoss: 0.300000")
        step(2)
        print("Test: accuracy 0.800")


KINDS = {each.__name__: each for each in (warm_validated, steps, nested, faster, resumed, numbered)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    KINDS[options.kind](options)
