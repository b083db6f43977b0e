"""When trials are stopped early and when a study ends by itself (spec/tuning#early-stopping,
facts/tuning#vertex)."""

from dataclasses import dataclass

from trainshed.core.requests import Section
from trainshed.core.specs import syntax
from trainshed.core.study.spec import (
    ConvexStopping,
    DecayCurveStopping,
    Limits,
    MedianStopping,
    Parameter,
    ParameterType,
    Stopping,
)

_RULES = (
    "decayCurveStoppingSpec",
    "medianAutomatedStoppingSpec",
    "convexAutomatedStoppingSpec",
    "convexStopConfig",
)
_ML_RULES = ("decayCurveStoppingConfig", "medianAutomatedStoppingConfig")
_LEAST_MEASUREMENTS = ConvexStopping().min_measurements


def read_stopping(study: Section, parameters: tuple[Parameter, ...]) -> Stopping | None:
    """The one early stopping rule of a Vertex StudySpec, None if there is none."""
    rule = _only(study, _RULES)
    if rule == "convexAutomatedStoppingSpec":
        return _read_convex(study.section(rule), parameters, _CONVEX)
    if rule == "convexStopConfig":
        return _read_convex(study.section(rule), parameters, _OLD_CONVEX)
    flag = study.section(rule).flag("useElapsedDuration") if rule else False
    return _plain(rule, flag)


def read_ml_stopping(config: Section) -> Stopping | None:
    """The one rule of an `ml` automatedStoppingConfig, None if there is none."""
    rule = _only(config, _ML_RULES)
    return _plain(rule, config.section(rule).flag("useElapsedTime") if rule else False)


def _only(section: Section, names: tuple[str, ...]) -> str:
    given = [name for name in names if section.has(name)]
    if len(given) > 1:
        section.fault(
            given[1],
            f"Only one early stopping rule can be set, and {section.at(given[0])} is set as well.",
        )
    return given[0] if given else ""


def _plain(rule: str, use_elapsed: bool) -> Stopping | None:
    if rule.startswith("decayCurve"):
        return DecayCurveStopping(use_elapsed)
    return MedianStopping(use_elapsed) if rule else None


@dataclass(frozen=True, slots=True)
class _Names:
    """What one of the two forms of the convex rule calls its fields."""

    least: str
    most: str
    enough: str
    elapsed: str


_CONVEX = _Names("minStepCount", "maxStepCount", "minMeasurementCount", "useElapsedDuration")
_OLD_CONVEX = _Names("minNumSteps", "maxNumSteps", "autoregressiveOrder", "useSeconds")
"""The deprecated form, whose autoregressive order is how many measurements a trial needs."""


def _read_convex(rule: Section, parameters: tuple[Parameter, ...], names: _Names) -> ConvexStopping:
    most, least = _count(rule, names.most), _count(rule, names.least)
    if 0 < most < least:
        rule.fault(names.least, f"It must be at most {rule.at(names.most)}, {most}.")
    return ConvexStopping(
        max_steps=most,
        min_steps=least,
        min_measurements=_count(rule, names.enough) or _LEAST_MEASUREMENTS,
        learning_rate=_learning_rate(rule, parameters),
        use_elapsed=rule.flag(names.elapsed),
        # The deprecated form has no such field, and nothing else is let through to here.
        update_all_stopped=rule.flag("updateAllStoppedTrials"),
    )


def _count(section: Section, name: str) -> int:
    count = section.integer(name)
    if count < 0:
        section.fault(name, f"The number must not be negative, and it is {count}.")
    return count


def _learning_rate(rule: Section, parameters: tuple[Parameter, ...]) -> str:
    name = rule.text("learningRateParameterName")
    numeric = {p.id for p in parameters if p.type is not ParameterType.CATEGORICAL}
    if name and name not in numeric:
        rule.fault(
            "learningRateParameterName",
            f"{name!r} is not the id of a numeric parameter of the study.",
        )
    return name


def read_limits(config: Section) -> Limits:
    """A studyStoppingConfig; an empty one sets no limit."""
    most, least = (
        config.section("maximumRuntimeConstraint"),
        config.section("minimumRuntimeConstraint"),
    )
    for constraint in (most, least):
        if constraint.has("maxDuration") and constraint.has("endTime"):
            constraint.fault("endTime", "Only one of max_duration and end_time can be set.")
    if least.has("endTime"):
        least.fault(
            "endTime", "A study's least time is served as max_duration only; give a duration."
        )
    return Limits(
        max_trials=_trials(config, "maxNumTrials", least=1),
        min_trials=_trials(config, "minNumTrials", least=0),
        max_duration=_duration(most, "maxDuration"),
        min_duration=_duration(least, "maxDuration"),
        max_trials_without_progress=_trials(config, "maxNumTrialsNoProgress", least=1),
        max_duration_without_progress=_duration(config, "maxDurationNoProgress"),
        end_at=most.moment("endTime"),
        stop_asap=config.flag("shouldStopAsap"),
    )


def _trials(config: Section, name: str, *, least: int) -> int | None:
    if not config.has(name):
        return None
    count = config.integer(name)
    if count < least:
        config.fault(name, f"The number of trials must be {least} or more, not {count}.")
    return count


def _duration(section: Section, name: str) -> int | None:
    duration = section.duration(name)
    if duration is not None and not 0 < duration <= syntax.MAX_DURATION:
        section.fault(name, "The duration must be positive and at most 100 years.")
    return duration
