"""Parses the parameter tree of a study, with the field names of both APIs (spec/tuning#parameters,
facts/tuning#ml, facts/tuning#vertex).

Vertex has a separate message for the values of each type, and nested children. In the `ml` training job all
fields are flat and parameters have no children. The rules are the same for both.
"""

import itertools
import math
from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.requests import Section
from trainshed.core.specs import syntax
from trainshed.core.study.spec import SAME, Parameter, ParameterType, Scale, Value, is_same

MAX_DISCRETE_VALUES = 1_000
MAX_INTEGER = 2**53 - 1
"""Maximum bound of an integer parameter. Larger integers are not all exact as floats, and searches calculate
with floats (docs/tuning.md)."""

CONDITIONS = {
    ParameterType.INTEGER: "parentIntValues",
    ParameterType.DISCRETE: "parentDiscreteValues",
    ParameterType.CATEGORICAL: "parentCategoricalValues",
}
_SCALES = {
    "": Scale.LINEAR,
    "NONE": Scale.LINEAR,
    "UNIT_LINEAR_SCALE": Scale.LINEAR,
    "UNIT_LOG_SCALE": Scale.LOG,
    "UNIT_REVERSE_LOG_SCALE": Scale.REVERSE_LOG,
}


def _read_bounds(space: Section, kind: ParameterType) -> tuple[float, float]:
    """Parse `minValue` and `maxValue`, both inclusive. The default of each is 0."""
    low, high = space.number("minValue"), space.number("maxValue")
    if not space.has("minValue") and not space.has("maxValue"):
        space.fault("maxValue", "The minimum and the maximum value must be set.")
        return low, high
    faults = _bound_fault(low, kind), _bound_fault(high, kind)
    space.check("minValue", faults[0])
    space.check("maxValue", faults[1])
    if not any(faults) and low > high:
        space.fault("maxValue", f"The maximum value {high:g} is less than the minimum value {low:g}.")
    elif not any(faults) and not math.isfinite(high - low):
        space.fault("maxValue", "The range is too wide for the calculation. Use narrower bounds.")
    return low, high


def _bound_fault(value: float, kind: ParameterType) -> str:
    if not math.isfinite(value):
        return "The bound must be a finite number."
    if kind is not ParameterType.INTEGER:
        return ""
    if not value.is_integer():
        return f"The bound of an INTEGER parameter must be an integer, not {value!r}."
    if abs(value) > MAX_INTEGER:
        return f"The bound must be from -{MAX_INTEGER} to {MAX_INTEGER}."
    return ""


def _discrete_fault(values: tuple[float, ...]) -> str:
    if not values:
        return "At least one value must be set."
    if len(values) > MAX_DISCRETE_VALUES:
        return f"The field has {len(values)} values; at most {MAX_DISCRETE_VALUES} are allowed."
    if not all(map(math.isfinite, values)):
        return "Every value must be a finite number."
    if any(after - before < SAME for before, after in itertools.pairwise(values)):
        return f"The values must be strictly increasing and at least {SAME:g} apart."
    if not math.isfinite(values[-1] - values[0]):
        return "The range is too wide for the calculation. Use values closer together."
    return ""


def _read_scale(section: Section, parameter: Parameter) -> Scale:
    """Parse `scaleType`. The default is linear."""
    scale = syntax.read_choice(section, "scaleType", _SCALES)
    if parameter.type is ParameterType.CATEGORICAL:
        if section.enum("scaleType") not in ("", "NONE"):
            section.fault("scaleType", "A CATEGORICAL parameter has no scale. Omit the field.")
        return Scale.LINEAR
    if scale is Scale.LINEAR:
        return scale
    values = parameter.values or (parameter.low, parameter.high)
    least, most = min(values), max(values)
    if not least > 0:
        section.fault(
            "scaleType",
            f"The scale {section.enum('scaleType')} requires positive values, and the "
            f"minimum is {least:g}. Raise it, or use UNIT_LINEAR_SCALE.",
        )
    elif not math.isfinite(most / least):
        section.fault("scaleType", "The range is too wide for a logarithmic scale.")
    return scale


def _read_default(section: Section, parameter: Parameter) -> Value | None:
    """Parse `defaultValue`, which exists only in messages of Vertex. For a DISCRETE parameter, the nearest
    value is used."""
    if not section.has("defaultValue"):
        return None
    if parameter.type is ParameterType.CATEGORICAL:
        text = section.text("defaultValue")
        if text not in parameter.categories:
            section.fault("defaultValue", f"{text!r} is not one of the categories.")
        return text
    number = section.number("defaultValue")
    if parameter.type is ParameterType.DISCRETE:
        if not math.isfinite(number):
            section.fault("defaultValue", "The default must be a finite number.")
        return min(parameter.values, key=lambda value: abs(value - number), default=number)
    low, high = parameter.low, parameter.high
    if not low <= number <= high:
        section.fault("defaultValue", f"The default {number:g} is not within {low:g} and {high:g}.")
        return None
    return int(number) if parameter.type is ParameterType.INTEGER else number


def _read_condition(item: Section, parent: Parameter) -> tuple[Value, ...]:
    """Parse the values of the parent parameter for which a conditional parameter is active."""
    wanted = CONDITIONS[parent.type]
    conditions = [name for name in CONDITIONS.values() if item.has(name)]
    if conditions != [wanted]:
        wrong = next((name for name in conditions if name != wanted), wanted)
        item.fault(wrong, f"The parent is {parent.type}. Set its values in {item.path_of(wanted)} only.")
        return ()
    condition, categories = item.section(wanted), frozenset(parent.categories)
    meant = {text: _parents_values(parent, text, categories) for text in condition.texts("values")}
    texts = condition.checked_texts(
        "values", lambda text: "" if meant[text] else f"{text} is not a value of the parent."
    )
    if not texts:
        condition.fault("values", "At least one value of the parent must be set.")
    return tuple(dict.fromkeys(value for text in texts for value in meant[text]))


def _parents_values(parent: Parameter, text: str, categories: Container[str]) -> Sequence[Value]:
    """Return the value of a parent parameter that a text represents, or () if no value matches. `categories`:
    the parent parameter's categories."""
    if parent.type is ParameterType.CATEGORICAL:
        return [text] if text in categories else ()
    if parent.type is ParameterType.INTEGER:
        return [int(text)] if parent.low <= int(text) <= parent.high else ()
    at = bisect_left(parent.values, float(text) - SAME)
    return [value for value in parent.values[at : at + 1] if is_same(value, float(text))]


MAX_PARAMETERS = 1_000
"""Maximum number of nodes of one tree. It limits the cost of faulty requests (docs/tuning.md)."""

_NESTED = {
    ParameterType.DOUBLE: "doubleValueSpec",
    ParameterType.INTEGER: "integerValueSpec",
    ParameterType.DISCRETE: "discreteValueSpec",
    ParameterType.CATEGORICAL: "categoricalValueSpec",
}


class Words(Struct, frozen=True):
    """The field names of one message type."""

    #: The field with the parameter's id.
    id: str
    #: Whether the values of each type are in a separate message, which determines the type. Conditional
    #: parameters exist only in this form. Otherwise, the field `type` determines the type.
    is_nested: bool
    discrete_values: str = "values"
    categories: str = "values"


VERTEX = Words("parameterId", is_nested=True)
ML_JOB = Words(
    "parameterName", is_nested=False, discrete_values="discreteValues", categories="categoricalValues"
)
_CHILDREN = "conditionalParameterSpecs"


def read_parameters(study: Section, name: str, words: Words) -> tuple[Parameter, ...]:
    """Parse the tree in the repeated field `name`, depth first. Errors are added to the section's faults. The
    parameters of a faulty request are not usable."""
    reader = _TreeReader(words)
    reader.read(study.sections(name))
    if not reader.parameters:
        study.fault(name, "At least one parameter must be set.")
    if len(reader.parameters) > MAX_PARAMETERS:
        study.fault(
            name, f"The study has {len(reader.parameters)} parameters; at most {MAX_PARAMETERS} are allowed."
        )
    else:
        reader.check_ids()
    return tuple(reader.parameters)


class _TreeReader:
    """Parses the nodes of one tree, and collects them in depth-first order."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._sections: list[Section] = []
        self.parameters: list[Parameter] = []

    def read(self, sections: Iterable[Section]) -> None:
        for section in sections:
            self._node(section, None, ())

    def _node(self, section: Section, parent: int | None, when: tuple[Value, ...]) -> None:
        kind = _read_type(section, self._words)
        parameter = _read_parameter(section, self._words, kind)
        position = len(self.parameters)
        self._sections.append(section)
        self.parameters.append(replace(parameter, parent=parent, when=when))
        if not self._words.is_nested:
            return
        if kind is ParameterType.DOUBLE:
            if section.is_set(_CHILDREN):
                section.fault(
                    _CHILDREN,
                    "A DOUBLE parameter cannot have conditional parameters. INTEGER, DISCRETE and "
                    "CATEGORICAL parameters can.",
                )
            return
        for item in section.sections(_CHILDREN):
            condition = _read_condition(item, parameter) if kind is not None else ()
            self._node(item.section("parameterSpec"), position, condition)

    def check_ids(self) -> None:
        """Report ids that occur at two nodes, unless the nodes' conditions exclude each other
        (facts/tuning#vertex). Conditions exclude each other if no value of a common ancestor activates both
        branches."""
        whens = [frozenset[Value | None]([None] if p.parent is None else p.when) for p in self.parameters]
        takers: dict[tuple[str, int | None], set[int]] = {}
        for position, parameter in enumerate(self.parameters):
            if not parameter.id:
                continue
            lineage = self._lineage(position)
            can_meet = any(self.parameters[node].id == parameter.id for node in lineage[:-1])
            for node in lineage:
                others = takers.setdefault((parameter.id, self.parameters[node].parent), set())
                can_meet = can_meet or any(
                    other != node and not whens[other].isdisjoint(whens[node]) for other in others
                )
                others.add(node)
            if can_meet:
                self._sections[position].fault(
                    self._words.id,
                    f"The parameter {parameter.id!r} appears more than once, and two of them can be "
                    "active together. Rename one, or use conditions without common values.",
                )

    def _lineage(self, position: int) -> list[int]:
        """Return the node's ancestors from the root to the node itself."""
        path = [position]
        while (parent := self.parameters[path[-1]].parent) is not None:
            path.append(parent)
        return path[::-1]


def _read_id(section: Section, words: Words) -> str:
    name = section.text(words.id)
    if not name:
        section.fault(words.id, "The parameter needs an id, for example learning_rate.")
    elif any(letter.isspace() for letter in name):
        section.fault(words.id, f"The parameter id {name!r} must not contain white space.")
    section.check(words.id, syntax.string_fault(name))
    return name


def _read_parameter(section: Section, words: Words, kind: ParameterType | None) -> Parameter:
    """Parse one node without its position in the tree. `kind` is None if the node's type is unknown."""
    name = _read_id(section, words)
    if kind is None:
        return Parameter(name, ParameterType.CATEGORICAL)
    space = section.section(_NESTED[kind]) if words.is_nested else section
    low = high = 0.0
    values: tuple[float, ...] = ()
    categories: tuple[str, ...] = ()
    match kind:
        case ParameterType.DOUBLE | ParameterType.INTEGER:
            low, high = _read_bounds(space, kind)
        case ParameterType.DISCRETE:
            values = space.numbers(words.discrete_values)
            space.check(words.discrete_values, _discrete_fault(values))
        case ParameterType.CATEGORICAL:
            for bound in ("minValue", "maxValue"):
                if not words.is_nested and space.is_set(bound):
                    space.fault(bound, "A CATEGORICAL parameter has no bounds. Set categorical_values only.")
            categories = syntax.read_distinct(space, words.categories, "category", syntax.string_fault)
            if not categories:
                space.fault(words.categories, "At least one category must be set.")
    parameter = Parameter(name, kind, low, high, values, categories)
    return replace(parameter, scale=_read_scale(section, parameter), default=_read_default(space, parameter))


def _read_type(section: Section, words: Words) -> ParameterType | None:
    if not words.is_nested:
        kind_name = section.enum("type")
        if kind_name not in tuple(ParameterType):
            section.fault("type", f"The type must be set: {', '.join(ParameterType)}.")
            return None
        return ParameterType(kind_name)
    present = [kind for kind, name in _NESTED.items() if section.has(name)]
    if len(present) != 1:
        section.fault(
            "" if not present else _NESTED[present[1]],
            f"Exactly one of {', '.join(map(section.path_of, _NESTED.values()))} must be set.",
        )
        return None
    return present[0]
