"""Detection of training steps in log lines, for resume reports of drills (spec/operations#resume-report)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from trainshed.core.resume import learn_series


@dataclass(frozen=True)
class FakeLine:
    text: str
    payload: dict[str, Any] | None = None
    at: int = 5


def numbers(lines: Sequence[str | FakeLine]) -> list[int]:
    """Return the detected step numbers, in order."""
    read = [line if isinstance(line, FakeLine) else FakeLine(line) for line in lines]
    series = learn_series(read)
    return [step.number for line in read if series and (step := series.step(line))]


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
def test_step_is_detected_in_many_log_formats(line: str) -> None:
    assert numbers([line]) == [120]


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
def test_unrelated_numbers_in_a_log_line_are_not_training_steps(line: str) -> None:
    assert numbers([line]) == []


def test_resume_message_does_not_count_as_a_step() -> None:
    """The log lines are from examples/resume."""
    lines = ["epoch 1/20 loss 0.8", "goes on after epoch 1", "epoch 2/20 loss 0.5"]
    assert numbers(lines) == [1, 2]


def test_training_step_is_read_from_a_field_of_a_json_log_line() -> None:
    lines = [FakeLine("trained", {"step": 7, "loss": 0.1}), FakeLine("trained", {"step": 8})]
    assert numbers(lines) == [7, 8]
    assert numbers([FakeLine("x", {"globalStep": 9})]) == [9]
    assert numbers([FakeLine("x", {"step": True})]) == []
