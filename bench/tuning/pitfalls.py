"""Synthetic problems that mislead the model of a study. Their minima are known. Pure.

They have parameters that only work together, failing trials, outliers, or undeclared noise. As in `problems`,
every seed is a separate instance. All problems are minimized. Trials are evaluated one after another.
"""

import math
import random
from collections.abc import Callable, Sequence

from bench.tuning.problems import Objective, Point, Problem, coordinates, double, hartmann, study

FAILING = ("failing-edge-4", "failing-oblique-5")
SPOILT = ("hartmann-6-outliers", "hartmann-6-unsaid", "sphere-5-outliers", "sphere-5-unsaid")
Vector = Sequence[float]


def pitfalls() -> tuple[Problem, ...]:
    return (
        _move_optimum("failing-edge-4", 4, 5.0, _cut),
        _move_optimum("failing-oblique-5", 5, 5.0, _fail_half, turned=True),
        hartmann("hartmann-6-outliers", outliers=_OUTLIER_FRACTION, spoilt_by=30.0, pending=(1,)),
        hartmann("hartmann-6-unsaid", noise=0.1, is_told=False, pending=(1,)),
        _move_optimum("sphere-5-outliers", 5, 5.0, _sphere, outliers=_OUTLIER_FRACTION, spoilt_by=1000.0),
        _move_optimum("sphere-5-unsaid", 5, 5.0, _sphere, noise=2.0),
    )


_OUTLIER_FRACTION = 0.05
"""Fraction of the trials that measure a value far worse than the true value."""


def _move_optimum(
    name: str,
    count: int,
    bound: float,
    function: Callable[[Vector], float | None],
    *,
    turned: bool = False,
    noise: float = 0.0,
    outliers: float = 0.0,
    spoilt_by: float = 0.0,
) -> Problem:
    """Return a problem whose optimum depends on the instance.

    `function` has its minimum 0 at the origin. Its argument is the vector from the instance's optimum.
    `turned`: whether the instance rotates the vector randomly. The study does not declare the noise.
    """

    def objective(seed: int) -> Objective:
        draw = random.Random(f"{name}:{seed}")
        optimum = [draw.choice((-1, 1)) * bound * draw.uniform(0.2, 0.7) for _ in range(count)]
        axes = rotation(count, draw) if turned else []

        def value(point: Point) -> float | None:
            z = [x - o for x, o in zip(coordinates(point, count), optimum, strict=True)]
            return function([_dot(axis, z) for axis in axes] if turned else z)

        return value

    spec = study([double(f"x{index}", -bound, bound) for index in range(count)])
    return Problem(name, spec, objective, noise=noise, outliers=outliers, spoilt_by=spoilt_by, pending=(1,))


def rotation(count: int, draw: random.Random) -> list[list[float]]:
    """Return orthonormal axes that are drawn uniformly."""
    axes: list[list[float]] = []
    while len(axes) < count:
        axis = [draw.gauss(0, 1) for _ in range(count)]
        for other in axes:
            along = _dot(axis, other)
            axis = [a - along * o for a, o in zip(axis, other, strict=True)]
        length = math.sqrt(_dot(axis, axis))
        axes.append([a / length for a in axis])
    return axes


def _dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _sphere(z: Vector) -> float:
    return _dot(z, z)


def _fail_half(z: Vector) -> float | None:
    """Trials in half of the space fail, and the optimum is on the border."""
    return None if z[0] < 0.0 else _sphere(z)


def _cut(z: Vector) -> float | None:
    """Like `_fail_half`, but the function continues to decrease beyond the border."""
    return None if z[0] < 0.0 else _sphere(z) + 4.0 * z[0]
