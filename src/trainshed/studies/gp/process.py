"""The Gaussian process: Matérn-5/2 with a length scale per parameter, MAP hyperparameters, posterior with gradients.

Owns the mathematics of the model. Labels come warped (`warping`), points embedded (`space.Space.embed`). Shapes:
n observed points, m asked for, p nodes, q columns of the embedding.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from trainshed.studies.routines import (
    Array,
    Positions,
    cholesky,
    inverse_factored,
    inverse_triangular,
    minimize_bounded,
    solve_factored,
)

_JITTER = 1e-9
"""Added to the diagonal, as a share of the signal's variance."""

_LEAST_VARIANCE = 1e-14
"""As a share of the signal's; what is less is rounding."""

_SPREAD = 1.2
_DRAWN = 4
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
    """`signal`, `noise`: variances in units of the labels'. `length`: of squared length scales in units of the cube."""

    signal: Prior
    length: Prior
    noise: Prior


LOW_NOISE = Priors(
    signal=Prior(1e-3, 10.0, 0.039),
    length=Prior(1e-2, 1e2, 0.5),
    noise=Prior(1e-10, 1.0, 0.0039),
)
"""The paper's."""

HIGH_NOISE = replace(LOW_NOISE, noise=Prior(1e-4, 1.0, 0.04))
"""For studies that say that their observations are noisy."""


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """`lengths`: squared length scales, shape (p,)."""

    signal: float
    noise: float
    lengths: Array


@dataclass(frozen=True, slots=True)
class Data:
    """What the process is to explain. `points` embedded, shape (n, q); `labels`, shape (n,); `groups`: which node each
    column comes from, shape (q,); `width`: p."""

    points: Array
    labels: Array
    groups: Positions
    width: int

    def only(self, rows: Positions) -> "Data":
        return replace(self, points=self.points[rows], labels=self.labels[rows])


def fit(
    data: Data, priors: Priors, restarts: int, iterations: int, rng: np.random.Generator
) -> Hyperparameters:
    """The best hyperparameters (MAP) that L-BFGS-B finds from the priors' centres and the better of some random places,
    `restarts` in all, in at most `iterations` steps each. Same data, same answer."""
    evidence = _Evidence(data, priors)
    kinds = [priors.signal, priors.noise, *[priors.length] * data.width]
    low = np.log([each.low for each in kinds])
    high = np.log([each.high for each in kinds])
    centre = np.log([each.centre for each in kinds])
    starts = [centre]
    if restarts > 1:
        spread = _SPREAD * rng.normal(size=(_DRAWN * restarts, len(kinds)))
        drawn = np.clip(centre + spread, low, high)
        losses = np.array([evidence(theta)[0] for theta in drawn])
        starts += [drawn[at] for at in np.argsort(losses, kind="stable")[: restarts - 1]]
    found = [
        minimize_bounded(evidence, theta, low, high, iterations=iterations, tolerance=1e-6)
        for theta in starts
    ]
    best = min(found, key=lambda each: each[1])[0]
    return Hyperparameters(math.exp(best[0]), math.exp(best[1]), np.exp(best[2:]))


class _Evidence:
    """The negative log posterior of hyperparameters, and its gradient, by log(signal, noise, lengths…)."""

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

    def __call__(self, theta: Array) -> tuple[float, Array]:
        signal, noise = math.exp(theta[0]), math.exp(theta[1])
        weights = np.exp(-theta[2:])
        shape, slope = _correlation(weights @ self._squares)
        count = len(self._labels)
        matrix = np.empty((count, count))
        matrix.ravel()[self._pairs] = signal * shape
        np.fill_diagonal(matrix, signal * (1.0 + _JITTER) + noise)
        factor = cholesky(matrix)
        if factor is None:
            return 1e10, np.zeros(theta.shape)
        alpha = solve_factored(factor, self._labels)
        inverse = inverse_factored(factor).T
        loss = 0.5 * float(self._labels @ alpha) + float(np.log(np.diag(factor)).sum())
        across = alpha[self._rows] * alpha[self._columns] - inverse.ravel()[self._pairs]
        along = float(alpha @ alpha - np.trace(inverse))
        gradient = np.empty(theta.shape)
        gradient[0] = -signal * (0.5 * along * (1.0 + _JITTER) + float(across @ shape))
        gradient[1] = -0.5 * noise * along
        gradient[2:] = signal * weights * (self._squares @ (across * slope))
        for prior, part in (
            (self._priors.signal, slice(0, 1)),
            (self._priors.noise, slice(1, 2)),
            (self._priors.length, slice(2, None)),
        ):
            penalty, push = prior.penalty(theta[part])
            loss += penalty
            gradient[part] += push
        return loss, gradient


class Posterior:
    """What the model says of any point, given observed ones.

    `pending`: points, shape (k, q), that count as observed for the deviation; a posterior that has some says
    nothing of the mean.
    """

    def __init__(self, data: Data, hyper: Hyperparameters, pending: Array | None = None) -> None:
        points = data.points if pending is None else np.vstack([data.points, pending])
        self._scale = 1.0 / np.sqrt(hyper.lengths[data.groups])
        self._points = points * self._scale
        self._norms = np.einsum("ij,ij->i", self._points, self._points)
        self._signal = hyper.signal
        shape, _ = _correlation(self._distances(self._points))
        factor = _factor(hyper, shape)
        self._whitening = inverse_triangular(factor)
        self._alpha = (
            solve_factored(factor, data.labels) if pending is None else np.zeros(len(points))
        )

    def _distances(self, scaled: Array) -> Array:
        squares = self._norms - 2.0 * (scaled @ self._points.T)
        squares += np.einsum("ij,ij->i", scaled, scaled)[:, None]
        return np.maximum(squares, 0.0)

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Mean and standard deviation (of the function, not of a noisy observation), shape (m,) each."""
        shape, _ = _correlation(self._distances(points * self._scale))
        cross = self._signal * shape
        white = cross @ self._whitening.T
        variance = self._signal - np.einsum("ij,ij->i", white, white)
        return cross @ self._alpha, np.sqrt(np.maximum(variance, _LEAST_VARIANCE * self._signal))

    def predict_with_gradients(self, point: Array) -> tuple[float, float, Array, Array]:
        """Mean and standard deviation at one point, and their gradients by its embedding, shape (q,)."""
        away = point * self._scale - self._points
        shape, slope = _correlation(np.einsum("ij,ij->i", away, away))
        cross = self._signal * shape
        white = self._whitening @ cross
        variance = max(self._signal - float(white @ white), _LEAST_VARIANCE * self._signal)
        deviation = math.sqrt(variance)
        back = self._whitening.T @ white
        pull = (2.0 * self._signal * slope)[:, None] * away * self._scale
        return float(cross @ self._alpha), deviation, self._alpha @ pull, -(back @ pull) / deviation


def _correlation(squares: Array) -> tuple[Array, Array]:
    """Matérn-5/2 of squared scaled distances, and its derivative by them."""
    root = np.sqrt(5.0 * squares)
    fall = np.exp(-root)
    slope = (-5.0 / 6.0) * (1.0 + root) * fall
    return (1.0 + root + (5.0 / 3.0) * squares) * fall, slope


def _factor(hyper: Hyperparameters, shape: Array) -> Array:
    """The Cholesky factor of the covariance; with ever more on the diagonal until there is one."""
    matrix = hyper.signal * shape
    jitter = _JITTER
    while True:
        np.fill_diagonal(matrix, hyper.signal * (1.0 + jitter) + hyper.noise)
        factor = cholesky(matrix)
        if factor is not None:
            return factor
        jitter *= 10.0
