"""Tests of a program's progress and remaining time, as read from recorded output."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from trainshed.core.progress import Estimate, Tracker, counts, last_state, totals_of

RECORDINGS = sorted((Path(__file__).parents[1] / "progress_corpus").glob("*.txt"))
"""Recorded output of programs with each library: `# COMMAND`, lines `SECONDS TEXT`, `# end SECONDS`."""


@pytest.mark.parametrize(
    ("line", "done", "total", "text"),
    [
        (" 45%|████▌     | 450/1000 [00:12<00:15, 36.1it/s]", 450, 1000, "450 of 1000"),
        (" 12%|█▏ | 1.20M/9.60M [00:12<01:15, 96.1kB/s]", 1.2e6, 9.6e6, "1,200,000 of 9,600,000"),
        ("Epoch 3/10", 3, 10, "epoch 3 of 10"),
        ("Epoch [7/20], Step [100/600], Loss: 0.3", 7, 20, "epoch 7 of 20"),
        ("INFO step 120 of 1000 loss=2.1", 120, 1000, "step 120 of 1000"),
        ("Epoch 4:  50%|█████     | 5/10 [00:00<00:00, 9.9it/s, v_num=0]", 4, 0, "epoch 4"),
        ("old\r 10%|█ | 1/10\r 20%|██ | 2/10", 2, 10, "2 of 10"),
        ("Train Epoch: 2 [6400/60000 (11%)]\tLoss: 0.09", 2, 0, "epoch 2"),
        ("{'loss': '0.5', 'grad_norm': 1.0, 'epoch': '1.33'}", 1.33, 0, "epoch 1.33"),
        ("\x1b[1m12/50\x1b[0m \x1b[32m━━━\x1b[0m 4s - loss: 0.3\x08\x08", 12, 50, "12 of 50"),
        ("50/50 - 5s - 104ms/step - loss: 0.0712", 50, 50, "50 of 50"),
        ("[12]\ttrain-rmse:0.4", 12, 0, "round 12"),
        ("global_step=120 loss=0.3", 120, 0, "step 120"),
        ("|    total_timesteps | 2048     |", 2048, 0, "timestep 2048"),
    ],
)
def test_training_progress_is_read_from_a_log_line(line: str, done: float, total: float, text: str) -> None:
    first = counts(last_state(line))[0]
    assert (first.done, first.total, first.text) == (pytest.approx(done), total, text)


@pytest.mark.parametrize(
    "line", ["loss 0.1/0.2", "2026/11/22 step", "step 1/0", "100%|", "", "[2/10] Compiling model.cc"]
)
def test_log_line_without_progress_is_ignored(line: str) -> None:
    assert counts(line) == ()


@pytest.mark.parametrize(
    ("arguments", "totals"),
    [
        (["--num_train_epochs=5.0", "--max-steps", "500"], {"epoch": 5, "step": 500}),
        (["--epochs", "many", "--max_steps", "-1", "--epoch"], {}),
        (["--warmup-steps", "20", "epoch", "3"], {}),
        (["trainer.max_epochs=10", "SOLVER.MAX_ITER", "400"], {"epoch": 10, "iter": 400}),
        (["--n_estimators", "80"], {"round": 80}),
    ],
)
def test_total_number_of_epochs_or_steps_is_read_from_the_command_line(
    arguments: list[str], totals: dict[str, float]
) -> None:
    assert totals_of(arguments) == totals


def errors(share: float) -> Iterator[float]:
    """Return the relative errors of the estimated remaining time of each recording, after a share of the
    run."""
    for path in RECORDINGS:
        first, *lines, last = path.read_text("utf-8").splitlines()
        end = float(last.split()[-1])
        tracker = Tracker(0.0, totals_of(first.split()[1:]))
        for at, _, text in (line.partition(" ") for line in lines):
            if at == "#":
                tracker.record_restart()
            elif float(at) <= share * end:
                tracker.feed(float(at), text)
        estimate, rest = tracker.estimate(share * end), end * (1 - share)
        if estimate is None or estimate.remaining is None:
            yield 1.0
        else:
            yield abs(estimate.remaining - rest) / rest


def test_remaining_time_is_accurate_after_a_fifth_of_a_run() -> None:
    """spec/program#progress: The median error over runs of tqdm, Keras, Lightning, Hugging Face's Trainer,
    XGBoost and plain lines is a tenth. After half of a run, no estimate is absurd."""
    assert len(RECORDINGS) >= 12
    assert median(errors(0.2)) <= 0.10
    assert max(errors(0.5)) <= 0.6


def estimate_of(*lines: tuple[float, str], now: float) -> Estimate:
    tracker = Tracker(0.0)
    for at, text in lines:
        tracker.feed(at, text)
    estimate = tracker.estimate(now)
    assert estimate is not None
    return estimate


def test_progress_in_epochs_takes_precedence_over_progress_in_steps() -> None:
    lines = [(0, "Epoch 2/5"), (1, " 10%|█ | 1/10"), (9, " 90%|█████████ | 9/10")]
    estimate = estimate_of(*lines, now=9)
    assert estimate.text == "epoch 2 of 5"
    assert estimate.done == pytest.approx((1 + 0.9) / 5)


def test_repeated_progress_bars_without_an_epoch_number_give_no_remaining_time() -> None:
    """The number of epochs is unknown, so the remaining time of a single bar would be misleading."""
    bars = [
        (epoch * 10 + done, f"train: {done * 10}%|█ | {done}/10")
        for epoch in range(4)
        for done in range(1, 11)
    ]
    estimate = estimate_of(*bars[:-3], now=37)
    assert (estimate.remaining, estimate.text) == (None, "7 of 10")


def test_progress_bar_of_data_preparation_gives_no_remaining_time() -> None:
    lines = [(0, "Map:  50%|███ | 500/1000"), (5, "Map:  90%|███ | 900/1000")]
    estimate = estimate_of(*lines, now=5)
    assert (estimate.remaining, estimate.text) == (None, "900 of 1000")


def test_remaining_time_after_the_last_step_is_zero() -> None:
    estimate = estimate_of((1, "step 1/2"), (2, "step 2/2"), now=9)
    assert (estimate.done, estimate.remaining) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("lines", "after", "remaining", "idle"),
    [
        (["epoch 1/10 loss: 1"], 5.0, True, ""),
        # An epoch takes longer than the start did, so the remaining time is unknown.
        (["epoch 1/10 loss: 1"], 30.0, False, ""),
        (["epoch 1/10 loss: 1"], 400.0, False, "no progress for 6 min"),
        (["epoch 1/10"], 8000.0, False, "no progress for 2 h"),
        (["epoch 1"], 400.0, False, "no progress for 6 min"),
        (["epoch 9/10 loss: 1", "epoch 10/10 loss: 1"], 30.0, True, ""),
        (["epoch 9/10 loss: 1", "epoch 10/10 loss: 1"], 400.0, False, "no progress for 6 min"),
    ],
)
def test_estimate_of_a_hanging_program_shows_the_time_without_progress(
    lines: list[str], after: float, remaining: bool, idle: str
) -> None:
    tracker = Tracker(began=0.0)
    for second, line in enumerate(lines, 1):
        tracker.feed(second, line)
    estimate = tracker.estimate(len(lines) + after)
    assert estimate is not None
    assert (estimate.remaining is not None, estimate.text.partition(", ")[2]) == (remaining, idle)


def test_program_with_long_epochs_is_not_reported_as_hanging() -> None:
    tracker = Tracker(began=0.0)
    for epoch in range(1, 4):
        tracker.feed(epoch * 1800.0, f"epoch {epoch}/10 loss: 1")
    estimate = tracker.estimate(3 * 1800 + 1700)
    assert estimate is not None and estimate.text == "epoch 3 of 10"
    assert estimate.remaining is not None
    late = tracker.estimate(3 * 1800 + 3 * 1800)
    assert late is not None and late.text == "epoch 3 of 10, no progress for 90 min"
