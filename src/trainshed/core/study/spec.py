"""The validated specification of a study: what is searched, what is measured, how (spec/tuning#measurements,
facts/tuning).

Built only by `core.specs`; whoever holds a `StudySpec` need not check it again.
"""

import enum

from msgspec import Struct

from trainshed.core.units import Nanos

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


class Parameter(Struct, frozen=True):
    """One node of the parameter tree. One id may stand at several nodes whose conditions exclude each
    other."""

    id: str
    type: ParameterType
    #: Inclusive bounds of a DOUBLE or INTEGER.
    low: float = 0.0
    high: float = 0.0
    #: Of a DISCRETE one, ascending.
    values: tuple[float, ...] = ()
    #: Of a CATEGORICAL one.
    categories: tuple[str, ...] = ()
    scale: Scale = Scale.LINEAR
    #: The public field; None = not given.
    default: Value | None = None
    #: Of a conditional parameter, its parent's position in `StudySpec.parameters`; -1 = it is always active.
    parent: int = -1
    #: The parent's values for which it is active.
    when: tuple[Value, ...] = ()


class Metric(Struct, frozen=True):
    """What a trial is judged by."""

    id: str
    goal: Goal
    #: A trial is safe if the metric is at least (MAXIMIZE) or at most (MINIMIZE) this; None = an ordinary
    #: objective.
    safety: float | None = None
    #: Of suggested trials that should be safe, 0..1; None = not said.
    safe_fraction: float | None = None


class MedianStopping(Struct, frozen=True):
    """Stop what is worse than the median of the others' running averages."""

    #: Time in place of steps.
    use_elapsed: bool = False


class DecayCurveStopping(Struct, frozen=True):
    """Stop what a regression over learning curves gives next to no chance of becoming the best."""

    #: Time in place of steps.
    use_elapsed: bool = False


class ConvexStopping(Struct, frozen=True):
    """Stop what even an optimistic convex extrapolation leaves behind the best."""

    #: At which a trial's curve is extrapolated to; 0 = the largest step seen.
    max_steps: int = 0
    #: Earlier nothing is stopped; 0 = a tenth of `max_steps`.
    min_steps: int = 0
    #: With fewer nothing is stopped.
    min_measurements: int = 5
    #: Id of the parameter whose value counts as the learning rate; "" = none.
    learning_rate: str = ""
    #: Time in place of steps.
    use_elapsed: bool = False
    #: Final measurements of stopped trials are extrapolated, too.
    update_all_stopped: bool = False


Stopping = MedianStopping | DecayCurveStopping | ConvexStopping


class Limits(Struct, frozen=True):
    """When a study ends by itself (public studyStoppingConfig). Durations in nanoseconds; None = no limit."""

    max_trials: int | None = None
    #: Before these no other limit counts.
    min_trials: int | None = None
    max_duration: int | None = None
    #: Likewise.
    min_duration: int | None = None
    max_trials_without_progress: int | None = None
    max_duration_without_progress: int | None = None
    #: Nanoseconds since the epoch.
    end_at: Nanos | None = None
    #: Trials that run are stopped as well.
    stop_asap: bool = False


class StudySpec(Struct, frozen=True):
    """What is searched, what is measured, and how. At most one kind of stopping is given."""

    #: Depth first, a parent before its children.
    parameters: tuple[Parameter, ...]
    #: At least one.
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
