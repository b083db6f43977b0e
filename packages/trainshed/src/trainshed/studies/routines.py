"""Numerical routines that several algorithms share, with NumPy only, in float64."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Positions = NDArray[np.int64]
Mask = NDArray[np.bool_]

_BLOCK = 32
"""Rows of a triangular matrix that are inverted together."""

_MAX_STEP = 3.0
"""Maximum step length of `minimize_bounded`: a factor of twenty for a logarithmic value, and the whole range
of the cube."""


def whitening(matrix: Array) -> Array | None:
    """Return `L⁻¹` of a symmetric matrix `L Lᵀ`. Only the lower half of the matrix is read. Return None if
    the matrix is not positive definite. The inverse of the matrix is then `L⁻ᵀ L⁻¹`."""
    try:
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return None
    # Invert in blocks, because NumPy's inverse does not use the triangular form and takes seven times as
    # long.
    inverse = np.zeros_like(matrix)
    for at in range(0, len(matrix), _BLOCK):
        rows = slice(at, at + _BLOCK)
        inverse[rows, rows] = own = np.linalg.inv(factor[rows, rows])
        inverse[rows, :at] = -own @ (factor[rows, :at] @ inverse[:at, :at])
    return inverse


def minimize_bounded(
    value_and_gradient: Callable[[Array], tuple[float, Array]],
    start: Array,
    low: Array,
    high: Array,
    *,
    evaluations: int,
    tolerance: float = 1e-9,
) -> tuple[Array, float]:
    """Return the point within the box that BFGS reaches from `start`, and its value. `tolerance`: stop when
    the relative gain is smaller."""
    at = np.clip(start, low, high)
    value, gradient = value_and_gradient(at)
    inverse = np.eye(len(at))
    free, step = _step(inverse, gradient, at > low, at < high)
    for _ in range(evaluations):
        there = np.clip(at + step, low, high)
        moved = there - at
        expected = float(gradient @ moved)
        if abs(expected) <= tolerance * max(abs(value), 1.0):
            break
        reached, ahead = value_and_gradient(there)
        rise = reached - value
        if rise > -1e-4 * abs(expected):
            # Move to the minimum of the parabola through the known values.
            step *= min(max(0.5 * expected / (expected - rise), 0.1), 0.5)
            continue
        change = np.where(free, ahead - gradient, 0.0)
        curvature = float(moved @ change)
        if curvature > 1e-10 * float(change @ change):
            turned = inverse @ change / curvature
            both = turned[:, None] * moved
            inverse += (1.0 + float(turned @ change)) / curvature * moved[:, None] * moved
            inverse -= both + both.T
        at, value, gradient = there, reached, ahead
        free, step = _step(inverse, gradient, at > low, at < high)
    return at, value


def _step(inverse: Array, gradient: Array, may_fall: Mask, may_rise: Mask) -> tuple[Mask, Array]:
    """Return which coordinates may decrease the value (Bertsekas 1982), and the inverse-Hessian step."""
    free = np.where(gradient > 0.0, may_fall, may_rise)
    step = -np.where(free, inverse @ np.where(free, gradient, 0.0), 0.0)
    return free, step * (_MAX_STEP / max(_MAX_STEP, float(np.linalg.norm(step))))
