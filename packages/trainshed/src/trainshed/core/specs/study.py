"""Converts a Vertex StudySpec in public JSON to a `StudySpec`, or to a list of all its errors
(spec/tuning#studies, facts/tuning#vertex).

The study API and tuning jobs use this module. Tuning jobs have stricter rules: they have exactly one
objective.
"""

from collections.abc import Mapping
from typing import Any

from trainshed.core.requests import Faults, Section
from trainshed.core.specs import syntax
from trainshed.core.specs.study_parameters import VERTEX, read_parameters
from trainshed.core.study.spec import (
    Algorithm,
    Goal,
    MedianStopping,
    Metric,
    Noise,
    Parameter,
    ParameterType,
    Selection,
    StudySpec,
)

_ALGORITHMS = {
    "": Algorithm.DEFAULT,
    "GAUSSIAN_PROCESS_BANDIT": Algorithm.DEFAULT,
    "GRID_SEARCH": Algorithm.GRID_SEARCH,
    "RANDOM_SEARCH": Algorithm.RANDOM_SEARCH,
}
_SELECTIONS = {"": Selection.LAST, "LAST_MEASUREMENT": Selection.LAST, "BEST_MEASUREMENT": Selection.BEST}
_NOISES = {"": Noise.UNKNOWN, "LOW": Noise.LOW, "HIGH": Noise.HIGH}
_GOALS = {"": Goal.MAXIMIZE, "MAXIMIZE": Goal.MAXIMIZE, "MINIMIZE": Goal.MINIMIZE}
_UNSERVED = {
    "studyStoppingConfig": "This service does not support automatic stopping of studies. Omit it. A "
    "tuning job ends after max_trial_count trials, and a study when its client "
    "requests no further trial."
}
_RESERVED_TAGS = frozenset({"checkpoint_path", "global_step", "timestamp", "trial"})
"""Members that every line of a trial's metrics file contains in addition to the metric
(facts/tuning#metrics)."""


def parse_study(public: Mapping[str, Any]) -> tuple[str, StudySpec]:
    """Parse the display name and the specification of a Study of the Vertex study API. `public` is its public
    JSON. Raise InvalidRequest with all violations."""
    study = Section(public, "", Faults())
    display_name = syntax.read_display_name(study)
    spec = read_study_spec(study.section("studySpec"), for_tuning_job=False)
    study.faults.refuse()
    return display_name, spec


def read_study_spec(section: Section, *, for_tuning_job: bool) -> StudySpec:
    """Parse the StudySpec in a message. Errors are added to the section's faults. The spec of a faulty
    request is not usable."""
    metrics = _read_metrics(section, for_tuning_job=for_tuning_job)
    syntax.refuse(section, _UNSERVED)
    parameters = read_parameters(section, "parameters", VERTEX)
    return StudySpec(
        parameters=parameters,
        metrics=metrics,
        algorithm=read_algorithm(section, parameters),
        selection=syntax.read_choice(section, "measurementSelectionType", _SELECTIONS),
        noise=syntax.read_choice(section, "observationNoise", _NOISES),
        median_stopping=_read_stopping(section),
    )


def _read_metrics(study: Section, *, for_tuning_job: bool) -> tuple[Metric, ...]:
    """Parse the repeated field `metrics`: at least one metric, with unique ids without white space. A tuning
    job has exactly one metric, because it has one best trial (docs/tuning.md)."""
    aims: list[Metric] = []
    for section in study.sections("metrics"):
        name = section.text("metricId")
        if not name:
            section.fault("metricId", "The metric needs an id, for example accuracy.")
        elif any(letter.isspace() for letter in name):
            section.fault("metricId", f"The metric id {name!r} must not contain white space.")
        elif any(metric.id == name for metric in aims):
            section.fault("metricId", f"The metric {name!r} appears more than once.")
        elif for_tuning_job:
            section.check("metricId", tag_fault(name))
        if section.has("safetyConfig"):
            section.fault(
                "safetyConfig",
                "This service does not support metrics with a threshold. Omit it, and complete "
                "a trial that violates it as infeasible.",
            )
        aims.append(Metric(name, read_goal(section)))
    if not aims:
        study.fault("metrics", "At least one metric must be set.")
    if for_tuning_job and len(aims) > 1:
        study.fault(
            "metrics", "A tuning job has exactly one metric, its objective. For several metrics, use a study."
        )
    return tuple(aims)


def read_goal(section: Section) -> Goal:
    """Parse `goal`. The default is MAXIMIZE, as in the public services."""
    return syntax.read_choice(section, "goal", _GOALS)


def read_algorithm(section: Section, parameters: tuple[Parameter, ...]) -> Algorithm:
    """Parse `algorithm`. A grid search cannot have DOUBLE parameters in `ml` (facts/tuning#ml). The public
    documentation of Vertex has the same rule."""
    algorithm = syntax.read_choice(section, "algorithm", _ALGORITHMS)
    endless = [p.id for p in parameters if p.type is ParameterType.DOUBLE]
    if algorithm is Algorithm.GRID_SEARCH and endless:
        section.fault(
            "algorithm",
            "GRID_SEARCH needs parameters of the types INTEGER, DISCRETE and CATEGORICAL only; these are "
            f"DOUBLE: {', '.join(endless)}. Make them DISCRETE or use another algorithm.",
        )
    return algorithm


def tag_fault(tag: str) -> str:
    """Return the error in the name under which a trial's program reports a metric, or "" if it is valid."""
    if tag not in _RESERVED_TAGS:
        return ""
    return (
        f"Every line of the metrics file has a member {tag!r}, so a metric cannot have "
        "that name. Choose another name."
    )


_RULES = (
    "medianAutomatedStoppingSpec",
    "decayCurveStoppingSpec",
    "convexAutomatedStoppingSpec",
    "convexStopConfig",
)
"""The early stopping rules. The service applies the median rule for all of them (docs/tuning.md). The last
field is the deprecated form of the convex rule."""


def _read_stopping(study: Section) -> MedianStopping | None:
    """Parse the early stopping rule of a StudySpec, or return None if it has none."""
    present = [name for name in _RULES if study.has(name)]
    if not present:
        return None
    if len(present) > 1:
        study.fault(
            present[1],
            f"Only one early stopping rule can be set, and {study.path_of(present[0])} is set as well.",
        )
    rule = study.section(present[0])
    return MedianStopping(rule.flag("useElapsedDuration") or rule.flag("useSeconds"))
