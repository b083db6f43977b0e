"""Decides whether a trial is stopped early, by the rule that its study names; and learning curves as numbers,
which both rules share: how far a trial had come at each measurement, and how good it was then.

Pure, and without numpy.
"""

from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import assert_never

from msgspec import Struct

from trainshed.core.study.progress import objectives, score
from trainshed.core.study.spec import (
    DecayCurveStopping,
    MedianStopping,
    Metric,
    Selection,
    StudySpec,
)
from trainshed.studies.port import Curve, StoppingVerdict

_NS = 1_000_000_000


class Line(Struct, frozen=True):
    """The curve of one trial. Never empty."""

    number: int
    #: Steps or nanoseconds, ascending.
    xs: tuple[float, ...]
    #: The objective there, more is better.
    ys: tuple[float, ...]
    #: The value that counts in the end.
    final: float

    @property
    def end(self) -> float:
        return self.xs[-1]


class Axes(Struct, frozen=True):
    """What the two axes of a curve are, and how values on them are put into words."""

    metric: Metric
    use_elapsed: bool
    selection: Selection

    def line(self, curve: Curve) -> Line | None:
        """Return the curve as a line; None if the objective was not measured."""
        points = [
            (
                measurement.elapsed if self.use_elapsed else measurement.step,
                score(self.metric, value),
            )
            for measurement in curve.measurements
            if (value := measurement.value(self.metric.id)) is not None
        ]
        if not points:
            return None
        last = points[-1][1]
        points.sort(key=lambda point: point[0])
        ys = tuple(y for _, y in points)
        final = last if self.selection is Selection.LAST else max(ys)
        return Line(curve.number, tuple(x for x, _ in points), ys, final)

    def finished(self, curves: Iterable[Curve]) -> list[Line]:
        """Return the lines of the trials that are over."""
        return [
            line for curve in curves if curve.is_over and (line := self.line(curve)) is not None
        ]

    def where(self, x: float) -> str:
        return f"after {x / _NS:.4g} s" if self.use_elapsed else f"at step {x:.0f}"

    def value(self, y: float) -> str:
        return f"{score(self.metric, y) + 0.0:.6g}"


def axes(spec: StudySpec, use_elapsed: bool) -> Axes | None:
    """Return the axes; None if the study has not exactly one objective: no rule says what to do then."""
    aims = objectives(spec)
    return Axes(aims[0], use_elapsed, spec.selection) if len(aims) == 1 else None


def best_final(lines: Sequence[Line]) -> float:
    """Return the best final value of at least one line."""
    return max(line.final for line in lines)


def go_on(why: str) -> StoppingVerdict:
    return StoppingVerdict(False, why)


def too_early(why: str) -> StoppingVerdict:
    """Return the verdict of a rule that cannot decide yet."""
    return StoppingVerdict(False, f"Too early: {why}")


def stop(why: str) -> StoppingVerdict:
    return StoppingVerdict(True, why)


NO_SINGLE_OBJECTIVE = go_on(
    "The study has not exactly one objective; no trial of it is stopped early."
)
NOTHING_MEASURED = too_early("the trial has not measured the objective yet.")

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
