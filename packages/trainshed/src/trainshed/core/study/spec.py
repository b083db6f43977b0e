"""The validated specification of a study: what is searched, what is measured, and how
(spec/tuning#measurements, facts/tuning).

Built only by `core.specs`, so that no user of a `StudySpec` need check it again.
"""

import enum

from msgspec import Struct

Value = float | int | str
"""The value of a parameter: a float for DOUBLE and DISCRETE, an int for INTEGER, a text for CATEGORICAL."""
SAME = 1e-10
"""Discrete values this near are one (facts/tuning#vertex)."""


def is_same(value: Value, other: Value) -> bool:
    """Whether two values of one parameter are the same one."""
    if isinstance(value, str) or isinstance(other, str):
        return value == other
    return abs(value - other) <= SAME


class ParameterType(enum.StrEnum):
    DOUBLE = "DOUBLE"
    INTEGER = "INTEGER"
    DISCRETE = "DISCRETE"
    CATEGORICAL = "CATEGORICAL"


class Scale(enum.StrEnum):
    """How a numeric parameter is scaled before it is searched. LOG and REVERSE_LOG need positive values;
    REVERSE_LOG resolves the top of the range most finely."""

    LINEAR = "LINEAR"
    LOG = "LOG"
    REVERSE_LOG = "REVERSE_LOG"


class Goal(enum.StrEnum):
    MAXIMIZE = "MAXIMIZE"
    MINIMIZE = "MINIMIZE"


class Algorithm(enum.StrEnum):
    """The algorithm that proposes trials. DEFAULT is Bayesian (docs/adr/0018)."""

    DEFAULT = "DEFAULT"
    GRID_SEARCH = "GRID_SEARCH"
    RANDOM_SEARCH = "RANDOM_SEARCH"


class Selection(enum.StrEnum):
    """Which of a trial's measurements becomes its final one."""

    LAST = "LAST"
    BEST = "BEST"


class Noise(enum.StrEnum):
    """How noisy repeated evaluations of one point are, by the study. UNKNOWN counts as LOW."""

    UNKNOWN = "UNKNOWN"
    LOW = "LOW"
    HIGH = "HIGH"


class Parameter(Struct, frozen=True):
    """One node of the parameter tree. One id may occur at several nodes whose conditions exclude
    each other."""

    id: str
    type: ParameterType
    #: Inclusive bounds of a DOUBLE or INTEGER.
    low: float = 0.0
    high: float = 0.0
    #: The values of a DISCRETE parameter, ascending.
    values: tuple[float, ...] = ()
    #: The values of a CATEGORICAL parameter.
    categories: tuple[str, ...] = ()
    scale: Scale = Scale.LINEAR
    #: The public field `defaultValue`; None = not given.
    default: Value | None = None
    #: Position in `StudySpec.parameters` of a conditional parameter's parent; None = it is always active.
    parent: int | None = None
    #: The parent's values for which it is active.
    when: tuple[Value, ...] = ()


class Metric(Struct, frozen=True):
    """A value by which a trial is judged."""

    id: str
    goal: Goal


class MedianStopping(Struct, frozen=True):
    """Stops trials that are worse than the median of the others' running averages."""

    #: Curves are compared by elapsed time instead of steps.
    use_elapsed: bool = False


class StudySpec(Struct, frozen=True):
    """The search space, the metrics, and the algorithm of a study."""

    #: Depth first, each parent before its children.
    parameters: tuple[Parameter, ...]
    #: At least one.
    metrics: tuple[Metric, ...]
    algorithm: Algorithm = Algorithm.DEFAULT
    selection: Selection = Selection.LAST
    noise: Noise = Noise.UNKNOWN
    #: None = no trial is stopped early.
    median_stopping: MedianStopping | None = None
