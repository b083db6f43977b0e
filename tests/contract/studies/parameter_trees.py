"""Generated parameter trees and studies for the tests of algorithms."""

import math
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from trainshed.core.study.records import Measurement, Parameters, TrialState
from trainshed.core.study.spec import Goal, Metric, Parameter, ParameterType, Scale, StudySpec, Value
from trainshed.studies.port import Algorithm, TrialData

Objective = Callable[[dict[str, Value]], float | None]
"""The result of a simulated program; None = the trial is infeasible."""

LOSS = Metric("loss", Goal.MINIMIZE)


def double(name: str, low: float, high: float, scale: Scale = Scale.LINEAR) -> Parameter:
    return Parameter(name, ParameterType.DOUBLE, low, high, scale=scale)


def cube(dimensions: int, low: float = -5.0, high: float = 5.0) -> tuple[Parameter, ...]:
    return tuple(double(f"x{index}", low, high) for index in range(dimensions))


MIXED = (
    Parameter("kind", ParameterType.CATEGORICAL, categories=("tree", "net", "line")),
    double("rate", 1e-5, 1.0, Scale.LOG),
    Parameter("depth", ParameterType.INTEGER, 1, 12, parent=0, when=("tree",)),
    Parameter("layers", ParameterType.INTEGER, 1, 3, parent=0, when=("net",)),
    Parameter(
        "units", ParameterType.DISCRETE, values=(16.0, 64.0, 256.0), scale=Scale.LOG, parent=3, when=(2, 3)
    ),
    Parameter("momentum", ParameterType.DOUBLE, 0.5, 0.999, scale=Scale.REVERSE_LOG, parent=0, when=("net",)),
)
"""Every type and every scale, with conditions two levels deep."""

LISTED = (
    Parameter("kind", ParameterType.CATEGORICAL, categories=("a", "b", "c")),
    Parameter("size", ParameterType.INTEGER, 1, 2),
    Parameter("width", ParameterType.DISCRETE, values=(0.5, 1.0, 2.5), parent=0, when=("b", "c")),
    Parameter("deep", ParameterType.INTEGER, 0, 1, parent=2, when=(2.5,)),
    Parameter("alone", ParameterType.CATEGORICAL, categories=("only",), parent=0, when=("a",)),
)
"""A finite space: (1 + 2 * (1 + 1 + 2)) * 2 = 18 points."""


def mixed_loss(values: dict[str, Value]) -> float:
    """Return the loss of a point of `MIXED`. The minimum, 0, is a net of 2 layers with 64 units,
    rate 1e-2, momentum 0.9."""
    loss = 0.3 * (math.log10(float(values["rate"])) + 2.0) ** 2
    if values["kind"] == "tree":
        return loss + 0.4 + 0.05 * abs(float(values["depth"]) - 6)
    if values["kind"] == "line":
        return loss + 1.0
    loss += 0.3 * abs(float(values["layers"]) - 2) + 2.0 * (float(values["momentum"]) - 0.9) ** 2
    return loss + 0.2 * abs(math.log2(float(values.get("units", 16.0))) - 6.0)


def bowl(values: dict[str, Value]) -> float:
    """Return the loss of a point of a `cube`. The minimum, 0, is off the center."""
    return sum((float(value) - 1.7 + 0.6 * at) ** 2 for at, value in enumerate(values.values()))


def legal(spec: StudySpec, point: Parameters) -> bool:
    """Return whether a point contains exactly the active parameters, in the order of the tree, with
    permitted values."""
    values = dict(point)
    active: dict[int, Value] = {}
    for index, parameter in enumerate(spec.parameters):
        if parameter.parent is not None and active.get(parameter.parent) not in parameter.when:
            continue
        if parameter.id not in values:
            return False
        active[index] = values[parameter.id]
    names = tuple(spec.parameters[index].id for index in active)
    return names == tuple(name for name, _ in point) and all(
        is_permitted_value(spec.parameters[index], value) for index, value in active.items()
    )


def is_permitted_value(parameter: Parameter, value: Value) -> bool:
    match parameter.type:
        case ParameterType.CATEGORICAL:
            return value in parameter.categories
        case ParameterType.DISCRETE:
            return type(value) is float and value in parameter.values
        case ParameterType.INTEGER:
            return type(value) is int and parameter.low <= value <= parameter.high
        case ParameterType.DOUBLE:
            return type(value) is float and parameter.low <= value <= parameter.high


def finished_trial(number: int, point: Parameters, value: float | None, metric: str = "loss") -> TrialData:
    if value is None:
        return TrialData(number, TrialState.INFEASIBLE, point)
    return TrialData(number, TrialState.SUCCEEDED, point, Measurement(((metric, value),)))


def pending(number: int, point: Parameters) -> TrialData:
    return TrialData(number, TrialState.ACTIVE, point)


def play(
    algorithm: Algorithm, spec: StudySpec, objective: Objective, count: int, seed: int = 7
) -> list[TrialData]:
    """Run a study of `count` trials in sequence."""
    trials: list[TrialData] = []
    for number in range(1, count + 1):
        (point,) = algorithm.suggest(spec, trials, 1, seed).parameters
        trials.append(finished_trial(number, point, objective(dict(point))))
    return trials


def best(trials: Sequence[TrialData]) -> float:
    """Return the lowest measured value."""
    values = [trial.final.value("loss") for trial in trials if trial.final is not None]
    return min(value for value in values if value is not None)


@st.composite
def parameters(draw: st.DrawFn, name: str = "p", parent: int = -1, when: tuple[Value, ...] = ()) -> Parameter:
    """Draw a parameter of any type and scale."""
    kind = draw(st.sampled_from(list(ParameterType)))
    scale = draw(st.sampled_from(list(Scale))) if kind is not ParameterType.CATEGORICAL else Scale.LINEAR
    lowest = -1e6 if scale is Scale.LINEAR else 1e-6
    match kind:
        case ParameterType.CATEGORICAL:
            names = draw(st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=5, unique=True))
            return Parameter(name, kind, categories=tuple(names), parent=parent, when=when)
        case ParameterType.DISCRETE:
            values = draw(
                st.lists(
                    st.floats(lowest, 1e6), min_size=1, max_size=6, unique_by=lambda number: round(number, 5)
                )
            )
            return Parameter(name, kind, values=tuple(sorted(values)), scale=scale, parent=parent, when=when)
        case ParameterType.INTEGER:
            low = draw(st.integers(-50 if scale is Scale.LINEAR else 1, 50))
            high = low + draw(st.integers(0, 1000))
            return Parameter(name, kind, low, high, scale=scale, parent=parent, when=when)
        case ParameterType.DOUBLE:
            low = draw(st.floats(lowest, 1e5))
            high = low + draw(st.one_of(st.just(0.0), st.floats(1e-3, 1e5)))
            return Parameter(name, kind, low, high, scale=scale, parent=parent, when=when)


@st.composite
def trees(draw: st.DrawFn) -> tuple[Parameter, ...]:
    """Draw a few parameters, some of them below others, depth first like in specifications."""
    nodes = [draw(parameters("p0"))]
    for index in range(1, draw(st.integers(1, 5))):
        above = len(nodes) - 1
        values = values_of(nodes[above])
        if values and draw(st.booleans()):
            when = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
            nodes.append(draw(parameters(f"p{index}", above, tuple(when))))
        else:
            nodes.append(draw(parameters(f"p{index}")))
    return tuple(nodes)


def values_of(parameter: Parameter) -> Sequence[Value]:
    """Return the values that a condition on this parameter can use."""
    match parameter.type:
        case ParameterType.CATEGORICAL:
            return parameter.categories
        case ParameterType.DISCRETE:
            return parameter.values
        case ParameterType.INTEGER:
            return range(int(parameter.low), min(int(parameter.high), int(parameter.low) + 5) + 1)
        case ParameterType.DOUBLE:
            return ()
