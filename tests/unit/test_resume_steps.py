"""Which log lines tell of progress, and what step they give (spec/operations#resume-report, drills end in a
resume report)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from trainshed.core.resume import learned


@dataclass(frozen=True)
class Said:
    text: str
    payload: dict[str, Any] | None = None
    at: int = 5


def numbers(lines: Sequence[str | Said]) -> list[int]:
    """The steps of the kind of line that the lines are taken for, in their order."""
    read = [line if isinstance(line, Said) else Said(line) for line in lines]
    series = learned(read)
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
def test_steps_are_known_in_many_spellings(line: str) -> None:
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
def test_other_numbers_are_no_steps(line: str) -> None:
    assert numbers([line]) == []


def test_where_a_program_goes_on_is_no_step_that_it_has_done() -> None:
    """What examples/resume prints."""
    lines = ["epoch 1/20 loss 0.8", "goes on after epoch 1", "epoch 2/20 loss 0.5"]
    assert numbers(lines) == [1, 2]


def test_json_lines_tell_their_step_by_a_field() -> None:
    lines = [Said("trained", {"step": 7, "loss": 0.1}), Said("trained", {"step": 8})]
    assert numbers(lines) == [7, 8]
    assert numbers([Said("x", {"globalStep": 9})]) == [9]
    assert numbers([Said("x", {"step": True})]) == []
