"""Decides whether a trial is stopped early, by the rule that its study names."""

from collections.abc import Sequence
from statistics import fmean, median
from typing import assert_never

from trainshed.core.study.spec import DecayCurveStopping, MedianStopping, StudySpec
from trainshed.studies.port import Curve, StoppingVerdict
from trainshed.studies.stopping.curves import (
    NO_SINGLE_OBJECTIVE,
    NOTHING_MEASURED,
    Axes,
    Line,
    axes,
    go_on,
    stop,
    too_early,
)

MIN_FINISHED = 5
"""The median of fewer trials says little. Not published; this service's choice (docs/tuning.md)."""


def decide_all(
    spec: StudySpec, curves: Sequence[Curve], numbers: Sequence[int]
) -> tuple[StoppingVerdict, ...]:
    """Return a verdict on each of the trials of these numbers, compared with all others of `curves`."""
    known = {curve.number: curve for curve in curves}
    return tuple(
        decide(spec, known[number], [curve for curve in curves if curve.number != number])
        for number in numbers
    )


def decide(spec: StudySpec, trial: Curve, others: Sequence[Curve]) -> StoppingVerdict:
    """Return the verdict on a pending trial. `others`: the study's other trials in any order; only those that
    are over count.

    Pure; the same curves give the same verdict. Takes up to about 0.1 s for a hundred curves of a hundred
    points. Loads numpy only for the rule that needs it, so that studies without it do not wait for it.
    """
    if trial.is_over:
        return go_on("The trial is over.")
    rule = spec.stopping
    if rule is None:
        return go_on("The study names no rule for early stopping.")
    plane = axes(spec, rule.use_elapsed)
    if plane is None:
        return NO_SINGLE_OBJECTIVE
    own, finished = plane.line(trial), plane.finished(others)
    if own is None:
        return NOTHING_MEASURED
    # The best trial so far is stopped by neither.
    match rule:
        case MedianStopping():
            return _median(plane, own, finished)
        case DecayCurveStopping():
            from trainshed.studies.stopping import decay_curve

            return decay_curve.should_stop(plane, own, finished)
        case _:
            assert_never(rule)


def _median(plane: Axes, own: Line, finished: Sequence[Line]) -> StoppingVerdict:
    """Return the verdict at the trial's last measurement. No average is above the best trial's."""
    averages = [
        average for line in finished if (average := _running_average(line, own.end)) is not None
    ]
    if len(averages) < MIN_FINISHED:
        return too_early(
            f"{len(averages)} trials that are over had measured something {plane.where(own.end)}, "
            f"{MIN_FINISHED} are needed."
        )
    middle, best = median(averages), max(own.ys)
    seen = (
        f"the median of the running averages of {len(averages)} trials is {plane.value(middle)} "
        f"{plane.where(own.end)}, the trial's best value {plane.value(best)}."
    )
    if best < middle:
        return stop(f"Worse than the median: {seen}")
    return go_on(f"Not worse than the median: {seen}")


def _running_average(line: Line, until: float) -> float | None:
    seen = [y for x, y in zip(line.xs, line.ys, strict=True) if x <= until]
    return fmean(seen) if seen else None
