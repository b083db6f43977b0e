"""Which log lines tell of progress, and what step they give (spec/operations#resume-report, drills end in a
resume report)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from trainshed.core.resume.steps import Series, learned, series_by


@dataclass(frozen=True)
class Said:
    text: str
    payload: dict[str, Any] | None = None
    at: int = 5


def numbers(lines: Sequence[str | Said]) -> list[int]:
    """The steps of the kind of line that the lines are taken for, in their order."""
    said = [line if isinstance(line, Said) else Said(line) for line in lines]
    series = learned(said)
    return [step.number for line in said if series and (step := series.step(line))]


@pytest.mark.parametrize(
    "line",
    [
        "step 120",
        "step=120",
        "Step: 120",
        "Step 120/1000 loss 0.3",
        "global_step: 120",
        "GlobalStep = 120",
        "global step 120",
        "iteration 120",
        "iter: [120/1000]",
        "epoch 120",
        "Epoch 120/200",
        "primary: epoch 120/200 loss 0.001",
        "2026-11-20 06:00:12 INFO trainer: step 120 (0.1 s)",
        '{"loss": 0.5, "step": 120}',
        "step 120.",
        "step 120, epoch 3",
        "epoch 3, step 120",
    ],
)
def test_steps_are_known_in_many_spellings(line: str) -> None:
    assert numbers([line]) == [120]


def test_numbers_in_thousands_are_read_whole() -> None:
    assert numbers(["step 1,234,567 done"]) == [1234567]


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        "12ms/step 120",
        "time per step: 12",
        "5 steps",
        "checkpoints/step-120.npz",
        "misstep 3",
        "step 1.5",
        "epochs are long",
        "",
    ],
)
def test_other_numbers_are_no_steps(line: str) -> None:
    assert numbers([line]) == []


def test_json_lines_tell_their_step_by_a_field() -> None:
    lines = [Said("trained", {"step": 7, "loss": 0.1}), Said("trained", {"step": 8})]
    assert numbers(lines) == [7, 8]
    assert numbers([Said("x", {"globalStep": 9})]) == [9]
    assert numbers([Said("x", {"step": True})]) == []


def test_the_most_frequent_kind_of_line_is_the_one_that_counts() -> None:
    """A line that names a step in passing is no progress."""
    lines = ["worker: epoch 1/9", "worker: epoch 2/9", "worker lost; goes on after epoch 1"]
    assert numbers(lines) == [1, 2]


def test_lines_about_checkpoints_count_only_alone() -> None:
    saves = ["saved checkpoint at step 10", "saved checkpoint at step 20"]
    assert numbers([*saves, "step 15 done"]) == [15]
    assert numbers(saves) == [10, 20]


def test_of_kinds_that_are_as_frequent_the_finest_counts() -> None:
    assert numbers(["epoch 1 step 10", "epoch 2 step 20"]) == [10, 20]


def test_a_pattern_of_ones_own_decides_alone() -> None:
    series = series_by(r"seen (\d+) images")
    lines = [Said("step 3"), Said("seen 512 images"), Said("seen no images")]
    assert [step.number for line in lines if (step := series.step(line))] == [512]
    whole = series_by(r"\d+$")
    assert whole.step(Said("batch 9")) is not None
    with pytest.raises(ValueError, match="no regular expression"):
        series_by("(")


def test_nothing_is_learned_of_nothing() -> None:
    assert learned([]) is None
    assert Series("step").step(Said("step 5")) is not None
