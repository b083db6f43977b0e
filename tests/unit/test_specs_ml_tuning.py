"""Validation of hyperparameters of `ml` v1 jobs: violations with their fields, and parsed studies
(spec/tuning#parameters, facts/tuning#ml)."""

from typing import Any

from tests.unit.specs_requests import FakeRuntimes, Request, ml_job, rejected_fields
from trainshed.core.job import JobDraft, JobSpec
from trainshed.core.specs.ml import parse_job
from trainshed.core.study.spec import Algorithm, Goal, MedianStopping, Metric, Parameter, ParameterType, Scale
from trainshed.core.tuning.records import TuningSpec

PARAMS, PREVIOUS = "hyperparameters.params[0]", "hyperparameters.resume_previous_job_id"
LOG = "UNIT_LOG_SCALE"
RATE: Request = {
    "parameterName": "rate",
    "type": "DOUBLE",
    "minValue": 0.1,
    "maxValue": 1.0,
    "scaleType": LOG,
}


def tuned_job(*params: Request, **changes: Any) -> Request:
    return ml_job(hyperparameters={"params": list(params or (RATE,)), **changes})


def parse(request: Request, max_trials: int = 0) -> JobDraft[JobSpec | TuningSpec]:
    return parse_job(request, runtimes=FakeRuntimes(), max_trials=max_trials)


def violations(request: Request, max_trials: int = 0) -> dict[str, str]:
    return rejected_fields(lambda: parse(request, max_trials))


def rate(**changes: Any) -> Request:
    merged = {**RATE, **changes}
    return tuned_job({name: value for name, value in merged.items() if value is not None})


def categories(*values: str, **extra_fields: Any) -> Request:
    """Return a categorical parameter, with extra fields that are invalid for it."""
    none = {"minValue": None, "maxValue": None, "scaleType": None}
    return rate(type="CATEGORICAL", categoricalValues=list(values), **(none | extra_fields))


ONE_FAULT: dict[str, tuple[Request, str]] = {
    "no parameters": (ml_job(hyperparameters={"goal": "MAXIMIZE"}), "hyperparameters.params"),
    "no type": (rate(type=None), f"{PARAMS}.type"),
    "duplicate parameter name": (tuned_job(RATE, RATE), "hyperparameters.params[1].parameter_name"),
    "logarithm of 0": (rate(minValue=None), f"{PARAMS}.scale_type"),
    "fractional bound of an integer": (rate(type="INTEGER", maxValue=2.5, minValue=1), f"{PARAMS}.max_value"),
    "no categories": (categories(), f"{PARAMS}.categorical_values"),
    "categories with a bound": (categories("a", maxValue=1.0), f"{PARAMS}.max_value"),
    "categories with a scale": (categories("a", scaleType=LOG), f"{PARAMS}.scale_type"),
    "unordered discrete values": (rate(type="DISCRETE", discreteValues=[2, 1]), f"{PARAMS}.discrete_values"),
    "grid of doubles": (tuned_job(algorithm="GRID_SEARCH"), "hyperparameters.algorithm"),
    "more parallel trials than trials": (
        tuned_job(maxParallelTrials=2),
        "hyperparameters.max_parallel_trials",
    ),
    "more failures than trials": (tuned_job(maxFailedTrials=2), "hyperparameters.max_failed_trials"),
    "metric tag reserved by hypertune": (
        tuned_job(hyperparameterMetricTag="trial"),
        "hyperparameters.hyperparameter_metric_tag",
    ),
    "invalid ID of the previous job": (tuned_job(resumePreviousJobId="a-b"), PREVIOUS),
    "resumes its own job": (tuned_job(resumePreviousJobId="job_1"), PREVIOUS),
}


def test_each_violation_in_ml_hyperparameters_names_the_invalid_field() -> None:
    """spec/submit#refusals, facts/tuning#ml: a request that breaks one rule has exactly one violation."""
    names = {case: [*violations(request)] for case, (request, _) in ONE_FAULT.items()}
    assert names == {case: [field] for case, (_, field) in ONE_FAULT.items()}


def test_error_of_an_ml_tuning_job_lists_violations_of_job_and_hyperparameters() -> None:
    """spec/submit#refusals: one error contains the violations of both parts."""
    request = ml_job(region="mars", hyperparameters={"params": [{"type": "DOUBLE"}], "maxTrials": -5})
    assert set(violations(request)) == {
        "region",
        f"{PARAMS}.parameter_name",
        f"{PARAMS}.max_value",
        "hyperparameters.max_trials",
    }


def test_ml_hyperparameters_are_parsed_into_a_study() -> None:
    """facts/tuning#ml: types, scales, and fields that DISCRETE parameters ignore."""
    request = tuned_job(
        RATE,
        {"parameterName": "n", "type": "INTEGER", "minValue": 1.0, "maxValue": 64.0},
        {
            "parameterName": "batch",
            "type": "DISCRETE",
            "discreteValues": [16, 32.5],
            "maxValue": 7,
            "scaleType": "UNIT_REVERSE_LOG_SCALE",
        },
        {
            "parameterName": "opt",
            "type": "CATEGORICAL",
            "categoricalValues": ["adam", "sgd"],
            "scaleType": "NONE",
        },
        goal="MINIMIZE",
        hyperparameterMetricTag="loss",
        algorithm="RANDOM_SEARCH",
        maxTrials=12,
        maxParallelTrials=4,
        maxFailedTrials=3,
        enableTrialEarlyStopping=True,
        resumePreviousJobId="earlier",
    )
    spec = parse(request).spec
    assert isinstance(spec, TuningSpec)
    assert spec.study.parameters == (
        Parameter("rate", ParameterType.DOUBLE, low=0.1, high=1.0, scale=Scale.LOG),
        Parameter("n", ParameterType.INTEGER, low=1, high=64),
        Parameter("batch", ParameterType.DISCRETE, values=(16.0, 32.5), scale=Scale.REVERSE_LOG),
        Parameter("opt", ParameterType.CATEGORICAL, categories=("adam", "sgd")),
    )
    assert spec.study.metrics == (Metric("loss", Goal.MINIMIZE),)
    assert spec.study.algorithm is Algorithm.RANDOM_SEARCH
    assert spec.study.median_stopping == MedianStopping()
    assert (spec.max_trials, spec.parallel_trials, spec.max_failed_trials) == (12, 4, 3)


def test_ml_job_exceeding_the_trial_limit_of_the_service_is_rejected() -> None:
    """spec/tuning#trials: the maximum number of trials is a setting."""
    assert list(violations(tuned_job(maxTrials=5), 4)) == ["hyperparameters.max_trials"]
