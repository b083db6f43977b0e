"""Decay curve automated stopping: a Gaussian process regression over learning curves predicts a trial's final
value, and a trial with next to no chance of beating the best so far is stopped (API description; Golovin et
al. 2017, §3.2.1).

The published text fixes neither kernel nor threshold. Here each finished trial is one example: its curve up
to where the pending trial is now, and what it gained from there to its end. The kernel says how alike two
curves are, by the shape of their last stretches (squared exponential, recent stretches count more) and by
their values (linear). Its parameters are the likeliest of a fixed grid; the scale is integrated out, so that
few examples give a t distribution's wide tails. For a curve unlike all others, the others' mean gain and
their whole spread are predicted, which stops few.
"""

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from trainshed.studies.port import StoppingVerdict
from trainshed.studies.routines import whitening
from trainshed.studies.stopping.deciding import (
    Axes,
    Line,
    best_final,
    go_on,
    stop,
    too_early,
)

CHANCE = 0.003
"""A trial is stopped below this probability of beating the best so far, which is computed anew at every
measurement: on synthetic curves, 0.02 stopped a tenth of the trials that would have become the best, and this
value about one in thirty."""
MIN_MEASUREMENTS = 5
"""Least number of the pending trial's measurements."""
MIN_FINISHED = 5
"""Least number of trials that are over and came at least as far as the pending one."""
MOST_EXAMPLES = 100
"""More examples are thinned out evenly: the regression's cost grows with the cube of their number."""
STRETCHES = 8
"""A curve is reduced to the means of at most so many stretches, which takes out noise."""
LENGTHS = (0.5, 1.0, 2.0, 4.0)
NOISES = (0.003, 0.03, 0.1, 0.3, 1.0)
LINEAR = (0.0, 0.3, 3.0)
BLUR = 0.1
"""No prediction counts as more exact than this part of the gain that it predicts."""
OUTLYING = 5.0
"""Values of finished trials that are worse than the median by more than so many times the best's lead (or the
lower quartile's lag) are raised to that limit: otherwise a diverged trial would set the scale of
everything."""

Floats = NDArray[np.float64]


def should_stop(plane: Axes, own: Line, finished: Sequence[Line]) -> StoppingVerdict:
    """Return the verdict at the trial's last measurement."""
    if len(set(own.xs)) < MIN_MEASUREMENTS:
        return too_early(
            f"the trial has {len(set(own.xs))} measurements, {MIN_MEASUREMENTS} are needed."
        )
    examples = _examples(own, finished)
    if len(examples) < MIN_FINISHED:
        return too_early(
            f"{len(examples)} trials that are over came as far as {plane.where(own.end)}, {MIN_FINISHED} "
            "are needed."
        )
    best = best_final(finished)
    if max(own.ys) >= best:
        return go_on(f"No finished trial is better than {plane.value(max(own.ys))}.")
    chance = chance_to_beat(best, own, examples)
    seen = (
        f"{plane.where(own.end)} its chance to beat {plane.value(best)} is {chance:.2g}, "
        f"as {len(examples)} finished trials went."
    )
    if chance < CHANCE:
        return stop(f"Next to no chance: {seen}")
    return go_on(f"Still a chance: {seen}")


def chance_to_beat(best: float, own: Line, examples: Sequence[Line]) -> float:
    """Return the probability that `own` ends better than `best`, 0..1."""
    curves = _curves(own, examples)
    curves[1:] = _without_outliers(curves[1:])
    gains = _without_outliers(np.array([line.final for line in examples]) - curves[1:, -1])
    predicted = _regression(_features(curves), gains)
    return predicted.blurred().above(best - float(curves[0, -1]))


class StudentT(Struct, frozen=True):
    """A predicted gain, as a t distribution."""

    mean: float
    scale: float
    freedom: int

    def blurred(self) -> "StudentT":
        """Add the error of the model itself: smooth curves without noise make a regression too sure."""
        return StudentT(self.mean, float(np.hypot(self.scale, BLUR * self.mean)), self.freedom)

    def above(self, threshold: float) -> float:
        if self.scale == 0:
            return float(self.mean > threshold)
        return student_probability((self.mean - threshold) / self.scale, self.freedom)


def student_probability(value: float, freedom: int) -> float:
    """Return Student's distribution at a value (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    scale = math.sqrt(freedom)
    cosine = scale / math.hypot(scale, value)
    odd = freedom % 2
    term, total = cosine if odd else 1.0, 0.0
    for power in range(1 + odd, freedom, 2):
        total += term
        term *= cosine * cosine * power / (power + 1)
    within = total * value / math.hypot(scale, value)
    if odd:
        within = (within + math.atan(value / scale)) * 2.0 / math.pi
    return 0.5 + 0.5 * within


def _examples(own: Line, finished: Sequence[Line]) -> list[Line]:
    """Return the trials that came as far as the pending one; those that ended before half of the longest are
    left out, as they say little of ends."""
    if not finished:
        return []
    longest = max(line.end for line in finished)
    fit = [line for line in finished if line.end >= own.end and line.end >= longest / 2]
    fit.sort(key=lambda line: line.number)
    if len(fit) <= MOST_EXAMPLES:
        return fit
    return [fit[round(i)] for i in np.linspace(0, len(fit) - 1, MOST_EXAMPLES).tolist()]


def _curves(own: Line, examples: Sequence[Line]) -> Floats:
    """Return a row for `own` and each example: means over the stretches in which `own` was measured."""
    places = np.array(own.xs)
    parts = np.array_split(np.arange(len(places)), min(STRETCHES, len(places)))
    ends = places[[part[-1] for part in parts]]
    centres = np.array([places[part].mean() for part in parts])
    return np.array([_means(line, ends, centres) for line in (own, *examples)])


def _means(line: Line, ends: Floats, centres: Floats) -> Floats:
    """Return a line's mean in each stretch; where nothing was measured, interpolate."""
    xs, ys = np.array(line.xs), np.array(line.ys)
    until = np.searchsorted(xs, ends, side="right")
    since = np.concatenate(([0], until[:-1]))
    sums = np.concatenate(([0.0], np.cumsum(ys)))
    counts = until - since
    return np.where(
        counts > 0,
        (sums[until] - sums[since]) / np.maximum(counts, 1),
        np.interp(centres, xs, ys),
    )


def _without_outliers(values: Floats) -> Floats:
    low, middle, high = np.quantile(values, (0.25, 0.5, 1.0), axis=0)
    return np.maximum(values, middle - OUTLYING * np.maximum(high - middle, middle - low))


def _features(curves: Floats) -> Floats:
    """Bring the columns to one scale, with the most weight on the latest."""
    spread = curves.std(axis=0)
    scaled = (curves - curves.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    weights = np.array([0.7**age for age in range(curves.shape[1] - 1, -1, -1)])
    return scaled * np.sqrt(weights / weights.sum())


def _regression(features: Floats, gains: Floats) -> StudentT:
    """Predict the gain for row 0 of `features`; the other rows are the examples."""
    squares = ((features[:, None, :] - features[None, :, :]) ** 2).sum(axis=2)
    products = features @ features.T
    best, prediction = -np.inf, StudentT(float(gains.mean()), float(gains.std()), len(gains) - 1)
    for length, noise, linear in product(LENGTHS, NOISES, LINEAR):
        kernel = np.exp(-squares / (2 * length**2)) + linear * products
        likelihood, predicted = _fit(kernel, noise, gains)
        if likelihood > best:
            best, prediction = likelihood, predicted
    return prediction


def _fit(kernel: Floats, noise: float, gains: Floats) -> tuple[float, StudentT]:
    """Return the log likelihood (up to a constant, mean and scale integrated out) and the prediction for
    row 0."""
    count = len(gains)
    whiten = whitening(kernel[1:, 1:] + noise * np.eye(count))
    assert whiten is not None, "a covariance beside noise is positive"
    ones = np.ones(count)
    solved = whiten.T @ (whiten @ np.column_stack((ones, gains, kernel[1:, 0])))
    weight = float(ones @ solved[:, 0])
    mean = float(ones @ solved[:, 1]) / weight
    away = gains - mean
    square = float(away @ (solved[:, 1] - mean * solved[:, 0]))
    scale2 = max(square, 0.0) / (count - 1)
    variance = float(kernel[0, 0] + noise - kernel[1:, 0] @ solved[:, 2])
    variance += (1 - float(ones @ solved[:, 2])) ** 2 / weight
    expected = mean + float(kernel[1:, 0] @ (solved[:, 1] - mean * solved[:, 0]))
    predicted = StudentT(expected, (scale2 * max(variance, 0.0)) ** 0.5, count - 1)
    if scale2 == 0:
        return np.inf, predicted
    determinant = -2 * float(np.log(np.diag(whiten)).sum())
    return -0.5 * (
        determinant + float(np.log(weight)) + (count - 1) * float(np.log(scale2))
    ), predicted
