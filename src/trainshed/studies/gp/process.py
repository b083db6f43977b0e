"""The Gaussian process: what is known of any point, with gradients, given observed points and hyperparameters.

A function is modelled as a joint part, Matérn-5/2 over all parameters with a length scale for each, plus main effects:
one smooth function of each parameter alone. The paper (arXiv 2408.11527) has the joint part only; most of what
hyperparameters do they do each for itself (Duvenaud et al. 2011, arXiv 1112.4394), and what is learnt of one
parameter then holds wherever the others are.

Owns the mathematics of the model; `fitting` finds its hyperparameters. Labels come warped (`warping`), points embedded
(`space.Space.embed`). Shapes: n observed points, m asked for, p nodes, q columns of the embedding.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from trainshed.studies.routines import (
    Array,
    Positions,
    cholesky,
    inverse_triangular,
    solve_factored,
)

JITTER = 1e-9
"""Added to the diagonal, as a share of the signal's variance."""

_LEAST_VARIANCE = 1e-14
"""As a share of the signal's; what is less is rounding."""


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """`signal`, `noise`, `main`: variances of the joint part, of what is observed beyond the function, and of all main
    effects together. `lengths`: squared length scales of the joint part, `main_lengths`: of the main effects, shape (p,)
    each."""

    signal: float
    noise: float
    lengths: Array
    main: float
    main_lengths: Array

    @property
    def total(self) -> float:
        """The variance of the function where nothing is known."""
        return self.signal + self.main


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
        """The main effects' covariance of one point with the observed ones, shape (n,), and its gradient, (n, q)."""
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
    """The Cholesky factor of the observations' covariance; with ever more on the diagonal until there is one."""
    jitter = JITTER
    while True:
        np.fill_diagonal(covariance, hyper.total * (1.0 + jitter) + hyper.noise)
        factor = cholesky(covariance)
        if factor is not None:
            return factor
        jitter *= 10.0
