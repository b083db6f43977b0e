"""The two real tasks: hyperparameters of scikit-learn models by cross-validation, with the same folds in
every call.

`python -m bench.tuning.learning TASK EVALUATIONS SEED` searches for the best value of a task: half of the
evaluations are random, the others change one or two parameters of the best result so far. The constants below
are the best results of all such searches and of the benchmark. If a candidate finds a better value, its
regret is 0, and the report shows the value.
"""

import random
import sys
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from bench.tuning.problems import Objective, Point, Problem, double, integer, study
from trainshed.core.study.spec import Parameter, ParameterType, Scale, Value
from trainshed.studies.random_search import RandomSearch

BEST_KNOWN = {"boosting-diabetes": 0.5214710075042481, "svm-digits": 0.015}
"""Best known values: 1 - R² for boosting, and the fraction of wrong answers for the SVM."""


def real_tasks() -> tuple[Problem, ...]:
    """Return the two tasks. Without scikit-learn, their objectives raise ImportError."""
    return (
        _task(
            "boosting-diabetes",
            _boosting,
            double("learning_rate", 0.005, 0.5, Scale.LOG),
            integer("n_estimators", 10, 150, Scale.LOG),
            integer("max_depth", 1, 8),
            integer("min_samples_leaf", 1, 60, Scale.LOG),
            double("subsample", 0.3, 1.0),
            double("max_features", 0.1, 1.0),
        ),
        _task(
            "svm-digits",
            _svm,
            double("C", 1e-3, 1e3, Scale.LOG),
            double("gamma", 1e-6, 1e1, Scale.LOG),
            Parameter("kernel", ParameterType.CATEGORICAL, categories=("poly", "rbf", "sigmoid")),
            double("coef0", -1.0, 1.0),
            integer("degree", 2, 5),
        ),
    )


def _task(name: str, value: Callable[[Point], float], *parameters: Parameter) -> Problem:
    def objective(seed: int) -> Objective:
        """The task is the same for all seeds. Seeds only change the candidates' random draws."""
        return value

    return Problem(name, study(parameters), objective, BEST_KNOWN[name])


@cache
def _diabetes() -> Any:
    return import_module("sklearn.datasets").load_diabetes(return_X_y=True)


@cache
def _digits() -> Any:
    """Return every third image of the data set, 599 images."""
    pictures, answers = import_module("sklearn.datasets").load_digits(return_X_y=True)
    return pictures[::3] / 16.0, answers[::3]


def _boosting(point: Point) -> float:
    ensemble: Any = import_module("sklearn.ensemble")
    model = ensemble.GradientBoostingRegressor(random_state=0, **dict(point))
    return 1.0 - _cross_validated(model, _diabetes(), "r2")


def _svm(point: Point) -> float:
    svm: Any = import_module("sklearn.svm")
    model = svm.SVC(max_iter=5000, **dict(point))
    return 1.0 - _cross_validated(model, _digits(), "accuracy")


def _cross_validated(model: Any, data: Any, scoring: str) -> float:
    selection: Any = import_module("sklearn.model_selection")
    kind = selection.StratifiedKFold if scoring == "accuracy" else selection.KFold
    folds = kind(n_splits=3, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # An SVM that did not converge still has a score.
        return float(selection.cross_val_score(model, *data, cv=folds, scoring=scoring).mean())


def search(problem: Problem, evaluations: int, seed: int) -> tuple[float, dict[str, Value]]:
    """Search for the best value and its parameters. Prints each improvement."""
    draw, value = random.Random(seed), problem.objective(0)
    best, best_point = float("inf"), dict[str, Value]()
    for index in range(evaluations):
        proposals = RandomSearch().suggest(problem.spec, (), 1, seed * 1_000_000 + index)
        point = dict(proposals.parameters[0])
        if index > evaluations // 2:
            changed = draw.sample(sorted(point), draw.choice((1, 1, 2)))
            point = {
                name: _nearby(problem, name, best_point[name], new, draw)
                if name in changed
                else best_point[name]
                for name, new in point.items()
            }
        now = value(point)
        if now is not None and now < best:
            best, best_point = now, point
            print(index, best, best_point, flush=True)
    return best, best_point


def _nearby(problem: Problem, name: str, old: Value, new: Value, draw: random.Random) -> Value:
    """Draw a value between the old and the new value, usually close to the old one, on the parameter's
    scale."""
    parameter = next(parameter for parameter in problem.spec.parameters if parameter.id == name)
    if isinstance(old, str) or isinstance(new, str):
        return new
    part = draw.random() ** 3
    if parameter.scale is Scale.LOG:
        mixed = old ** (1 - part) * new**part
    else:
        mixed = old * (1 - part) + new * part
    return round(mixed) if parameter.type is ParameterType.INTEGER else mixed


if __name__ == "__main__":
    task = next(problem for problem in real_tasks() if problem.name == sys.argv[1])
    search(task, int(sys.argv[2]), int(sys.argv[3]))
