"""What strangers' programs print, in forms that nobody announced: made up, with times that were not measured.

Real recordings (`recordings`) say how exact estimates are; these say in how many ways people tell how far
they are. Each is what came through a pipe: its command line, (seconds, line) in their order, and its end.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

Said = Iterator[tuple[float, str]]


@dataclass(frozen=True)
class Stranger:
    """A program: `lines(step)` says its lines; `step(seconds)` is the moment after so much more work."""

    lines: Callable[[Callable[[float], float]], Said]
    command: tuple[str, ...] = ()

    def run(self) -> tuple[list[tuple[float, str]], float]:
        """What it prints, and when it ends. Each unit takes about as long as the others, give or take 8 %."""
        chance, now = random.Random(7), 1.0

        def step(seconds: float) -> float:
            nonlocal now
            now += max(0.2 * seconds, chance.gauss(seconds, 0.08 * seconds))
            return now

        return list(self.lines(step)), now


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def _rich(step: Callable[[float], float]) -> Said:
    for n in range(1, 301):
        width = 40 * n // 300
        bar = f"\x1b[38;2;249;38;114m{'━' * width}\x1b[0m\x1b[38;5;237m╺{'━' * (40 - width)}\x1b[0m"
        rest = _clock((300 - n) * 0.4) if n > 3 else "-:--:--"
        yield (
            step(0.4),
            f"\r\x1b[2KWorking... {bar} \x1b[35m{n // 3:3d}%\x1b[0m \x1b[36m{rest}\x1b[0m",
        )


def _alive(step: Callable[[float], float]) -> Said:
    for n in range(7, 2001, 7):
        at, bar = step(0.35), "█" * (40 * n // 2000)
        yield at, f"on 0: |{bar:<40}| ▃▅▇ {n}/2000 [{n // 20}%] in {at:.0f}s (20.1/s)"


def _epochs_with_rest(step: Callable[[float], float]) -> Said:
    for n in range(1, 26):
        text = f"Epoch {n:03d} | loss {2 / n:.4f} | acc {0.5 + n / 60:.3f} | 5.0s/epoch"
        yield step(5), f"{text} | ETA {_clock((25 - n) * 5)}"


def _brackets(step: Callable[[float], float]) -> Said:
    for n in range(5, 401, 5):
        yield step(1.5), f"[{n}/400] lr=0.001 ppl={90 - n / 10:.2f} tok/s=9301"


def _detector(step: Callable[[float], float]) -> Said:
    yield (
        step(1),
        "train: Scanning labels... 4 images, 0 corrupt: 100%|██████████| 4/4 [00:00<00:00]",
    )
    for n in range(1, 31):
        yield step(0.01), "      Epoch    GPU_mem   box_loss   cls_loss  Instances       Size"
        for b in range(1, 17):
            bar = f"{b * 100 // 16:3d}%|{'█' * (b * 10 // 16)}| {b}/16 [00:01<00:02,  4.0it/s]"
            yield (
                step(0.25),
                f"      {n}/30         0G      1.214      1.567         22        640: {bar}",
            )
        yield (
            step(0.8),
            "                 Class     Images  Instances      mAP50): 100%|███| 2/2 [00:00<00:00]",
        )
        yield step(0.01), "                   all          4         17      0.574"


def _table(step: Callable[[float], float]) -> Said:
    yield step(0.1), "epoch     train_loss  valid_loss  accuracy  time    "
    for n in range(12):
        yield (
            step(8),
            f"{n:<9} {0.9 / (n + 1):.6f}    {0.8 / (n + 1):.6f}    {0.6 + n / 40:.6f}  00:08     ",
        )


def _bars_of_epochs(step: Callable[[float], float]) -> Said:
    for n in range(1, 7):
        for b in range(51):
            bar = f"|{'█' * b:<50}| {2 * b:.2f}% [{b}/50 00:04<00:06 0.9034]"
            yield step(0.2), f"\rEpoch {n}/6 : {bar}"
        yield step(0.01), f"{n - 1}         0.812345    0.532211    00:10"


def _trees(step: Callable[[float], float]) -> Said:
    yield (
        step(1),
        "[LightGBM] [Info] Number of data points in the train set: 100000, used features: 10",
    )
    for n in range(10, 501, 10):
        yield step(2), f"[{n}]\ttraining's l2: {1 / n:.4f}\tvalid_1's l2: {1.2 / n:.4f}"


def _logged_steps(step: Callable[[float], float]) -> Said:
    yield (
        step(10),
        "I1122 12:00:11.123456 140 train.py:60] Initial compilation, this takes some minutes...",
    )
    for n in range(0, 3000, 50):
        yield (
            step(2),
            f"I1122 12:00:12.123456 140 train.py:88] train step: {n}, loss: 0.3, accuracy: 71.20",
        )


def _samples_of_epochs(step: Callable[[float], float]) -> Said:
    for n in range(1, 6):
        yield step(0.01), f"Epoch {n}"
        yield step(0.01), "-------------------------------"
        for b in range(10):
            yield step(1.5), f"loss: {2.3 / n:>7f}  [{(100 * b + 1) * 64:>5d}/60000]"
        yield step(2), f" Accuracy: {60 + n * 3}.1%, Avg loss: 0.8"


def _processed(step: Callable[[float], float]) -> Said:
    for n in range(800, 50_001, 800):
        yield step(0.9), f"12:00:00 INFO worker: processed {n} of 50000 samples ({n / 500:.1f}%)"


def _percent(step: Callable[[float], float]) -> Said:
    for n in range(1, 101):
        yield step(0.8), f"Progress: {n}% complete"


def _hashes(step: Callable[[float], float]) -> Said:
    for n in range(1, 121):
        bar = f"[{'#' * (36 * n // 120):-<36}]"
        yield step(0.5), f"\rTraining  {bar}  {100 * n // 120:3d}%  {_clock((120 - n) * 0.5)}"


def _boxes(step: Callable[[float], float]) -> Said:
    for n in range(1, 50):
        at = step(2)
        yield at, "| time/              |          |"
        yield at, "|    fps             | 1024     |"
        yield at, f"|    iterations      | {n:<8} |"
        yield at, f"|    total_timesteps | {n * 2048:<8} |"


def _nested_brackets(step: Callable[[float], float]) -> Said:
    for n in range(1, 11):
        for b in range(10, 61, 10):
            rest = _clock(((10 - n) * 60 + 60 - b) * 0.2 + (11 - n) * 2)
            yield (
                step(2),
                f"mm - INFO - Epoch(train) [{n}][{b}/60]  lr: 1.0e-02  eta: {rest}  loss: 0.5",
            )
        yield step(2), f"mm - INFO - Epoch(val)  [{n}][5/5]    accuracy/top1: 60.0  time: 0.02"


def _minutes(step: Callable[[float], float]) -> Said:
    for n in range(1, 41):
        rest = f"about {(40 - n) * 0.5:.1f} minutes remaining"
        yield step(30), f"iteration {n}: reward {n * 1.5:.1f} (elapsed {n / 2:.1f} minutes, {rest})"


def _folds(step: Callable[[float], float]) -> Said:
    yield step(0.1), "Fitting 5 folds for each of 40 candidates, totalling 200 fits"
    for n in range(1, 41):
        for fold in range(1, 6):
            yield (
                step(1.3),
                f"[CV {fold}/5; {n}/40] END C={n}, gamma=0.1;, score=0.9{fold} total time=   1.3s",
            )


def _thousands(step: Callable[[float], float]) -> Said:
    for n in range(250, 12_001, 250):
        yield step(1.1), f"Ep {n:,}/12,000  return={n / 100:.1f}  eps=0.1"


def _of_in_words(step: Callable[[float], float]) -> Said:
    for n in range(3, 451, 3):
        bar = f"|{'#' * (30 * n // 450):<30}|"
        yield (
            step(0.6),
            f"\r{100 * n // 450:3d}% ({n} of 450) {bar} Elapsed Time: 0:00:12 ETA:   0:00:40",
        )


def _records(step: Callable[[float], float]) -> Said:
    for n in range(10, 801, 10):
        yield step(1), f'{{"step": {n}, "total_steps": 800, "loss": {3 / n:.3f}, "lr": 0.001}}'


STRANGERS: Final = {
    "rich": Stranger(_rich),
    "alive": Stranger(_alive),
    "epochs with rest": Stranger(_epochs_with_rest),
    "brackets": Stranger(_brackets),
    "detector": Stranger(_detector),
    "table": Stranger(_table, ("--epochs", "12")),
    "bars of epochs": Stranger(_bars_of_epochs),
    "trees": Stranger(_trees, ("--num_iterations=500",)),
    "logged steps": Stranger(_logged_steps, ("--config.num_train_steps=3000",)),
    "samples of epochs": Stranger(_samples_of_epochs, ("--epochs", "5")),
    "processed": Stranger(_processed),
    "percent": Stranger(_percent),
    "hashes": Stranger(_hashes),
    "boxes": Stranger(_boxes, ("--total-timesteps", "100000")),
    "nested brackets": Stranger(_nested_brackets),
    "minutes": Stranger(_minutes),
    "folds": Stranger(_folds),
    "thousands": Stranger(_thousands),
    "of in words": Stranger(_of_in_words),
    "records": Stranger(_records),
}
