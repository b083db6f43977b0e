"""The Gaussian process: the distribution of a function at any point, with gradients, given observed points
and hyperparameters.

The function is the sum of a joint part and main effects. The joint part is Matérn-5/2 over all parameters,
with one length scale per parameter. A main effect is a smooth function of one parameter. The paper (arXiv
2408.11527) has only the joint part. But most tuned parameters act independently (Duvenaud et al. 2011, arXiv
1112.4394). Knowledge about one of them then applies to all values of the other ones.

The hyperparameters are fitted by MAP with BFGS and gradients. The priors are those of the paper; priors of
main effects have the same form. Labels are warped before (`belief.warp`), and points are embedded
(`space.Space.embed`). Shapes: n observed points, m requested points, p nodes, q columns of the embedding.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from trainshed.studies.routines import Array, Positions, minimize_bounded, whitening

JITTER = 1e-9
"""Added to the diagonal of the covariance, as a share of the signal's variance."""

_MIN_VARIANCE = 1e-14
"""Minimum variance, as a share of the prior variance. Smaller values are rounding errors."""


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The hyperparameters of a process."""

    #: Variance of the joint part.
    signal: float
    #: Variance of the observations around the function.
    noise: float
    #: Squared length scales of the joint part, shape (p,).
    lengths: Array
    #: Variance of the sum of all main effects.
    main: float
    #: Squared length scales of the main effects, shape (p,).
    main_lengths: Array

    @property
    def total(self) -> float:
        """The prior variance of the function."""
        return self.signal + self.main


@dataclass(frozen=True, slots=True)
class Data:
    """The observations that a process explains."""

    #: The observed points in the embedding, shape (n, q).
    points: Array
    #: The labels of the points, shape (n,).
    labels: Array
    #: The node of each column of the embedding, shape (q,).
    groups: Positions
    #: The number p of nodes.
    width: int

    def only(self, rows: Positions) -> "Data":
        return replace(self, points=self.points[rows], labels=self.labels[rows])


class Posterior:
    """The model's prediction at any point, given observed points. `pending`: points, shape (k, q), that count
    as observed for the standard deviation. The mean is not valid if `pending` is not empty."""

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
        self._whitening = _whitening(hyper, self._covariance(points))
        self._alpha = np.zeros(len(points))
        if pending is None:
            self._alpha = self._whitening.T @ (self._whitening @ data.labels)

    def _covariance(self, points: Array) -> Array:
        """Return the covariance between the function at `points` and at the observed points, shape (m, n)."""
        scaled = points * self._scale
        squares = self._norms - 2.0 * (scaled @ self._points.T)
        squares += np.einsum("ij,ij->i", scaled, scaled)[:, None]
        cross, _ = matern(np.maximum(squares, 0.0))
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
        """Return the mean and the standard deviation of the function (without noise), each of shape (m,)."""
        cross = self._covariance(points)
        white = cross @ self._whitening.T
        prior = self._hyper.total
        variance = prior - np.einsum("ij,ij->i", white, white)
        return cross @ self._alpha, np.sqrt(np.maximum(variance, _MIN_VARIANCE * prior))

    def predict_with_gradients(self, point: Array) -> tuple[float, float, Array, Array]:
        """Return the mean and the standard deviation at one point, and their gradients with respect to its
        embedding, shape (q,)."""
        prior = self._hyper.total
        cross, pull = self._pull(point)
        white = self._whitening @ cross
        variance = max(prior - float(white @ white), _MIN_VARIANCE * prior)
        deviation = math.sqrt(variance)
        back = self._whitening.T @ white
        spread = -(back @ pull) / deviation
        return float(cross @ self._alpha), deviation, self._alpha @ pull, spread

    def _pull(self, point: Array) -> tuple[Array, Array]:
        """Return the covariance of one point with the observed points, shape (n,), and its gradient, shape
        (n, q)."""
        away = point * self._scale - self._points
        shape, slope = matern(np.einsum("ij,ij->i", away, away))
        cross = self._hyper.signal * shape
        pull = (2.0 * self._hyper.signal * slope)[:, None] * away * self._scale
        effects, main_pull = self._effects(point)
        return cross + effects, pull + main_pull

    def _effects(self, point: Array) -> tuple[Array, Array]:
        """Return the main effects' covariance of one point with the observed points, shape (n,), and its
        gradient, shape (n, q)."""
        away = point * self._main_scale - self._main_points
        squares = np.zeros((len(away), len(self._hyper.lengths)))
        if len(self._groups) == squares.shape[1]:
            np.multiply(away, away, out=squares)
        else:
            np.add.at(squares.T, self._groups, (away * away).T)
        effects = self._share * np.exp(-squares)
        return effects.sum(axis=1), -2.0 * effects[:, self._groups] * away * self._main_scale


def matern(squares: Array) -> tuple[Array, Array]:
    """Return the Matérn-5/2 function of squared scaled distances, and its derivative with respect to them."""
    root = np.sqrt(5.0 * squares)
    fall = np.exp(-root)
    slope = (-5.0 / 6.0) * (1.0 + root) * fall
    return (1.0 + root + (5.0 / 3.0) * squares) * fall, slope


def _whitening(hyper: Hyperparameters, covariance: Array) -> Array:
    """Return `whitening` of the observations' covariance. Increase the diagonal until the matrix is positive
    definite."""
    jitter = JITTER
    while True:
        np.fill_diagonal(covariance, hyper.total * (1.0 + jitter) + hyper.noise)
        whiten = whitening(covariance)
        if whiten is not None:
            return whiten
        jitter *= 10.0


@dataclass(frozen=True, slots=True)
class Prior:
    """The bounds of a hyperparameter and its log-normal prior: the penalty `weight * log(x / centre)²`, as in
    the paper."""

    low: float
    high: float
    centre: float
    weight: float = 0.01


@dataclass(frozen=True, slots=True)
class Priors:
    """The prior distributions of hyperparameters."""

    #: Variances, in units of the labels' variance: `signal`, `noise`, `main`.
    signal: Prior
    #: Squared length scales, in units of the cube: `length`, `main_length`.
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
"""The paper's priors, with additional ones for main effects. Main effects may have shorter length scales than
the joint part. A hundred trials can resolve ten waves of one parameter, but not of all parameters
together."""

_SHORT_LENGTH = 0.01
"""Squared length scale of main effects at the second start of the fit. It finds short waves on a wide
valley."""

HIGH_NOISE = replace(LOW_NOISE, noise=Prior(1e-4, 1.0, 0.04))
"""Priors for studies whose spec declares noisy observations."""


def fit(data: Data, priors: Priors, evaluations: int) -> Hyperparameters:
    """Run BFGS from two starts, with at most `evaluations` each, and return the better hyperparameters (MAP).
    The first start is at the centres of the priors. The second start has the length scale `_SHORT_LENGTH` for
    all main effects instead. The same data give the same result."""
    evidence = _Evidence(data, priors)
    wavy = evidence.centre.copy()
    wavy[3 + data.width :] = math.log(_SHORT_LENGTH)
    fits = [evidence.best(start, evaluations) for start in (evidence.centre, wavy)]
    return min(fits, key=lambda fitted: fitted[0])[1]


class _Evidence:
    """The negative log posterior of hyperparameters, and its gradient with respect to log(signal, noise,
    lengths…, main, main lengths…)."""

    def __init__(self, data: Data, priors: Priors) -> None:
        self._labels = data.labels
        self._width = data.width
        joint = [priors.signal, priors.noise, *[priors.length] * data.width]
        kinds = [*joint, priors.main, *[priors.main_length] * data.width]
        self._low = np.log([prior.low for prior in kinds])
        self._high = np.log([prior.high for prior in kinds])
        self._weights = np.array([prior.weight for prior in kinds])
        self.centre: Array = np.log([prior.centre for prior in kinds])
        count = len(data.points)
        self._rows, self._columns = np.tril_indices(count, -1)
        self._pairs = self._rows * count + self._columns
        self._squares = np.zeros((data.width, len(self._pairs)))
        for column, group in enumerate(data.groups):
            values = data.points[:, column]
            self._squares[group] += (values[self._rows] - values[self._columns]) ** 2
        self._away, self._effects = np.empty_like(self._squares), np.empty_like(self._squares)

    def best(self, start: Array, evaluations: int) -> tuple[float, Hyperparameters]:
        """Return the loss and the hyperparameters that the optimization reaches from `start`."""
        theta, loss = minimize_bounded(
            self, start, self._low, self._high, evaluations=evaluations, tolerance=1e-6
        )
        signal, noise, *rest = np.exp(theta)
        lengths = np.array(rest[: self._width])
        main, *rest = rest[self._width :]
        return loss, Hyperparameters(signal, noise, lengths, main, np.array(rest))

    def __call__(self, theta: Array) -> tuple[float, Array]:
        signal, noise, width = math.exp(theta[0]), math.exp(theta[1]), self._width
        joint = slice(2, 2 + width)
        weights = np.exp(-theta[joint])
        shape, slope = matern(weights @ self._squares)
        main, (away, effects) = math.exp(theta[2 + width]), (self._away, self._effects)
        np.multiply(self._squares, -np.exp(-theta[3 + width :])[:, None], out=away)
        np.exp(away, out=effects)
        effect = effects.sum(axis=0) / width
        covariance, total = signal * shape + main * effect, signal + main
        count = len(self._labels)
        matrix = np.empty((count, count))
        matrix.ravel()[self._pairs] = covariance
        np.fill_diagonal(matrix, total * (1.0 + JITTER) + noise)
        whiten = whitening(matrix)
        if whiten is None:
            return 1e10, np.zeros(theta.shape)
        inverse = whiten.T @ whiten
        alpha = inverse @ self._labels
        across = alpha[self._rows] * alpha[self._columns] - inverse.ravel()[self._pairs]
        along = float(alpha @ alpha - np.trace(inverse))
        gradient = np.empty(theta.shape)
        gradient[0] = -signal * (0.5 * along * (1.0 + JITTER) + float(across @ shape))
        gradient[1] = -0.5 * noise * along
        gradient[joint] = signal * weights * (self._squares @ (across * slope))
        gradient[2 + width] = -main * (0.5 * along * (1.0 + JITTER) + float(across @ effect))
        away *= effects
        gradient[3 + width :] = (main / width) * (away @ across)
        away_from = theta - self.centre
        loss = 0.5 * float(self._labels @ alpha) - float(np.log(np.diag(whiten)).sum())
        loss += float(self._weights @ (away_from * away_from))
        return loss, gradient + 2.0 * self._weights * away_from
