"""The judge: the 24 functions of COCO's bbob suite in five dimensions, moved and turned by their instance. No
constant of an algorithm of ours was chosen by them.

They need the library cocoex (`environments.coco`). Where it is not there, their objectives raise ImportError.
"""

import contextlib
import math
import random
import tempfile
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.tuning.problems import Objective, Point, Problem, coordinates, double, study

DIMENSIONS = 5
INSTANCES = 15
_WRITTEN = "._bbob_problem_best_parameter.txt"
"""Where the library writes an optimum, in the directory of the process; it tells it in no other way."""


def bbob() -> tuple[Problem, ...]:
    """Regret is above the instance's least value; the seed chooses the instance."""
    spec = study([double(f"x{index}", -5.0, 5.0) for index in range(DIMENSIONS)])
    return tuple(
        Problem(f"bbob-{function:02}", spec, _objective(function), pending=(1,))
        for function in range(1, 25)
    )


def _objective(function: int) -> Callable[[int], Objective]:
    def objective(seed: int) -> Objective:
        instance = random.Random(f"bbob:{seed}").randint(1, INSTANCES)
        problem = _suite().get_problem_by_function_dimension_instance(
            function, DIMENSIONS, instance
        )
        least = float(problem(_optimum(problem)))

        def value(point: Point) -> float:
            return float(problem(coordinates(point, DIMENSIONS))) - least

        return value

    return objective


def _optimum(problem: Any) -> list[float]:
    with tempfile.TemporaryDirectory() as home, contextlib.chdir(home):
        problem._best_parameter("print")
        found = [float(word) for word in Path(_WRITTEN).read_text("utf-8").split()]
    assert len(found) == DIMENSIONS, f"cocoex wrote no optimum: {found}"
    assert all(map(math.isfinite, found))
    return found


@cache
def _suite() -> Any:
    return import_module("cocoex").Suite(
        "bbob", f"instances: 1-{INSTANCES}", f"dimensions: {DIMENSIONS}"
    )
