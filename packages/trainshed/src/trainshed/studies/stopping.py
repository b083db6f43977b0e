"""Decides whether to stop a trial early, by the median rule. The rule compares the trial's best value so far
with the averages of the other trials up to the same step. Pure, and without NumPy."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from msgspec import Struct

from trainshed.core.study.progress import score
from trainshed.core.study.spec import Metric, StudySpec
from trainshed.studies.port import Curve, StoppingVerdict

_NS = 1_000_000_000
_MIN_TRIALS = 5
"""Minimum number of other trials, because the median of fewer trials has little meaning. The public services
do not publish their number (docs/tuning.md)."""


class _Axes(Struct, frozen=True):
    """The two axes of a curve, and the texts of values on them."""

    metric: Metric
    use_elapsed: bool

    def points(self, curve: Curve) -> list[tuple[float, float]]:
        """Return (step or nanoseconds, objective) of each measurement, ascending. A larger objective is
        better."""
        return sorted(
            (measurement.elapsed if self.use_elapsed else measurement.step, score(self.metric, value))
            for measurement in curve.measurements
            if (value := measurement.value(self.metric.id)) is not None
        )

    def averages(self, curve: Curve) -> tuple[list[float], list[float]]:
        """Return the positions of the points, and the trial's average up to each of them."""
        points = self.points(curve)
        ys = [y for _, y in points]
        # Rounding must not raise an average above the largest value. A sum that is too large is infinite.
        sums = enumerate(zip(accumulate(ys), accumulate(ys, max), strict=True), 1)
        return [x for x, _ in points], [min(total / n, best) for n, (total, best) in sums]

    def where(self, x: float) -> str:
        return f"after {x / _NS:.4g} s" if self.use_elapsed else f"at step {x:.0f}"

    def value(self, y: float) -> str:
        return f"{score(self.metric, y) + 0.0:.6g}"


def decide_all(
    spec: StudySpec, curves: Sequence[Curve], numbers: Sequence[int]
) -> tuple[StoppingVerdict, ...]:
    """Return a verdict on each of the trials with these numbers, at its last measurement. Each trial is
    compared with all finished trials of `curves`. The best trial is never stopped, because no average exceeds
    its own best value."""
    rule, aims = spec.median_stopping, spec.metrics
    if rule is None or len(aims) != 1:
        why = "The study has no rule for early stopping, or does not have exactly one objective."
        return (StoppingVerdict(False, why),) * len(numbers)
    axes = _Axes(aims[0], rule.use_elapsed)
    known = {curve.number: curve for curve in curves}
    # The averages are computed once for all verdicts, because there may be a million measurements.
    others = [axes.averages(curve) for curve in curves if curve.is_over]
    return tuple(_decide(axes, known[number], others) for number in numbers)


def _decide(axes: _Axes, trial: Curve, others: Sequence[tuple[list[float], list[float]]]) -> StoppingVerdict:
    from statistics import median  # Imported here, because few services stop trials.

    if trial.is_over:
        return StoppingVerdict(False, "The trial has ended.")
    own = axes.points(trial)
    if not own:
        return StoppingVerdict(False, "Too early: the trial has not measured the objective yet.")
    end, best = own[-1][0], max(y for _, y in own)
    averages = [ys[seen - 1] for xs, ys in others if (seen := bisect_right(xs, end))]
    if len(averages) < _MIN_TRIALS:
        text = (
            f"Too early: {len(averages)} finished trials had measurements "
            f"{axes.where(end)}; {_MIN_TRIALS} are needed."
        )
        return StoppingVerdict(False, text)
    middle = median(averages)
    text = (
        f"the median: the median of the running averages of {len(averages)} trials is "
        f"{axes.value(middle)} {axes.where(end)}, the trial's best value {axes.value(best)}."
    )
    if best < middle:
        return StoppingVerdict(True, f"Worse than {text}")
    return StoppingVerdict(False, f"Not worse than {text}")
