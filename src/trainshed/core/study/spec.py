"""The validated specification of a study: what is searched, what is measured, how (spec/tuning#measurements,
facts/tuning).

Built only by `core.specs`; whoever holds a `StudySpec` need not check it again.
"""

import enum
from dataclasses import dataclass

Value = float | int | str
"""Of a parameter: DOUBLE and DISCRETE a float, INTEGER an int, CATEGORICAL a text."""


class ParameterType(enum.StrEnum):
    DOUBLE = "DOUBLE"
    INTEGER = "INTEGER"
    DISCRETE = "DISCRETE"
    CATEGORICAL = "CATEGORICAL"


class Scale(enum.StrEnum):
    """How a numeric parameter is laid out before it is searched. LOG and REVERSE_LOG need positive values;
    REVERSE_LOG resolves the top of the range most finely."""

    LINEAR = "LINEAR"
    LOG = "LOG"
    REVERSE_LOG = "REVERSE_LOG"


class Goal(enum.StrEnum):
    MAXIMIZE = "MAXIMIZE"
    MINIMIZE = "MINIMIZE"


class Algorithm(enum.StrEnum):
    """Which way of proposing trials is asked for. DEFAULT is Bayesian (docs/adr/0018)."""

    DEFAULT = "DEFAULT"
    GRID_SEARCH = "GRID_SEARCH"
    RANDOM_SEARCH = "RANDOM_SEARCH"


class Selection(enum.StrEnum):
    """Which of a trial's measurements becomes its final one."""

    LAST = "LAST"
    BEST = "BEST"


class Noise(enum.StrEnum):
    """What the study says of repeated evaluations of one point. UNKNOWN counts as LOW."""

    UNKNOWN = "UNKNOWN"
    LOW = "LOW"
    HIGH = "HIGH"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One node of the parameter tree.

    `low`, `high`: inclusive bounds of a DOUBLE or INTEGER. `values`: of a DISCRETE one, ascending.
    `categories`: of a CATEGORICAL one. `default`: the public field, None if not given. A conditional
    parameter names its parent by position in `StudySpec.parameters` (-1 = it is always active), and `when`
    holds the parent's values for which it is active. One id may stand at several nodes whose conditions
    exclude each other.
    """

    id: str
    type: ParameterType
    low: float = 0.0
    high: float = 0.0
    values: tuple[float, ...] = ()
    categories: tuple[str, ...] = ()
    scale: Scale = Scale.LINEAR
    default: Value | None = None
    parent: int = -1
    when: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """`safety`: a trial is safe if the metric is at least (MAXIMIZE) or at most (MINIMIZE) this; None = an
    ordinary objective. `safe_fraction`: of suggested trials that should be safe, 0..1, None = not said."""

    id: str
    goal: Goal
    safety: float | None = None
    safe_fraction: float | None = None


@dataclass(frozen=True, slots=True)
class MedianStopping:
    """Stop what is worse than the median of the others' running averages. `use_elapsed`: time in place of
    steps."""

    use_elapsed: bool = False


@dataclass(frozen=True, slots=True)
class DecayCurveStopping:
    """Stop what a regression over learning curves gives next to no chance of becoming the best."""

    use_elapsed: bool = False


@dataclass(frozen=True, slots=True)
class ConvexStopping:
    """Stop what even an optimistic convex extrapolation leaves behind the best.

    `max_steps`: at which a trial's curve is extrapolated to, 0 = the largest step seen. `min_steps`: earlier
    nothing is stopped, 0 = a tenth of `max_steps`. `min_measurements`: likewise. `learning_rate`: id of the
    parameter whose value counts as the learning rate, "" = none. `update_all_stopped`: final measurements of
    stopped trials are extrapolated, too.
    """

    max_steps: int = 0
    min_steps: int = 0
    min_measurements: int = 5
    learning_rate: str = ""
    use_elapsed: bool = False
    update_all_stopped: bool = False


Stopping = MedianStopping | DecayCurveStopping | ConvexStopping


@dataclass(frozen=True, slots=True)
class Limits:
    """When a study ends by itself (public studyStoppingConfig). Durations in ns; None = no limit.

    `min_trials`, `min_duration`: before these no other limit counts. `stop_asap`: trials that run are stopped
    as well.
    """

    max_trials: int | None = None
    min_trials: int | None = None
    max_duration: int | None = None
    min_duration: int | None = None
    max_trials_without_progress: int | None = None
    max_duration_without_progress: int | None = None
    end_at: int | None = None
    stop_asap: bool = False


@dataclass(frozen=True, slots=True)
class StudySpec:
    """`parameters`: depth first, a parent before its children. `metrics`: at least one."""

    parameters: tuple[Parameter, ...]
    metrics: tuple[Metric, ...]
    algorithm: Algorithm = Algorithm.DEFAULT
    selection: Selection = Selection.LAST
    noise: Noise = Noise.UNKNOWN
    median_stopping: MedianStopping | None = None
    decay_curve_stopping: DecayCurveStopping | None = None
    convex_stopping: ConvexStopping | None = None
    limits: Limits = Limits()

    @property
    def stopping(self) -> Stopping | None:
        """The rule by which trials are stopped early; at most one of the three is given."""
        return self.median_stopping or self.decay_curve_stopping or self.convex_stopping
