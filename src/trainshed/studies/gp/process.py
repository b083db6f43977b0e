"""The Gaussian process: what is known of any point, with gradients, given observed points and
hyperparameters.

A function is modelled as a joint part, Matérn-5/2 over all parameters with a length scale for each, plus main
effects: one smooth function of each parameter alone. The paper (arXiv 2408.11527) has the joint part only;
most of what hyperparameters do they do each for itself (Duvenaud et al. 2011, arXiv 1112.4394), and what is
learnt of one parameter then holds wherever the others are.

The hyperparameters that explain the observations best are found by MAP with L-BFGS-B and gradients. Priors
are the paper's; those of the main effects are of the same form.

Owns the mathematics of the model. Labels come warped (`warping`), points embedded
(`space.Space.embed`). Shapes: n observed points, m asked for, p nodes, q columns of the embedding.
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

JITTER = 1e-9
"""Added to the diagonal, as a share of the signal's variance."""

_LEAST_VARIANCE = 1e-14
"""As a share of the signal's; what is less is rounding."""


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """What a process is fitted by."""

    #: Variance of the joint part.
    signal: float
    #: Variance of what is observed beyond the function.
    noise: float
    #: Squared length scales of the joint part, shape (p,).
    lengths: Array
    #: Variance of all main effects together.
    main: float
    #: Squared length scales of the main effects, shape (p,).
    main_lengths: Array

    @property
    def total(self) -> float:
        """The variance of the function where nothing is known."""
        return self.signal + self.main


@dataclass(frozen=True, slots=True)
class Data:
    """What the process is to explain."""

    #: Embedded, shape (n, q).
    points: Array
    #: Shape (n,).
    labels: Array
    #: Which node each column comes from, shape (q,).
    groups: Positions
    #: p, the number of nodes.
    width: int

    def only(self, rows: Positions) -> "Data":
        return replace(self, points=self.points[rows], labels=self.labels[rows])


class Posterior:
    """What the model says of any point, given observed ones.

    `pending`: points, shape (k, q), that count as observed for the deviation; a posterior that has some says
    nothing of the mean.
    """

    def __init__(self, data: Data, hyper: Hyperparameters, pending: Array | None = None) -> None:
        points = data.points if pending is None else np.vstack([data.points, pending])
        self._hyper = hyper
        self._groups = data.groups
        self._scale = 1.0 / np.sqrt(hyper.lengths[data.groups])
        self._main_scale = 1.0 / np.sqrt(hyper.main_lengths[data.groups])
        self._share = hyper.main / data.width
        self._points = points * self._scale
        self._norms = np.einsum("ij,ij->i", self._points, self._points)
        self._main_points = points * self._main_scale
        factor = _factor(hyper, self._covariance(points))
        self._whitening = inverse_triangular(factor)
        self._alpha = (
            solve_factored(factor, data.labels) if pending is None else np.zeros(len(points))
        )

    def _covariance(self, points: Array) -> Array:
        """Of the function at any points with that at the observed ones, shape (m, n)."""
        scaled = points * self._scale
        squares = self._norms - 2.0 * (scaled @ self._points.T)
        squares += np.einsum("ij,ij->i", scaled, scaled)[:, None]
        cross, _ = correlation(np.maximum(squares, 0.0))
        cross *= self._hyper.signal
        scaled = points * self._main_scale
        for node in range(len(self._hyper.lengths)):
            effect = np.zeros(cross.shape)
            for column in np.flatnonzero(self._groups == node):
                away = scaled[:, column, None] - self._main_points[:, column]
                away *= away
                effect -= away
            np.exp(effect, out=effect)
            effect *= self._share
            cross += effect
        return cross

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Mean and standard deviation (of the function, not of a noisy observation), shape (m,) each."""
        cross = self._covariance(points)
        white = cross @ self._whitening.T
        total = self._hyper.total
        variance = total - np.einsum("ij,ij->i", white, white)
        return cross @ self._alpha, np.sqrt(np.maximum(variance, _LEAST_VARIANCE * total))

    def predict_with_gradients(self, point: Array) -> tuple[float, float, Array, Array]:
        """Mean and standard deviation at one point, and their gradients by its embedding, shape (q,)."""
        signal, total = self._hyper.signal, self._hyper.total
        away = point * self._scale - self._points
        shape, slope = correlation(np.einsum("ij,ij->i", away, away))
        effects, main_pull = self._effects(point)
        cross = signal * shape + effects
        white = self._whitening @ cross
        variance = max(total - float(white @ white), _LEAST_VARIANCE * total)
        deviation = math.sqrt(variance)
        back = self._whitening.T @ white
        pull = (2.0 * signal * slope)[:, None] * away * self._scale + main_pull
        return float(cross @ self._alpha), deviation, self._alpha @ pull, -(back @ pull) / deviation

    def _effects(self, point: Array) -> tuple[Array, Array]:
        """The main effects' covariance of one point with the observed ones, shape (n,), and its gradient, (n,
        q)."""
        away = point * self._main_scale - self._main_points
        squares = np.zeros((len(away), len(self._hyper.lengths)))
        if len(self._groups) == squares.shape[1]:
            np.multiply(away, away, out=squares)
        else:
            np.add.at(squares.T, self._groups, (away * away).T)
        effects = self._share * np.exp(-squares)
        return effects.sum(axis=1), -2.0 * effects[:, self._groups] * away * self._main_scale


def correlation(squares: Array) -> tuple[Array, Array]:
    """Matérn-5/2 of squared scaled distances, and its derivative by them."""
    root = np.sqrt(5.0 * squares)
    fall = np.exp(-root)
    slope = (-5.0 / 6.0) * (1.0 + root) * fall
    return (1.0 + root + (5.0 / 3.0) * squares) * fall, slope


def _factor(hyper: Hyperparameters, covariance: Array) -> Array:
    """The Cholesky factor of the observations' covariance; with ever more on the diagonal until there is
    one."""
    jitter = JITTER
    while True:
        np.fill_diagonal(covariance, hyper.total * (1.0 + jitter) + hyper.noise)
        factor = cholesky(covariance)
        if factor is not None:
            return factor
        jitter *= 10.0


_SPREAD = 1.2
_DRAWN = 6
"""Of the random places to start the fit from: standard deviation in logarithms, and how many are drawn for
each used."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Bounds of one kind of hyperparameter and a log-normal prior: penalty `weight * log(x / centre)²` (the
    paper's form)."""

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
    """What is expected of hyperparameters before anything is seen."""

    #: Variance, in units of the labels', as are `noise` and `main`.
    signal: Prior
    #: Of squared length scales, in units of the cube, as is `main_length`.
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
"""The paper's, but for the main effects. These may be shorter than the joint part's: a hundred trials say
enough of one parameter alone to follow ten waves, and of all together not."""

_WAVY = 0.01
"""Squared length scale of main effects from which the second start sets out, to find waves under a wide
bowl."""

HIGH_NOISE = replace(LOW_NOISE, noise=Prior(1e-4, 1.0, 0.04))
"""For studies that say that their observations are noisy."""


def fit(
    data: Data, priors: Priors, restarts: int, iterations: int, rng: np.random.Generator
) -> Hyperparameters:
    """The best hyperparameters (MAP) that L-BFGS-B finds from the priors' centres, from wavy main effects,
    and from the better of some random places, `restarts` in all, in at most `iterations` steps each. Same
    data, same answer."""
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
    """The negative log posterior of hyperparameters, and its gradient, by log(signal, noise, main, lengths…,
    main lengths…)."""

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
