"""How far a program is, and how long it will still take, read from what the public's programs print."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from tests.progress_corpus.record import RECORDINGS, RESTARTED
from trainshed.core.progress.estimate import Estimate, Tracker
from trainshed.core.progress.lines import counts, last_state, totals_of
from trainshed.core.progress.remaining import remaining_text


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
        ("iteration: 9/9", 9, 9, "iteration 9 of 9"),
        ("Train Epoch: 2 [6400/60000 (11%)]\tLoss: 0.09", 2, 0, "epoch 2"),
        ("{'loss': '0.5', 'grad_norm': 1.0, 'epoch': '1.33'}", 1.33, 0, "epoch 1.33"),
        ('{"severity": "INFO", "message": "epoch 2/8 loss 0.3"}', 2, 8, "epoch 2 of 8"),
        (
            "\x1b[1m12/50\x1b[0m \x1b[32m━━━\x1b[0m 4s 121ms/step - loss: 0.3\x08\x08",
            12,
            50,
            "12 of 50",
        ),
        ("50/50 - 5s - 104ms/step - loss: 0.0712", 50, 50, "50 of 50"),
        ("12/50 [======>.......] - ETA: 4s - loss: 0.3", 12, 50, "12 of 50"),
        (" iteration       10/     100 | consumed samples: 5120", 10, 100, "iteration 10 of 100"),
        ("Episode 16/120\treward 8.0", 16, 120, "episode 16 of 120"),
        ("[3/5][20/90]\tLoss_D: 0.4\tLoss_G: 3.1", 3, 5, "epoch 3 of 5"),
        ("[07/20] train_loss: 0.31 val_acc: 0.88", 7, 20, "7 of 20"),
        ("[12]\ttrain-rmse:0.4", 12, 0, "round 12"),
        ("[5]\ttraining's l2: 0.2", 5, 0, "round 5"),
        ('{"step": 10, "total_steps": 800, "loss": 0.3}', 10, 800, "step 10 of 800"),
        ("global_step=120 loss=0.3", 120, 0, "step 120"),
        ("|    total_timesteps | 2048     |", 2048, 0, "timestep 2048"),
        ("Epoch(train)  [3][ 20/100]  lr: 0.001", 3, 0, "epoch 3"),
    ],
)
def test_lines_that_tell(line: str, done: float, total: float, text: str) -> None:
    first = counts(last_state(line))[0]
    assert (first.done, first.total, first.text) == (pytest.approx(done), total, text)


@pytest.mark.parametrize(
    "line",
    [
        *(
            "loss 0.1/0.2",
            "2026/11/22 step",
            "epoch",
            "step 1/0",
            "100%|",
            "",
            "see /usr/lib/epochs/3",
        ),
        *("[2/10] Compiling model.cc", "[2026-11-22 09:00:00] loss: 0.3", "[1] 4242"),
    ],
)
def test_lines_that_tell_nothing(line: str) -> None:
    assert counts(line) == ()


def test_a_line_of_any_length_costs_little() -> None:
    assert counts(last_state("epoch " * 1_000_000)) == ()


@pytest.mark.parametrize(
    ("arguments", "totals"),
    [
        (["python", "task.py", "--epochs", "3"], {"epoch": 3}),
        (["--num_train_epochs=5.0", "--max-steps", "500"], {"epoch": 5, "step": 500}),
        (["--trainer.max_epochs=7"], {"epoch": 7}),
        (["--epochs", "many", "--max_steps", "-1", "--epoch"], {}),
        (["--warmup-steps", "20", "--save_steps=100"], {}),
        (["trainer.max_epochs=10", "SOLVER.MAX_ITER", "400"], {"epoch": 10, "iter": 400}),
        (["--n_estimators", "80"], {"round": 80}),
        (["--num_boost_round=60"], {"round": 60}),
        (["epoch", "3", "steps", "4"], {}),
        (["--total-timesteps", "100000"], {"timestep": 100000}),
    ],
)
def test_the_command_line_says_how_much_there_is(
    arguments: list[str], totals: dict[str, float]
) -> None:
    assert totals_of(arguments) == totals


@dataclass(frozen=True)
class Recording:
    """What a program printed, and when it ended."""

    command: list[str]
    lines: list[tuple[float, str]]
    end: float

    @staticmethod
    def read(path: Path) -> "Recording":
        first, *rest, last = path.read_text("utf-8").splitlines()
        lines = [(float(at), text) for at, _, text in (line.partition(" ") for line in rest)]
        return Recording(first.split()[1:], lines, float(last.split()[-1]))

    def estimate(self, share: float) -> Estimate | None:
        """What could be known after a share of the run."""
        now = share * self.end
        tracker = Tracker(0.0, totals_of(self.command))
        for at, text in self.lines:
            if at > now:
                break
            if text == RESTARTED:
                tracker.restarted()
            else:
                tracker.feed(at, text)
        return tracker.estimate(now)


RECORDED = {path.stem: Recording.read(path) for path in sorted(RECORDINGS.glob("*.txt"))}
HELD_OUT = {name: RECORDED[name] for name in RECORDED if name.startswith("held_out")}
"""Nothing of the estimates was chosen by these."""
CORPUS = {name: RECORDED[name] for name in RECORDED if name not in HELD_OUT}


def errors(share: float, recordings: Mapping[str, Recording]) -> Iterator[tuple[float, bool]]:
    """Of each recording: by what part of the true rest the estimate is wrong, and whether that is within its
    margin. Where nothing is said all of it is wrong."""
    for recording in recordings.values():
        found, true = recording.estimate(share), recording.end * (1 - share)
        if found is None or found.remaining is None or found.margin is None:
            yield 1.0, False
            continue
        wrong = abs(found.remaining - true)
        yield wrong / true, wrong <= found.margin


def test_after_a_fifth_of_a_run_the_rest_is_known_to_a_tenth() -> None:
    """spec/program#progress: the median over real runs of tqdm, Keras, Lightning, Hugging Face's Trainer
    and plain lines; with several bars, validation, warm-up, changing speed and restarts among them."""
    assert len(CORPUS) >= 25
    assert median(error for error, _ in errors(0.2, CORPUS)) <= 0.10
    later = [each for share in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8) for each in errors(share, CORPUS)]
    assert median(error for error, _ in later) <= 0.06
    within = sum(is_within for _, is_within in later) / len(later)
    assert within >= 0.8, f"the margin holds in {within:.0%} only"


def test_so_it_is_on_programs_by_which_nothing_was_chosen() -> None:
    """spec/program#progress."""
    assert len(HELD_OUT) >= 10
    assert median(error for error, _ in errors(0.2, HELD_OUT)) <= 0.10
    later = [each for share in (0.3, 0.5, 0.7) for each in errors(share, HELD_OUT)]
    assert median(error for error, _ in later) <= 0.10


@pytest.mark.parametrize("name", sorted(CORPUS))
def test_no_estimate_is_absurd_once_half_of_a_run_is_over(name: str) -> None:
    for share in (0.5, 0.6, 0.7):
        found = CORPUS[name].estimate(share)
        assert found is not None and found.remaining is not None, share
        true = CORPUS[name].end * (1 - share)
        assert 0.5 * true <= found.remaining <= 1.6 * true, share


def test_what_was_only_seen_complete_is_not_the_whole() -> None:
    """As a validation of five batches that is told once in an epoch."""
    found = told((0, "100%|███| 4/4 [00:00<00:00]"), (5, "lr 0.1"), now=9)
    assert (found.done, found.remaining) == (None, None)


def told(*lines: tuple[float, str], now: float, totals: dict[str, float] | None = None) -> Estimate:
    tracker = Tracker(0.0, totals)
    for at, text in lines:
        tracker.feed(at, text)
    found = tracker.estimate(now)
    assert found is not None
    return found


def test_epochs_count_before_the_steps_within_them() -> None:
    found = told((0, "Epoch 2/5"), (1, " 10%|█ | 1/10"), (9, " 90%|█████████ | 9/10"), now=9)
    assert found.text == "epoch 2 of 5"
    assert found.done == pytest.approx((1 + 0.9) / 5)


def test_bars_that_begin_again_and_again_tell_nothing_of_the_whole() -> None:
    """Nobody says how many epochs there will be: better no estimate than one of this bar."""
    bars = [
        (epoch * 10 + done, f"train: {done * 10}%|█ | {done}/10")
        for epoch in range(4)
        for done in range(1, 11)
    ]
    found = told(*bars[:-3], now=37)
    assert (found.remaining, found.text) == (None, "7 of 10")


def test_a_bar_of_an_epoch_that_is_named_before_it_tells_nothing_of_the_whole() -> None:
    found = told((0, "Epoch 0:  10%|█ | 1/10"), (8, "Epoch 0:  90%|███ | 9/10"), now=8)
    assert (found.remaining, found.text) == (None, "9 of 10")


def test_bars_within_tell_of_the_first_unit() -> None:
    lines = [
        (0.0, "folds:   0%|  | 0/4"),
        (10.0, "epochs:  50%|██ | 1/2"),
        (10.0, "steps:   0%| | 0/5"),
    ]
    found = told(*lines, now=10)
    assert found.remaining == pytest.approx(70)
    assert found.done == pytest.approx(0.5 / 4)


def test_what_comes_before_the_work_is_not_the_work() -> None:
    found = told((0, "Map:  50%|███ | 500/1000"), (5, "Map:  90%|███ | 900/1000"), now=5)
    assert (found.remaining, found.text) == (None, "900 of 1000")


def test_numbers_that_begin_with_zero_are_one_behind() -> None:
    lines = [(float(2 * n + 2), f"epoch={n} loss=0.1") for n in range(5)]
    assert told(*lines, now=10, totals={"epoch": 10}).remaining == pytest.approx(10, abs=0.1)


def test_a_program_that_says_it_is_through_is_through() -> None:
    found = told((1, "step 1/2"), (2, "step 2/2"), now=9)
    assert (found.done, found.remaining) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("remaining", "margin", "text"),
    [
        (None, None, ""),
        (0.2, None, "nearly done"),
        (45.2, None, "about 45 s left"),
        (118.0, None, "about 120 s left"),
        (125.0, 30.0, "about 2 min left (± 30 s)"),
        (6840.0, 600.0, "about 110 min left (± 10 min)"),
        (9000.0, None, "about 2.5 h left"),
        (3 * 86400.0, None, "about 3.0 d left"),
    ],
)
def test_the_rest_in_words(remaining: float | None, margin: float | None, text: str) -> None:
    assert remaining_text(remaining, margin) == text
