"""Other libraries behind the algorithm port, which the benchmark compares with: what they see of a tree, and
their answers where they are installed."""

import pytest
from bench.tuning.engines import Engine, algorithm_of
from bench.tuning.engines.tree import is_log, places, to_place, to_value

from trainshed.core.study.records import Measurement, Parameters, TrialState
from trainshed.core.study.spec import (
    Goal,
    Metric,
    Parameter,
    ParameterType,
    Scale,
    StudySpec,
    Value,
)
from trainshed.studies.port import Algorithm, Seen

RATE = Parameter("rate", ParameterType.DOUBLE, 1e-4, 1.0, scale=Scale.LOG)
KEEP = Parameter("keep", ParameterType.DOUBLE, 0.5, 0.999, scale=Scale.REVERSE_LOG)
UNITS = Parameter("units", ParameterType.INTEGER, 1, 64, scale=Scale.LOG)
SIZE = Parameter("size", ParameterType.DISCRETE, values=(0.1, 0.2, 0.5))
KIND = Parameter("kind", ParameterType.CATEGORICAL, categories=("tree", "net"))
TREE = StudySpec(
    (
        RATE,
        KEEP,
        UNITS,
        SIZE,
        KIND,
        Parameter("depth", ParameterType.INTEGER, 1, 5, parent=4, when=("tree",)),
        Parameter("depth", ParameterType.INTEGER, 10, 20, parent=4, when=("net",)),
        Parameter("wide", ParameterType.DOUBLE, 0.0, 1.0, parent=3, when=(0.1, 0.2)),
    ),
    (Metric("loss", Goal.MINIMIZE),),
)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [(RATE, 0.01), (KEEP, 0.9), (UNITS, 8), (SIZE, 0.2), (KIND, "net")],
)
def test_values_come_back(parameter: Parameter, value: Value) -> None:
    """spec/tuning#parameters: parameter types and scales."""
    place = to_place(parameter, value)
    assert place is not None
    assert to_value(parameter, place) == pytest.approx(value)


def test_reverse_log_is_finest_at_the_top() -> None:
    """spec/tuning#parameters: reverse-log scale. What the library sees on its logarithmic scale is the
    mirrored value."""
    assert is_log(KEEP)
    near_top, near_bottom = to_place(KEEP, 0.998), to_place(KEEP, 0.501)
    assert near_top == pytest.approx(0.501)
    assert near_bottom == pytest.approx(0.998)


QUICK = (Engine.OPTUNA_TPE, Engine.OPTUNA_GP)


def engine(name: Engine) -> Algorithm:
    try:
        return algorithm_of(name)
    except ImportError as missing:
        pytest.skip(str(missing))


def loss(parameters: Parameters) -> float:
    point = dict(parameters)
    return float(point["rate"]) + float(point["keep"]) + 0.1 * int(point["depth"])


def tried(engine_: Algorithm, spec: StudySpec, count: int) -> list[Seen]:
    trials: list[Seen] = []
    for number in range(1, count + 1):
        found = engine_.suggest(spec, trials, 1, 3).parameters[0]
        if number == 2:
            trials.append(Seen(number, TrialState.INFEASIBLE, found))
        else:
            values = (("loss", loss(found)), ("risk", 0.1 * number), ("gain", float(number)))
            final = Measurement(values)
            trials.append(Seen(number, TrialState.SUCCEEDED, found, final))
    return trials


def legal(spec: StudySpec, parameters: Parameters) -> bool:
    """Whether the active nodes, and no others, have values of their type within their bounds."""
    found = places(spec, parameters)
    if found is None or len(found) != len(parameters):
        return False
    for index, (_, value) in zip(found, parameters, strict=True):
        node = spec.parameters[index]
        if node.type is ParameterType.INTEGER and not isinstance(value, int):
            return False
        if node.type is ParameterType.DISCRETE and value not in node.values:
            return False
        numeric = node.type in (ParameterType.DOUBLE, ParameterType.INTEGER)
        if numeric and (isinstance(value, str) or not node.low <= value <= node.high):
            return False
    return True


@pytest.mark.parametrize("name", QUICK)
def test_suggestions_are_legal_and_reproducible(name: Engine) -> None:
    """spec/tuning#reproducible: every parameter type, scale and condition; suggestions are reproducible from
    what is stored."""
    algorithm = engine(name)
    trials = tried(algorithm, TREE, 14)
    assert all(legal(TREE, trial.parameters) for trial in trials)
    both = algorithm.suggest(TREE, trials, 2, 3).parameters
    waiting = [*trials, Seen(15, TrialState.ACTIVE, both[0])]
    assert engine(name).suggest(TREE, trials, 1, 3).parameters == both[:1]
    assert engine(name).suggest(TREE, waiting, 1, 3).parameters == both[1:]
    assert both[0] != both[1]
