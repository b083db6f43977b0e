"""A Vertex StudySpec in public JSON becomes a `StudySpec`, or a list of everything wrong with it
(spec/tuning#studies, facts/tuning#vertex).

Used by the study API and by tuning jobs, whose rules are stricter: they have one objective.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from trainshed.core.requests import Faults, Section
from trainshed.core.specs import syntax
from trainshed.core.specs.study_parameters import VERTEX, read_parameters
from trainshed.core.specs.study_stopping import read_limits, read_stopping
from trainshed.core.study.spec import (
    Algorithm,
    ConvexStopping,
    DecayCurveStopping,
    Goal,
    MedianStopping,
    Metric,
    Noise,
    Parameter,
    ParameterType,
    Selection,
    StudySpec,
)

T = TypeVar("T")

_ALGORITHMS = {
    "": Algorithm.DEFAULT,
    "GAUSSIAN_PROCESS_BANDIT": Algorithm.DEFAULT,
    "GRID_SEARCH": Algorithm.GRID_SEARCH,
    "RANDOM_SEARCH": Algorithm.RANDOM_SEARCH,
}
_SELECTIONS = {
    "": Selection.LAST,
    "LAST_MEASUREMENT": Selection.LAST,
    "BEST_MEASUREMENT": Selection.BEST,
}
_NOISES = {"": Noise.UNKNOWN, "LOW": Noise.LOW, "HIGH": Noise.HIGH}
_RESERVED_TAGS = frozenset({"checkpoint_path", "global_step", "timestamp", "trial"})
"""Members that every line of a trial's metrics file has beside the metric (facts/tuning#metrics)."""


@dataclass(frozen=True, slots=True)
class ParsedStudy:
    """A valid study."""

    display_name: str
    spec: StudySpec


def parse_study(public: Mapping[str, Any]) -> ParsedStudy:
    """Read a Study of the Vertex study API, given as public JSON. Raises InvalidRequest with every
    violation."""
    study = Section(public, "", Faults())
    display_name = syntax.read_display_name(study)
    spec = read_study_spec(study.section("studySpec"), for_tuning_job=False)
    study.faults.refuse()
    return ParsedStudy(display_name, spec)


def read_study_spec(section: Section, *, for_tuning_job: bool) -> StudySpec:
    """A StudySpec, wherever it stands. What is wrong is reported to the section's faults; the spec of a
    faulty request is of no use."""
    metrics = read_metrics(section, "metricId")
    if for_tuning_job:
        _check_objective(section, metrics)
    parameters = read_parameters(section, "parameters", VERTEX)
    stopping = read_stopping(section, parameters)
    return StudySpec(
        parameters=parameters,
        metrics=metrics,
        algorithm=read_algorithm(section, parameters),
        selection=_choose(section, "measurementSelectionType", _SELECTIONS, Selection.LAST),
        noise=_choose(section, "observationNoise", _NOISES, Noise.UNKNOWN),
        median_stopping=stopping if isinstance(stopping, MedianStopping) else None,
        decay_curve_stopping=stopping if isinstance(stopping, DecayCurveStopping) else None,
        convex_stopping=stopping if isinstance(stopping, ConvexStopping) else None,
        limits=read_limits(section.section("studyStoppingConfig")),
    )


def read_metrics(study: Section, id_field: str) -> tuple[Metric, ...]:
    """The repeated field `metrics`: ids without white space, each once; at least one that is no safety
    metric."""
    found: list[Metric] = []
    for section in study.sections("metrics"):
        name = section.text(id_field)
        if fault := _metric_fault(name, found):
            section.fault(id_field, fault)
        goal = section.enum("goal") or Goal.MAXIMIZE  # the public default
        if goal not in tuple(Goal):
            section.fault("goal", f"The goal must be set: {', '.join(Goal)}.")
            goal = Goal.MAXIMIZE
        found.append(_with_safety(section, Metric(name, Goal(goal))))
    if not found:
        study.fault("metrics", "At least one metric must be given.")
    elif all(metric.safety is not None for metric in found):
        study.fault(
            "metrics",
            "Every metric is a safety metric; give one more, without a safety_config, as the objective.",
        )
    return tuple(found)


def read_algorithm(section: Section, parameters: tuple[Parameter, ...]) -> Algorithm:
    """`algorithm`; a grid has no DOUBLE parameters (facts/tuning#ml; the public text of Vertex says the
    same)."""
    algorithm = _choose(section, "algorithm", _ALGORITHMS, Algorithm.DEFAULT)
    endless = [p.id for p in parameters if p.type is ParameterType.DOUBLE]
    if algorithm is Algorithm.GRID_SEARCH and endless:
        section.fault(
            "algorithm",
            "GRID_SEARCH needs parameters of the types INTEGER, DISCRETE and CATEGORICAL only; these are "
            f"DOUBLE: {', '.join(endless)}. Make them DISCRETE or use another algorithm.",
        )
    return algorithm


def tag_fault(tag: str) -> str:
    """What is wrong with a metric that a trial's program is to report under this name."""
    if tag not in _RESERVED_TAGS:
        return ""
    return (
        f"{tag!r} is a member of every line of the metrics file, so no metric can be reported under "
        "that name; choose another."
    )


def _check_objective(section: Section, metrics: tuple[Metric, ...]) -> None:
    """A tuning job has a best trial, so it has one objective (docs/choices.md)."""
    if len(metrics) > 1 or any(metric.safety is not None for metric in metrics):
        section.fault(
            "metrics",
            "A tuning job has exactly one metric, its objective; for several, or for safety metrics, "
            "use a study.",
        )
    for metric, given in zip(metrics, section.sections("metrics"), strict=True):
        if fault := tag_fault(metric.id):
            given.fault("metricId", fault)


def _metric_fault(name: str, before: list[Metric]) -> str:
    if not name:
        return "The metric needs an id, for example accuracy."
    if any(letter.isspace() for letter in name):
        return f"The metric id {name!r} must not contain white space."
    if any(metric.id == name for metric in before):
        return f"The metric {name!r} is given more than once."
    return ""


def _with_safety(section: Section, metric: Metric) -> Metric:
    if not section.has("safetyConfig"):
        return metric
    safety = section.section("safetyConfig")
    threshold = safety.number("safetyThreshold")
    fraction = None
    if not math.isfinite(threshold):
        safety.fault("safetyThreshold", "The threshold must be a finite number.")
    if safety.has("desiredMinSafeTrialsFraction"):
        fraction = safety.number("desiredMinSafeTrialsFraction")
        if not 0 <= fraction <= 1:
            safety.fault("desiredMinSafeTrialsFraction", "The fraction must be from 0 to 1.")
    return Metric(metric.id, metric.goal, threshold, fraction)


def _choose(section: Section, name: str, choices: Mapping[str, T], default: T) -> T:
    given = section.enum(name)
    if given not in choices:
        known = ", ".join(filter(None, choices))
        section.fault(name, f"{given!r} is not one of {known}.")
    return choices.get(given, default)
