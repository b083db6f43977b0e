"""The validated specification of a study: its parameters, metrics and algorithm (spec/tuning#measurements,
facts/tuning).

Only `core.specs` creates specifications, so other code need not validate a `StudySpec` again.
"""

import enum

from msgspec import Struct

Value = float | int | str
"""The value of a parameter: a float for DOUBLE and DISCRETE, an int for INTEGER, a text for CATEGORICAL."""
SAME = 1e-10
"""Two discrete values count as the same if they differ by at most this number (facts/tuning#vertex)."""


def is_same(value: Value, other: Value) -> bool:
    """Return whether two values of one parameter are the same."""
    if isinstance(value, str) or isinstance(other, str):
        return value == other
    return abs(value - other) <= SAME


class ParameterType(enum.StrEnum):
    DOUBLE = "DOUBLE"
    INTEGER = "INTEGER"
    DISCRETE = "DISCRETE"
    CATEGORICAL = "CATEGORICAL"


class Scale(enum.StrEnum):
    """The scale of a numeric parameter in the search. LOG and REVERSE_LOG require positive values.
    REVERSE_LOG has the highest resolution at the top of the range."""

    LINEAR = "LINEAR"
    LOG = "LOG"
    REVERSE_LOG = "REVERSE_LOG"


class Goal(enum.StrEnum):
    MAXIMIZE = "MAXIMIZE"
    MINIMIZE = "MINIMIZE"


class Algorithm(enum.StrEnum):
    """The algorithm that proposes trials. DEFAULT is Bayesian optimization (docs/adr/0018)."""

    DEFAULT = "DEFAULT"
    GRID_SEARCH = "GRID_SEARCH"
    RANDOM_SEARCH = "RANDOM_SEARCH"


class Selection(enum.StrEnum):
    """Selects which of a trial's measurements becomes the final one."""

    LAST = "LAST"
    BEST = "BEST"


class Noise(enum.StrEnum):
    """The expected noise of repeated evaluations of one point. UNKNOWN counts as LOW."""

    UNKNOWN = "UNKNOWN"
    LOW = "LOW"
    HIGH = "HIGH"


class Parameter(Struct, frozen=True):
    """One node of the parameter tree. Several nodes may have the same id if their conditions exclude each
    other."""

    id: str
    type: ParameterType
    #: Inclusive bounds of a DOUBLE or INTEGER parameter.
    low: float = 0.0
    high: float = 0.0
    #: The values of a DISCRETE parameter, ascending.
    values: tuple[float, ...] = ()
    #: The values of a CATEGORICAL parameter.
    categories: tuple[str, ...] = ()
    scale: Scale = Scale.LINEAR
    #: The public field `defaultValue`, or None if unset.
    default: Value | None = None
    #: For a conditional parameter, the position of its parent parameter in `StudySpec.parameters`. None if
    #: the parameter is always active.
    parent: int | None = None
    #: The values of the parent parameter for which this parameter is active.
    when: tuple[Value, ...] = ()


class Metric(Struct, frozen=True):
    """A metric that measures the quality of a trial."""

    id: str
    goal: Goal


class MedianStopping(Struct, frozen=True):
    """Stops trials that are worse than the median of the other trials' running averages."""

    #: Whether curves are compared by elapsed time instead of steps.
    use_elapsed: bool = False


class StudySpec(Struct, frozen=True):
    """The parameters, the metrics and the algorithm of a study."""

    #: The nodes of the parameter tree, depth first. Each parent parameter precedes its conditional
    #: parameters.
    parameters: tuple[Parameter, ...]
    #: The metrics of the study, at least one.
    metrics: tuple[Metric, ...]
    algorithm: Algorithm = Algorithm.DEFAULT
    selection: Selection = Selection.LAST
    noise: Noise = Noise.UNKNOWN
    #: The early stopping rule, or None if trials are not stopped early.
    median_stopping: MedianStopping | None = None
