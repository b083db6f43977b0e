"""Tests of reading metrics from the real output of frameworks (tests/progress_corpus)."""

import asyncio
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.jobs import job
from trainshed.api.calls.progress import list_progress_reader
from trainshed.core.printed_measures import Measures, read_measures, values_of
from trainshed.core.streams import StreamSource
from trainshed.store.logs.progress import Sample

RECORDINGS = Path(__file__).parents[1] / "progress_corpus"


def feed_lines(*lines: str, was_restarted: bool = False) -> Measures:
    measures = Measures(was_restarted=was_restarted)
    for at, line in enumerate(lines):
        measures.feed(at, line)
    return measures


def steps(measures: Measures) -> list[float]:
    [series] = measures.series
    return [point.step for point in series.points]


@pytest.mark.parametrize(
    ("name", "series"),
    [
        ("boosting_xgboost", [("rmse", "train", "epoch", 31, 60, 0.02813)]),
        (
            "keras_lines",
            [
                ("loss", "train", "epoch", 10, 10, 3.4639e-11),
                ("loss", "validation", "epoch", 10, 10, 5.6915e-12),
            ],
        ),
        ("plain_epoch_begins", [("loss", "train", "epoch", 12, 12, 0.0833)]),
        (
            "plain_examples",
            [("loss", "train", "epoch", 90, 8.96, 0.010989), ("loss", "test", "epoch", 9, 9, 0.1111)],
        ),
        ("plain_steps", [("loss", "train", "step", 20, 400, 0.0025), ("lr", "train", "step", 20, 400, 1e-4)]),
        ("transformers_lines", [("loss", "train", "epoch", 24, 5, 3.375)]),
    ],
)
def test_metric_series_are_extracted_from_recorded_program_output(
    name: str, series: list[tuple[str, str, str, int, float, float]]
) -> None:
    measures = Measures()
    for line in (RECORDINGS / f"{name}.txt").read_text().splitlines():
        at, _, text = line.partition(" ")
        if at != "#":
            measures.feed(float(at), text)
    assert [
        (s.measure, s.part, s.unit, len(s.points), round(s.points[-1].step, 9), s.points[-1].value)
        for s in measures.series
    ] == series


@pytest.mark.parametrize(
    ("line", "pairs"),
    [
        ("loss: 0.04 - val_accuracy: 0.98", [("loss", "train", 0.04), ("accuracy", "validation", 0.98)]),
        ("Test set: Average loss: 0.0496, Accuracy: 9834/10000 (98%)", [("loss", "test", 0.0496)]),
        ("[12]\tvalidation_0-rmse:0.4", [("rmse", "validation", 0.4)]),
        ("Epoch [1/5], Loss: 0.45, Acc: 88.5%", [("loss", "train", 0.45), ("accuracy", "train", 88.5)]),
        ("step 5 | train/loss 2.31 | tok/s 1200", [("loss", "train", 2.31)]),
        ("2026-11-26 01:02:03 INFO loss=5e-3", [("loss", "train", 0.005)]),
        ("seed: 42 port=8080 time: 4.2s error 404: not found", []),
    ],
)  # fmt: skip
def test_metric_names_and_values_are_read_from_a_log_line(
    line: str, pairs: list[tuple[str, str, float]]
) -> None:
    assert list(read_measures(line)) == pairs


@pytest.mark.parametrize(
    ("name", "line", "values"),
    [
        ("val_loss", "Epoch 1/3 - loss: 0.2 - val_loss: 0.4", [0.4]),
        ("loss", "Epoch 1/3 - loss: 0.2 - val_loss: 0.4", [0.2]),
        ("val_acc", "Validation accuracy: 0.9", [0.9]),
        ("speed", "INFO speed=12.5 after 3 s", [12.5]),
        ("loss", "loss: nan, loss: inf", []),
    ],
)
def test_metric_in_a_line_is_recognized_by_name_or_synonym(name: str, line: str, values: list[float]) -> None:
    assert list(values_of(name, line)) == values


def test_measurements_repeated_after_a_restart_replace_earlier_measurements() -> None:
    lines = [f"step {step} loss 0.{step}" for step in (1, 2, 3, 2, 3, 4)]
    assert steps(feed_lines(*lines, was_restarted=True)) == [1, 2, 3, 4]


def test_step_counter_that_restarts_from_one_is_replaced_by_the_line_number() -> None:
    """Progress bars without an epoch number restart their step counter in each epoch."""
    measures = feed_lines(*(f"{step}/3 [=====] loss: 0.5" for step in (1, 2, 3, 1, 2, 3)))
    assert (steps(measures), measures.series[0].unit) == ([0, 1, 2, 3, 4, 5], "line")


def test_stored_metric_points_are_limited_and_include_first_and_last_step() -> None:
    [series] = feed_lines(*(f"step {step} loss 0.5" for step in range(5000))).series
    assert len(series.points) <= 400
    assert (series.points[0].step, series.points[-1].step) == (0, 4999)
    assert len(feed_lines(*(f"step 1 m{number} loss {number}" for number in range(50))).series) <= 16


@pytest.mark.parametrize("worst", ["a", "a" * 41 + " ", "a" * 41 + " " + "b" * 21 + " ", "a-", "loss_"])
def test_parsing_a_line_for_metrics_is_fast(worst: str) -> None:
    """A long line blocks the interpreter while it is parsed."""
    line, took = worst * (2000 // len(worst)), list[float]()
    for _ in range(5):
        began = time.thread_time()
        feed_lines(line)
        took.append(time.thread_time() - began)
    assert min(took) < 0.01


@pytest.mark.parametrize(("count", "is_aside"), [(1, False), (100, True)])
async def test_many_long_log_lines_are_parsed_in_a_separate_thread(
    monkeypatch: pytest.MonkeyPatch, count: int, is_aside: bool
) -> None:
    threads: set[str] = set()

    class Logs:
        async def sample(self, *_: Any) -> Sample:
            return Sample(((0, "x" * 2000),) * count, 0)

    def feed(*_: object) -> None:
        threads.add(threading.current_thread().name)

    monkeypatch.setattr(Measures, "feed", feed)
    await list_progress_reader().read(Logs(), job())  # pyright: ignore[reportArgumentType]
    assert (threading.main_thread().name not in threads) == is_aside


async def test_progress_read_before_a_job_retry_does_not_hide_the_log_of_the_retry() -> None:
    """Three reads run concurrently: before the retry, after it, and again with the outdated job record. The
    third read must continue the log of the new attempt."""
    places: list[tuple[int, int]] = []

    class Logs:
        async def sample(self, source: StreamSource, place: int, _: int) -> Sample:
            places.append((source.attempt, place))
            await asyncio.sleep(0)
            return Sample((), 800)

    book, old = list_progress_reader(), job()
    jobs = (old, replace(old, attempt=old.attempt + 1), old)
    async with asyncio.TaskGroup() as looks:
        for known in jobs:
            looks.create_task(book.read(Logs(), known))  # pyright: ignore[reportArgumentType]
    assert places == [(old.attempt, 0), (old.attempt + 1, 0), (old.attempt + 1, 800)]


def test_points_of_a_long_metric_curve_are_evenly_distributed() -> None:
    measures = Measures(most=16)
    for number in range(1, 1001):
        measures.feed(number, f"epoch {number}/1000 loss: 0.5")
    (series,) = measures.series
    steps = [point.step for point in series.points]
    assert (steps[0], steps[-1]) == (1, 1000) and len(steps) > 7
    assert max(after - before for before, after in pairwise(steps)) <= 1000 / 7
