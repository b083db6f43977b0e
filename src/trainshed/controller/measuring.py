"""What a trial has measured, of all that its program reported with cloudml-hypertune or wrote as summaries. Pure."""

import math
from collections.abc import Sequence
from typing import Final

from trainshed.core.study.final import final_measurement
from trainshed.core.study.spec import StudySpec
from trainshed.core.study.trials import Measurement
from trainshed.summaries.following import Points

_MOST: Final = 1_000
"""Measurements of a trial that are all looked at; of more, every second one, every fourth, and so on."""


def of_summaries(metric: str, points: Points, started: int) -> tuple[Measurement, ...]:
    """The finite values of a run, one measurement of each step, ascending by step. Elapsed times count from `started` (ns)."""
    return tuple(
        Measurement(((metric, point.value),), step, max(0, round(point.at * 1e9) - started))
        for step, point in sorted(points.items())
        if math.isfinite(point.value)
    )


def thinned(study: StudySpec, measured: list[Measurement], *, is_over: bool) -> list[Measurement]:
    """So many that a trial which reports after each of a million batches costs what another one costs; which ones does
    not change while more come in. Of a trial that is over the final one is among them, whichever it is."""
    if len(measured) <= _MOST:
        return measured
    kept = measured[:: 1 << ((len(measured) - 1) // _MOST).bit_length()]
    final = final_measurement(study, measured) if is_over else None
    return kept if final is None else sorted({*kept, final}, key=lambda one: one.step)


def known_metrics(
    study: StudySpec, measured: Sequence[Measurement], stored: Sequence[Measurement]
) -> list[Measurement]:
    """Only what the study asks for: a program may report whatever else it likes.

    A step that is reported once more, as by a program that went back to a checkpoint, keeps its elapsed time: with it,
    the new value takes the place of the stored one, and the trial has one measurement of each step.
    """
    known = {metric.id for metric in study.metrics}
    elapsed = {one.step: one.elapsed for one in stored}
    found: list[Measurement] = []
    for one in measured:
        metrics = tuple(pair for pair in one.metrics if pair[0] in known)
        if metrics:
            found.append(Measurement(metrics, one.step, elapsed.get(one.step, one.elapsed)))
    return found
