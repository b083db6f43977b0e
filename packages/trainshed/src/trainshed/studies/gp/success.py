"""Where trials succeed: a Gaussian-process classifier of trials with a value against trials without one.

What a trial measures and whether it measures anything are modelled separately: a failed trial taken as a very
bad one would bend the model of the objective down along the whole border, where the best points often lie (as
large a batch as memory holds). A latent function says how likely success is, through the normal distribution.
It is a plane, as most borders are on the parameters' scales, plus as much of a smooth function as the trials
ask for. It is fitted by Laplace's approximation, and its evidence chooses among a few shapes (Rasmussen and
Williams 2006, chapter 3).

Shapes: n observed points, m asked for, q columns of the embedding.
"""

import math
from dataclasses import dataclass

import numpy as np

from trainshed.studies.routines import Array, Mask, whitening

_STEPS = 30
"""Most steps of Newton's method; it takes about eight."""

_ENOUGH = 1e-6
"""Change of the latent function below which it has converged."""

_FAR = -35.0
"""Argument below which the normal distribution is taken from its series."""

_BIAS = 1.0
"""Variance of the latent function's mean, in units of its own."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the latent function is expected to be like."""

    #: Its scale: the larger, the sharper borders may be.
    scale: float
    #: Share of a plane: variance of its slope in units of the cube.
    plane: float
    #: Share of a smooth function.
    smooth: float
    #: Its squared length scale for each parameter, in units of the cube.
    length: float


_SHAPES = tuple(
    Shape(scale, *rest)
    for scale in (1.0, 30.0, 1000.0)
    for rest in ((4.0, 0.0, 1.0), (4.0, 1.0, 0.2), (1.0, 1.0, 0.04))
)


class Success:
    """The fitted classifier: the latent function's posterior. Positive where success is likelier than not."""

    def __init__(self, points: Array, succeeded: Mask, width: int, shape: Shape) -> None:
        """`width`: number of parameters."""
        self._points = points - 0.5
        self._shape = shape
        self._length = 2.0 * shape.length * width
        signs = np.where(succeeded, 1.0, -1.0)
        covariance, _ = self._covariance(points)
        self._pull, roots, whiten, self.evidence = _mode(covariance, signs)
        self._whitening = whiten * roots

    def _covariance(self, points: Array) -> tuple[Array, Array]:
        """Return the covariance with the observed points, shape (m, n), and its smooth part."""
        centred, shape = points - 0.5, self._shape
        products = centred @ self._points.T
        squares = np.einsum("ij,ij->i", centred, centred)[:, None] - 2.0 * products
        squares += np.einsum("ij,ij->i", self._points, self._points)
        smooth = shape.smooth * np.exp(-np.maximum(squares, 0.0) / self._length)
        return shape.scale * (_BIAS + shape.plane * products + smooth), smooth

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of the latent function, shape (m,) each."""
        cross, _ = self._covariance(points)
        white = cross @ self._whitening.T
        variance = self._prior(points) - np.einsum("ij,ij->i", white, white)
        return cross @ self._pull, np.sqrt(np.maximum(variance, 1e-12))

    def _prior(self, points: Array) -> Array:
        centred, shape = points - 0.5, self._shape
        flat = shape.plane * np.einsum("ij,ij->i", centred, centred)
        return shape.scale * (_BIAS + flat + shape.smooth)

    def predict_with_gradients(self, point: Array) -> tuple[float, float, Array, Array]:
        """Return both at one point, and their gradients by its embedding, shape (q,)."""
        table, centred, shape = point[None, :], point - 0.5, self._shape
        cross, smooth = self._covariance(table)
        away = centred - self._points
        slopes = shape.plane * self._points - (2.0 / self._length) * smooth[0][:, None] * away
        slopes *= shape.scale
        white = self._whitening @ cross[0]
        deviation = math.sqrt(max(float(self._prior(table)[0] - white @ white), 1e-12))
        back = self._whitening.T @ white
        out = (shape.scale * shape.plane * centred - back @ slopes) / deviation
        return float(cross[0] @ self._pull), deviation, self._pull @ slopes, out


def likeliest(points: Array, succeeded: Mask, width: int) -> Shape:
    """Return the shape that explains best which trials succeeded. The same data give the same answer."""
    evidence = {shape: Success(points, succeeded, width, shape).evidence for shape in _SHAPES}
    return max(evidence, key=lambda shape: evidence[shape])


def _mode(covariance: Array, signs: Array) -> tuple[Array, Array, Array, float]:
    """Find Laplace's approximation by Newton's method. Returns the slopes of the logarithmic likelihood at
    the mode, the square roots of its curvatures, `whitening` of `1 + roots K roots`, and the logarithmic
    evidence."""
    latent = weights = slopes = roots = logs = np.zeros(len(signs))
    whiten = np.eye(len(signs))
    for _ in range(_STEPS):
        margins = signs * latent
        logs = log_normal_probability(margins)
        ratio = np.exp(-0.5 * margins**2 - logs) / math.sqrt(2.0 * math.pi)
        slopes, curvatures = signs * ratio, np.maximum(ratio * (ratio + margins), 1e-12)
        roots = np.sqrt(curvatures)
        matrix = roots[:, None] * covariance * roots
        matrix[np.diag_indices_from(matrix)] += 1.0
        whiten = whitening(matrix)
        assert whiten is not None, "1 + a covariance is positive"
        right = curvatures * latent + slopes
        weights = right - roots * (whiten.T @ (whiten @ (roots * (covariance @ right))))
        before, latent = latent, covariance @ weights
        if np.abs(latent - before).max() < _ENOUGH:
            break
    evidence = float(logs.sum() - 0.5 * weights @ latent + np.log(np.diag(whiten)).sum())
    return slopes, roots, whiten, evidence


def log_normal_probability(values: Array) -> Array:
    """Return the logarithm of the normal distribution at each value, shape (n,); far below 0, where it has no
    float of its own, by its asymptotic series."""
    near, far = np.maximum(values, _FAR), np.minimum(values, _FAR)
    logs = np.log([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in near])
    tail = -0.5 * far**2 - np.log(-far * math.sqrt(2.0 * math.pi)) - far**-2 + 2.5 * far**-4
    return np.where(values < _FAR, tail, logs)
