"""The synthetic problems: functions of a trial's parameters whose minimum is known. Pure.

Every seed is a separate instance. It determines the location of the optimum, away from the centre and from
the edges, so that no fixed guess finds it. All problems are minimized.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trainshed.core.study.spec import Goal, Metric, Noise, Parameter, ParameterType, Scale, StudySpec, Value

METRIC = "loss"
Point = Mapping[str, Value]
Objective = Callable[[Point], float | None]
"""Returns the value of a point; None = the trial fails."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem. Its regret is computed from the true value, without noise."""

    name: str
    spec: StudySpec
    #: Returns the objective of a seed.
    objective: Callable[[int], Objective]
    #: The known optimum, or the best known value.
    least: float = 0.0
    #: Standard deviation of the noise on reported values.
    noise: float = 0.0
    #: Fraction of the trials that report a worse value. The difference is at most `spoilt_by`.
    outliers: float = 0.0
    spoilt_by: float = 0.0
    #: Numbers of pending trials. Each number is one case.
    pending: tuple[int, ...] = (1, 8)

    def report(self, true: float, draw: random.Random) -> float:
        """Return the value that a trial reports."""
        observed = true + self.noise * draw.gauss(0, 1)
        if self.outliers and draw.random() < self.outliers:
            observed += self.spoilt_by * draw.random()
        return observed


def made() -> tuple[Problem, ...]:
    """Return all synthetic problems, without the two real tasks."""
    return (
        _shift_optimum("sphere-8", 8, 5.0, lambda z: sum(coordinate**2 for coordinate in z)),
        _shift_optimum("ellipsoid-5", 5, 5.0, ellipsoid),
        _shift_optimum("rosenbrock-4", 4, 2.0, _rosenbrock),
        _shift_optimum("rastrigin-3", 3, 5.12, rastrigin),
        _shift_optimum("ackley-10", 10, 10.0, _ackley),
        _shift_optimum("levy-6", 6, 10.0, _levy),
        hartmann("hartmann-6"),
        hartmann("hartmann-6-noisy", noise=0.1),
        _branin(),
        _conditional(),
    )


def study(parameters: Sequence[Parameter], noise: Noise = Noise.LOW) -> StudySpec:
    """Return a study that minimizes the metric."""
    return StudySpec(tuple(parameters), (Metric(METRIC, Goal.MINIMIZE),), noise=noise)


def double(name: str, low: float, high: float, scale: Scale = Scale.LINEAR) -> Parameter:
    return Parameter(name, ParameterType.DOUBLE, low, high, scale=scale)


def integer(name: str, low: int, high: int, scale: Scale = Scale.LINEAR) -> Parameter:
    return Parameter(name, ParameterType.INTEGER, low, high, scale=scale)


def coordinates(point: Point, count: int) -> list[float]:
    return [float(point[f"x{index}"]) for index in range(count)]


def _shift_optimum(
    name: str, count: int, bound: float, function: Callable[[Sequence[float]], float]
) -> Problem:
    """Return a problem. `function` is 0 at the origin. Its argument is the distance from the instance's
    optimum."""

    def objective(seed: int) -> Objective:
        draw = random.Random(f"{name}:{seed}")
        optimum = [draw.choice((-1, 1)) * bound * draw.uniform(0.2, 0.7) for _ in range(count)]
        return lambda point: function(
            [x - o for x, o in zip(coordinates(point, count), optimum, strict=True)]
        )

    spec = study([double(f"x{index}", -bound, bound) for index in range(count)])
    return Problem(name, spec, objective)


def ellipsoid(z: Sequence[float], powers: float = 3.0) -> float:
    """An ellipsoid whose condition number is ten to the power of `powers`."""
    return sum(10 ** (powers * i / (len(z) - 1)) * coordinate**2 for i, coordinate in enumerate(z))


def _rosenbrock(z: Sequence[float]) -> float:
    y = [coordinate + 1 for coordinate in z]
    return sum(100 * (after - before**2) ** 2 + (1 - before) ** 2 for before, after in pairwise(y))


def rastrigin(z: Sequence[float]) -> float:
    return sum(coordinate**2 - 10 * math.cos(2 * math.pi * coordinate) + 10 for coordinate in z)


def _ackley(z: Sequence[float]) -> float:
    squares = sum(coordinate**2 for coordinate in z) / len(z)
    waves = sum(math.cos(2 * math.pi * coordinate) for coordinate in z) / len(z)
    return -20 * math.exp(-0.2 * math.sqrt(squares)) - math.exp(waves) + 20 + math.e


def _levy(z: Sequence[float]) -> float:
    w = [1 + coordinate / 4 for coordinate in z]
    inner = sum((v - 1) ** 2 * (1 + 10 * math.sin(math.pi * v + 1) ** 2) for v in w[:-1])
    last = (w[-1] - 1) ** 2 * (1 + math.sin(2 * math.pi * w[-1]) ** 2)
    return math.sin(math.pi * w[0]) ** 2 + inner + last


_ALPHA = (1.0, 1.2, 3.0, 3.2)
_A = (
    (10.0, 3.0, 17.0, 3.5, 1.7, 8.0),
    (0.05, 10.0, 17.0, 0.1, 8.0, 14.0),
    (3.0, 3.5, 1.7, 10.0, 17.0, 8.0),
    (17.0, 8.0, 0.05, 10.0, 0.1, 14.0),
)
_P = (
    (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
    (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
    (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
    (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
)


def hartmann(
    name: str,
    *,
    noise: float = 0.0,
    is_told: bool = True,
    outliers: float = 0.0,
    spoilt_by: float = 0.0,
    pending: tuple[int, ...] = (1, 8),
) -> Problem:
    """The Hartmann function. The seed mirrors its six coordinates. `is_told`: whether the study declares the
    noise."""

    def objective(seed: int) -> Objective:
        draw = random.Random(f"hartmann-6:{seed}")
        mirrored = [draw.random() < 0.5 for _ in range(6)]

        def value(point: Point) -> float:
            x = [
                1 - coordinate if turned else coordinate
                for coordinate, turned in zip(coordinates(point, 6), mirrored, strict=True)
            ]
            return -sum(
                alpha * math.exp(-sum(a * (v - p) ** 2 for a, v, p in zip(row, x, places, strict=True)))
                for alpha, row, places in zip(_ALPHA, _A, _P, strict=True)
            )

        return value

    declared = Noise.HIGH if noise and is_told else Noise.LOW
    spec = study([double(f"x{index}", 0.0, 1.0) for index in range(6)], declared)
    least = -3.322368011415515
    return Problem(name, spec, objective, least, noise, outliers, spoilt_by, pending)


def _branin() -> Problem:
    """The Branin function, which has three optima. Odd seeds rotate it by half a turn."""

    def objective(seed: int) -> Objective:
        def value(point: Point) -> float:
            a, b = coordinates(point, 2)
            x, y = (5 - a, 15 - b) if seed % 2 else (a, b)
            bent = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
            return bent**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10

        return value

    spec = study([double("x0", -5.0, 10.0), double("x1", 0.0, 15.0)])
    return Problem("branin", spec, objective, 0.39788735772973816)


def _conditional() -> Problem:
    """Three kinds of model with separate parameters. The net is best if all its parameters are right.
    Otherwise it is worse than a plain tree."""
    parameters = (
        Parameter("kind", ParameterType.CATEGORICAL, categories=("linear", "tree", "net")),
        _child(double("alpha", 1e-6, 1e2, Scale.LOG), "linear"),
        _child(integer("leaves", 2, 512, Scale.LOG), "tree"),
        _child(double("shrinkage", 0.01, 1.0, Scale.LOG), "tree"),
        _child(double("rate", 1e-5, 1e-1, Scale.LOG), "net"),
        _child(double("momentum", 0.5, 0.999, Scale.REVERSE_LOG), "net"),
        _child(integer("layers", 1, 6), "net"),
        _child(Parameter("width", ParameterType.DISCRETE, values=(16.0, 32.0, 64.0, 128.0, 256.0)), "net"),
        _child(Parameter("gate", ParameterType.CATEGORICAL, categories=("a", "b", "c")), "net"),
    )

    def objective(seed: int) -> Objective:
        draw = random.Random(f"conditional:{seed}")
        rate, leaves = 10 ** draw.uniform(-4, -2), 2 ** draw.uniform(3, 7)
        layers, width, gate = draw.randint(2, 5), draw.choice((32, 64, 128)), draw.choice("abc")
        still = 10 ** draw.uniform(-2.4, -0.6)

        def value(point: Point) -> float:
            if point["kind"] == "linear":
                return 0.6 + 0.02 * math.log10(float(point["alpha"]) / 1e-2) ** 2
            if point["kind"] == "tree":
                away = math.log2(float(point["leaves"]) / leaves) ** 2
                return 0.3 + 0.02 * away + 0.1 * math.log10(float(point["shrinkage"]) / 0.1) ** 2
            return (
                0.3 * math.log10(float(point["rate"]) / rate) ** 2
                + 0.1 * math.log10((1 - float(point["momentum"])) / still) ** 2
                + 0.03 * (int(point["layers"]) - layers) ** 2
                + 0.03 * math.log2(float(point["width"]) / width) ** 2
                + (0.0 if point["gate"] == gate else 0.1)
            )

        return value

    return Problem("conditional", study(parameters), objective)


def _child(parameter: Parameter, kind: str) -> Parameter:
    return Parameter(
        parameter.id,
        parameter.type,
        parameter.low,
        parameter.high,
        parameter.values,
        parameter.categories,
        parameter.scale,
        parent=0,
        when=(kind,),
    )
