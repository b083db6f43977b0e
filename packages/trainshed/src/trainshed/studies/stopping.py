"""Decides whether a trial is stopped early, by the median rule: its best value so far is compared with what
the others had measured on average by then. Pure, and without numpy."""

from collections.abc import Iterable, Sequence
from statistics import fmean, mean, median

from msgspec import Struct

from trainshed.core.study.progress import score
from trainshed.core.study.spec import Metric, StudySpec
from trainshed.studies.port import Curve, StoppingVerdict

_NS = 1_000_000_000
_FEWEST = 5
"""The median of fewer trials says little. Not published; this service's choice (docs/tuning.md)."""


class _Axes(Struct, frozen=True):
    """What the two axes of a curve are, and how values on them are put into words."""

    metric: Metric
    use_elapsed: bool

    def points(self, curve: Curve) -> list[tuple[float, float]]:
        """Return (step or nanoseconds, objective) of each measurement; more is better."""
        return [
            (
                measurement.elapsed if self.use_elapsed else measurement.step,
                score(self.metric, value),
            )
            for measurement in curve.measurements
            if (value := measurement.value(self.metric.id)) is not None
        ]

    def averages(self, curves: Iterable[Curve], until: float) -> list[float]:
        """Return what each trial that is over had measured on average by then."""
        seen = (
            [y for x, y in self.points(curve) if x <= until] for curve in curves if curve.is_over
        )
        # `mean` is exact, and slow: what diverged may add up to more than a number can be.
        return [fmean(ys) if max(map(abs, ys)) < 1e300 else mean(ys) for ys in seen if ys]

    def where(self, x: float) -> str:
        return f"after {x / _NS:.4g} s" if self.use_elapsed else f"at step {x:.0f}"

    def value(self, y: float) -> str:
        return f"{score(self.metric, y) + 0.0:.6g}"


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
    """Return the verdict on a pending trial, at its last measurement. `others`: the study's other trials in
    any order; only those that are over count. The best trial is never stopped: no average is above its own
    value."""
    if trial.is_over:
        return StoppingVerdict(False, "The trial is over.")
    rule, aims = spec.median_stopping, spec.metrics
    if rule is None:
        return StoppingVerdict(False, "The study names no rule for early stopping.")
    if len(aims) != 1:
        text = "The study has not exactly one objective; no trial of it is stopped early."
        return StoppingVerdict(False, text)
    axes = _Axes(aims[0], rule.use_elapsed)
    own = axes.points(trial)
    if not own:
        return StoppingVerdict(False, "Too early: the trial has not measured the objective yet.")
    end, best = max(x for x, _ in own), max(y for _, y in own)
    averages = axes.averages(others, end)
    if len(averages) < _FEWEST:
        text = (
            f"Too early: {len(averages)} trials that are over had measured something {axes.where(end)}, "
            f"{_FEWEST} are needed."
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
