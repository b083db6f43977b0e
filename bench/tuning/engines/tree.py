"""Translates a parameter tree for libraries: active nodes, and values as positions on a plain scale.

Libraries have no reverse logarithmic scale. They search the mirrored value on their logarithmic scale.
Libraries do not support ascending lists of values, or treat them as categories. They search the position in
the list.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trainshed.core.study.records import Parameters, TrialState
from trainshed.core.study.spec import Parameter, ParameterType, Scale, StudySpec, Value, is_same
from trainshed.studies.port import TrialData

Place = float | int | str
"""A value in the form for libraries: a number on its scale, the position in the list, or the category."""


def key(index: int, parameter: Parameter) -> str:
    """Return the library's name of a node. The name contains the index, because several nodes may have the
    same ID."""
    return f"{index}:{parameter.id}"


def walk(spec: StudySpec, choose: Callable[[int, Parameter], Value | None]) -> Parameters | None:
    """Return the active nodes, parents before children, with values from `choose`. Return None when `choose`
    returns None."""
    chosen: dict[int, Value] = {}
    for index, parameter in enumerate(spec.parameters):
        if parameter.parent is not None:
            above = chosen.get(parameter.parent)
            if above is None or not any(is_same(above, trigger) for trigger in parameter.when):
                continue
        value = choose(index, parameter)
        if value is None:
            return None
        chosen[index] = value
    return tuple((spec.parameters[index].id, value) for index, value in chosen.items())


def places(spec: StudySpec, parameters: Parameters) -> dict[int, Place] | None:
    """Return the positions of a stored trial's values by node. Numbers are clipped to the bounds.

    Return None if the library cannot represent the trial because an active parameter is missing, or its value
    is not in the list.
    """
    values: Mapping[str, Value] = dict(parameters)
    located: dict[int, Place] = {}

    def look(index: int, parameter: Parameter) -> Value | None:
        value = values.get(parameter.id)
        place = None if value is None else to_place(parameter, value)
        if place is None:
            return None
        located[index] = place
        return value

    return None if walk(spec, look) is None else located


def to_place(parameter: Parameter, value: Value) -> Place | None:
    """Return the position of a value. Return None if the value has the wrong type or is not in the list."""
    if parameter.type is ParameterType.CATEGORICAL:
        return value if value in parameter.categories else None
    if isinstance(value, str):
        return None
    match parameter.type:
        case ParameterType.DISCRETE:
            near = (i for i, listed in enumerate(parameter.values) if is_same(listed, value))
            return next(near, None)
        case ParameterType.INTEGER:
            return int(_mirror(parameter, round(_within(parameter, value))))
        case ParameterType.DOUBLE:
            return _mirror(parameter, _within(parameter, value))


def to_value(parameter: Parameter, place: Place) -> Value:
    """Return the value at a position. The value is always valid."""
    if parameter.type is ParameterType.CATEGORICAL:
        return str(place)
    number = float(place)
    match parameter.type:
        case ParameterType.DISCRETE:
            return parameter.values[min(max(round(number), 0), len(parameter.values) - 1)]
        case ParameterType.INTEGER:
            return int(_mirror(parameter, round(_within(parameter, number))))
        case ParameterType.DOUBLE:
            return _within(parameter, _mirror(parameter, number))


def is_log(parameter: Parameter) -> bool:
    """Return whether the library searches the positions on its logarithmic scale."""
    return parameter.scale is not Scale.LINEAR and parameter.type in (
        ParameterType.DOUBLE,
        ParameterType.INTEGER,
    )


def reproducible(
    trials: Sequence[TrialData], count: int, propose: Callable[[Sequence[TrialData], int], TrialData]
) -> tuple[Parameters, ...]:
    """Return `count` proposals. Each is made while the earlier ones are pending, so that one call for two
    proposals equals two calls for one. `propose` receives the trials, and the number that its proposal will
    have."""
    known, proposed = list(trials), list[Parameters]()
    for _ in range(count):
        proposal = propose(known, (known[-1].number if known else 0) + 1)
        known.append(proposal)
        proposed.append(proposal.parameters)
    return tuple(proposed)


def pending(number: int, parameters: Parameters | None) -> TrialData:
    """Return a proposal as a pending trial."""
    return TrialData(number, TrialState.REQUESTED, parameters or ())


def seed_of(seed: int, number: int) -> int:
    """Return a seed of 31 bits for the proposal with this number."""
    return int(np.random.SeedSequence((abs(seed), number)).generate_state(1)[0]) >> 1


def _within(parameter: Parameter, value: float) -> float:
    return min(max(value, parameter.low), parameter.high)


def _mirror(parameter: Parameter, value: float) -> float:
    if parameter.scale is Scale.REVERSE_LOG:
        return parameter.low + parameter.high - value
    return value
