"""The hyperparameters of the process that explain the observations best: MAP, by L-BFGS-B with gradients.

Priors are the published Vizier paper's (arXiv 2408.11527); those of the main effects are of the same form. Shapes as in
`process`.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from trainshed.studies.gp.process import JITTER, Data, Hyperparameters, correlation
from trainshed.studies.routines import (
    Array,
    cholesky,
    inverse_factored,
    minimize_bounded,
    solve_factored,
)

_SPREAD = 1.2
_DRAWN = 6
"""Of the random places to start the fit from: standard deviation in logarithms, and how many are drawn for each used."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Bounds of one kind of hyperparameter and a log-normal prior: penalty `weight * log(x / centre)²` (the paper's
    form)."""

    low: float
    high: float
    centre: float
    weight: float = 0.01

    def penalty(self, logs: Array) -> tuple[float, Array]:
        """The penalty of all of `logs` together, and its gradient."""
        away = logs - math.log(self.centre)
        return self.weight * float(away @ away), 2.0 * self.weight * away


@dataclass(frozen=True, slots=True)
class Priors:
    """`signal`, `noise`, `main`: variances in units of the labels'. `length`, `main_length`: of squared length scales in
    units of the cube."""

    signal: Prior
    length: Prior
    noise: Prior
    main: Prior
    main_length: Prior


LOW_NOISE = Priors(
    signal=Prior(1e-3, 10.0, 0.039),
    length=Prior(1e-2, 1e2, 0.5),
    noise=Prior(1e-10, 1.0, 0.0039),
    main=Prior(1e-5, 10.0, 0.039),
    main_length=Prior(5e-4, 1e2, 0.5),
)
"""The paper's, but for the main effects. These may be shorter than the joint part's: a hundred trials say enough of one
parameter alone to follow ten waves, and of all together not."""

_WAVY = 0.01
"""Squared length scale of main effects from which the second start sets out, to find waves under a wide bowl."""

HIGH_NOISE = replace(LOW_NOISE, noise=Prior(1e-4, 1.0, 0.04))
"""For studies that say that their observations are noisy."""


def fit(
    data: Data, priors: Priors, restarts: int, iterations: int, rng: np.random.Generator
) -> Hyperparameters:
    """The best hyperparameters (MAP) that L-BFGS-B finds from the priors' centres, from wavy main effects, and from the
    better of some random places, `restarts` in all, in at most `iterations` steps each. Same data, same answer."""
    evidence = _Evidence(data, priors)
    width = data.width
    kinds = [
        *(priors.signal, priors.noise, priors.main),
        *[priors.length] * width,
        *[priors.main_length] * width,
    ]
    low = np.log([each.low for each in kinds])
    high = np.log([each.high for each in kinds])
    centre = np.log([each.centre for each in kinds])
    wavy = centre.copy()
    wavy[3 + width :] = math.log(_WAVY)
    starts = [centre, wavy][:restarts]
    further = restarts - len(starts)
    if further > 0:
        spread = _SPREAD * rng.normal(size=(_DRAWN * further, len(kinds)))
        drawn = np.clip(centre + spread, low, high)
        losses = np.array([evidence(theta)[0] for theta in drawn])
        starts += [drawn[at] for at in np.argsort(losses, kind="stable")[:further]]
    found = [
        minimize_bounded(evidence, theta, low, high, iterations=iterations, tolerance=1e-6)
        for theta in starts
    ]
    best = min(found, key=lambda each: each[1])[0]
    signal, noise, main = map(math.exp, best[:3])
    lengths = np.exp(best[3:])
    return Hyperparameters(signal, noise, lengths[:width], main, lengths[width:])


class _Evidence:
    """The negative log posterior of hyperparameters, and its gradient, by log(signal, noise, main, lengths…, main
    lengths…)."""

    def __init__(self, data: Data, priors: Priors) -> None:
        self._labels = data.labels
        self._priors = priors
        count = len(data.points)
        self._rows, self._columns = np.triu_indices(count, 1)
        self._pairs = self._rows * count + self._columns
        self._squares = np.zeros((data.width, len(self._pairs)))
        for column, group in enumerate(data.groups):
            values = data.points[:, column]
            self._squares[group] += (values[self._rows] - values[self._columns]) ** 2
        self._away, self._effects = np.empty_like(self._squares), np.empty_like(self._squares)

    def __call__(self, theta: Array) -> tuple[float, Array]:
        signal, noise, main = math.exp(theta[0]), math.exp(theta[1]), math.exp(theta[2])
        width = len(self._squares)
        weights = np.exp(-theta[3 : 3 + width])
        shape, slope = correlation(weights @ self._squares)
        away, effects = self._away, self._effects
        np.multiply(self._squares, -np.exp(-theta[3 + width :])[:, None], out=away)
        np.exp(away, out=effects)
        effect = effects.sum(axis=0) / width
        count = len(self._labels)
        matrix = np.empty((count, count))
        matrix.ravel()[self._pairs] = signal * shape + main * effect
        np.fill_diagonal(matrix, (signal + main) * (1.0 + JITTER) + noise)
        factor = cholesky(matrix)
        if factor is None:
            return 1e10, np.zeros(theta.shape)
        alpha = solve_factored(factor, self._labels)
        inverse = inverse_factored(factor).T
        loss = 0.5 * float(self._labels @ alpha) + float(np.log(np.diag(factor)).sum())
        across = alpha[self._rows] * alpha[self._columns] - inverse.ravel()[self._pairs]
        along = float(alpha @ alpha - np.trace(inverse))
        gradient = np.empty(theta.shape)
        gradient[0] = -signal * (0.5 * along * (1.0 + JITTER) + float(across @ shape))
        gradient[1] = -0.5 * noise * along
        gradient[2] = -main * (0.5 * along * (1.0 + JITTER) + float(across @ effect))
        gradient[3 : 3 + width] = signal * weights * (self._squares @ (across * slope))
        away *= effects
        gradient[3 + width :] = (main / width) * (away @ across)
        for prior, part in (
            (self._priors.signal, slice(0, 1)),
            (self._priors.noise, slice(1, 2)),
            (self._priors.main, slice(2, 3)),
            (self._priors.length, slice(3, 3 + width)),
            (self._priors.main_length, slice(3 + width, None)),
        ):
            penalty, push = prior.penalty(theta[part])
            loss += penalty
            gradient[part] += push
        return loss, gradient
