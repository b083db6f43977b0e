"""The few SciPy routines that the algorithms use, with types. SciPy ships none.

Contains no mathematics of its own. Everything is float64. LAPACK is called directly: at the sizes of a study
(a hundred rows) the checks of the friendlier functions cost more than the work. Each part of SciPy is loaded
by its first call: `scipy.stats` alone takes longer to load than a random search takes for a study.
"""

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Positions = NDArray[np.int64]
Mask = NDArray[np.bool_]


@cache
def _lapack() -> Any:
    return importlib.import_module("scipy.linalg.lapack")


@cache
def _special() -> Any:
    return importlib.import_module("scipy.special")


def cholesky(matrix: Array) -> Array | None:
    """Return the lower factor of a symmetric matrix, of which only the upper half is read; None if it is not
    positive definite.

    The result is in Fortran order, with zeros above the diagonal.
    """
    factor, info = _lapack().dpotrf(matrix.T, lower=1, clean=1)
    return factor if info == 0 else None


def solve_factored(factor: Array, right: Array) -> Array:
    """Solve `L Lᵀ x = right` for `x`."""
    return _lapack().dpotrs(factor, right, lower=1)[0]


def inverse_factored(factor: Array) -> Array:
    """Return the lower half of `(L Lᵀ)⁻¹`; what is above the diagonal has no meaning."""
    return _lapack().dpotri(factor, lower=1)[0]


def inverse_triangular(factor: Array) -> Array:
    """Return `L⁻¹`."""
    return _lapack().dtrtri(factor, lower=1)[0]


def minimize_bounded(
    value_and_gradient: Callable[[Array], tuple[float, Array]],
    start: Array,
    low: Array,
    high: Array,
    *,
    iterations: int,
    tolerance: float = 1e-9,
) -> tuple[Array, float]:
    """Return the point that L-BFGS-B reaches from `start` within the box, and the value there."""
    optimize: Any = importlib.import_module("scipy.optimize")
    result = optimize.minimize(
        value_and_gradient,
        np.clip(start, low, high),
        jac=True,
        method="L-BFGS-B",
        bounds=optimize.Bounds(low, high),
        options={"maxiter": iterations, "maxfun": 2 * iterations, "ftol": tolerance, "gtol": 1e-6},
    )
    return np.asarray(result.x, dtype=np.float64), float(result.fun)


def sobol(dimensions: int, skip: int, count: int, seed: int) -> Array:
    """Return `count` points of a scrambled Sobol sequence from its `skip`-th on, shape (count, dimensions),
    within [0, 1)."""
    qmc: Any = importlib.import_module("scipy.stats.qmc")
    sequence = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed))
    if skip:
        sequence.fast_forward(skip)
    points: Array = np.concatenate([sequence.random(1) for _ in range(count)])
    return points


def normal_quantile(probability: Array) -> Array:
    return _special().ndtri(probability)


def normal_probability(value: Array) -> Array:
    return _special().ndtr(value)


def log_normal_probability(value: Array) -> Array:
    return _special().log_ndtr(value)
