"""The parameter tree of a study, in the spellings of the three messages that have one
(spec/tuning#parameters, facts/tuning#ml, facts/tuning#vertex).

Vertex and the `ml` study put the values of each type into a message of their own and nest children; the `ml`
training job has everything flat and no children. Rules are the same for all three.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from trainshed.core.requests import Section
from trainshed.core.specs import syntax
from trainshed.core.specs.study_values import (
    Space,
    read_bounds,
    read_categories,
    read_condition,
    read_default,
    read_discrete,
    read_scale,
)
from trainshed.core.study.spec import Parameter, ParameterType, Value

MAX_PARAMETERS = 1_000
"""Nodes of one tree; bounds what a mistake can cost (docs/choices.md)."""

_NESTED = {
    ParameterType.DOUBLE: "doubleValueSpec",
    ParameterType.INTEGER: "integerValueSpec",
    ParameterType.DISCRETE: "discreteValueSpec",
    ParameterType.CATEGORICAL: "categoricalValueSpec",
}


@dataclass(frozen=True, slots=True)
class Words:
    """What one message calls things.

    `children`: the repeated field of conditional parameters ("" = there are none), `child`: the field of such
    an item that holds the parameter ("" = the item is one). `typed`: a field `type` says what the parameter
    is; else the message that is set does. `nested`: the values of each type are in a message of their own.
    """

    id: str
    children: str = ""
    child: str = ""
    typed: bool = True
    nested: bool = True
    discrete_values: str = "values"
    categories: str = "values"


VERTEX = Words("parameterId", "conditionalParameterSpecs", "parameterSpec", typed=False)
ML_STUDY = Words("parameter", "childParameterSpecs")
ML_JOB = Words(
    "parameterName",
    nested=False,
    discrete_values="discreteValues",
    categories="categoricalValues",
)


def read_parameters(study: Section, name: str, words: Words) -> tuple[Parameter, ...]:
    """The tree in the repeated field `name`, depth first. What is wrong is reported to the section's faults;
    the parameters of a faulty request are of no use."""
    reader = _TreeReader(words)
    reader.read(study.sections(name))
    if not reader.parameters:
        study.fault(name, "At least one parameter must be given.")
    if len(reader.parameters) > MAX_PARAMETERS:
        study.fault(
            name,
            f"{len(reader.parameters)} parameters are given; at most {MAX_PARAMETERS} are allowed.",
        )
    else:
        reader.check_ids()
    return tuple(reader.parameters)


class _TreeReader:
    """Reads the nodes of one tree. Exists to gather them in depth-first order."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._sections: list[Section] = []
        self.parameters: list[Parameter] = []

    def read(self, sections: Iterable[Section]) -> None:
        for section in sections:
            self._node(section)

    def _node(self, section: Section, *, parent: int = -1, when: tuple[Value, ...] = ()) -> None:
        space = _read_space(section, self._words)
        position = len(self.parameters)
        self._sections.append(section)
        self.parameters.append(_parameter(section, self._words, space, parent=parent, when=when))
        if not self._words.children:
            return
        if space is not None and space.type is ParameterType.DOUBLE:
            if section.is_set(self._words.children):
                section.fault(
                    self._words.children,
                    "A DOUBLE parameter cannot have conditional ones; INTEGER, DISCRETE and "
                    "CATEGORICAL ones can.",
                )
            return
        for item in section.sections(self._words.children):
            child = item.section(self._words.child) if self._words.child else item
            self._node(child, parent=position, when=read_condition(item, space))

    def check_ids(self) -> None:
        """One id may stand at two nodes only if their conditions exclude each other (facts/tuning#vertex):
        where their branches part, no value of the parent leads into both."""
        takers: dict[tuple[str, int, Value | None], int] = {}
        for position, parameter in enumerate(self.parameters):
            if not parameter.id:
                continue
            lineage = self._lineage(position)
            can_meet = any(self.parameters[node].id == parameter.id for node in lineage[:-1])
            for node in lineage:
                branch = self.parameters[node]
                for value in branch.when if branch.parent != -1 else (None,):
                    taker = takers.setdefault((parameter.id, branch.parent, value), node)
                    can_meet = can_meet or taker != node
            if can_meet:
                self._sections[position].fault(
                    self._words.id,
                    f"The parameter {parameter.id!r} is given more than once, and two of them can be "
                    "active together; rename one, or give them conditions that share no value.",
                )

    def _lineage(self, position: int) -> list[int]:
        """The node's ancestors from the root down, itself last."""
        found = [position]
        while (parent := self.parameters[found[-1]].parent) != -1:
            found.append(parent)
        return found[::-1]


def _parameter(
    section: Section,
    words: Words,
    space: Space | None,
    *,
    parent: int,
    when: tuple[Value, ...],
) -> Parameter:
    name = _read_id(section, words)
    if space is None:
        return Parameter(name, ParameterType.CATEGORICAL, parent=parent, when=when)
    return Parameter(
        id=name,
        type=space.type,
        low=space.low,
        high=space.high,
        values=space.values,
        categories=space.categories,
        scale=read_scale(section, space),
        default=read_default(space),
        parent=parent,
        when=when,
    )


def _read_id(section: Section, words: Words) -> str:
    name = section.text(words.id)
    if not name:
        section.fault(words.id, "The parameter needs an id, for example learning_rate.")
    elif any(letter.isspace() for letter in name):
        section.fault(words.id, f"The parameter id {name!r} must not contain white space.")
    elif fault := syntax.string_fault(name):
        section.fault(words.id, fault)
    return name


def _read_space(section: Section, words: Words) -> Space | None:
    kind = _read_type(section, words)
    if kind is None:
        return None
    space = section.section(_NESTED[kind]) if words.nested else section
    match kind:
        case ParameterType.DOUBLE | ParameterType.INTEGER:
            low, high = read_bounds(space, kind)
            return Space(kind, space, low=low, high=high)
        case ParameterType.DISCRETE:
            return Space(kind, space, values=read_discrete(space, words.discrete_values))
        case ParameterType.CATEGORICAL:
            if not words.nested:
                _refuse_bounds(space)
            return Space(kind, space, categories=read_categories(space, words.categories))


def _read_type(section: Section, words: Words) -> ParameterType | None:
    given = [kind for kind, name in _NESTED.items() if section.has(name)] if words.nested else []
    if words.typed:
        named = section.enum("type")
        if named not in tuple(ParameterType):
            section.fault("type", f"The type must be set: {', '.join(ParameterType)}.")
            return None
        kind = ParameterType(named)
        if words.nested and given != [kind]:
            section.fault(
                _NESTED[kind], f"A {kind} parameter needs exactly this message, and no other."
            )
            return None
        return kind
    if len(given) != 1:
        section.fault(
            "" if not given else _NESTED[given[1]],
            f"Exactly one of {', '.join(map(section.at, _NESTED.values()))} must be set.",
        )
        return None
    return given[0]


def _refuse_bounds(flat: Section) -> None:
    for name in ("minValue", "maxValue"):
        if flat.is_set(name):
            flat.fault(name, "A CATEGORICAL parameter has no bounds; give categorical_values only.")
