"""Validation of Vertex tuning jobs: violations with their fields, and parsed specifications (spec/tuning,
facts/resources#tuning-jobs, facts/tuning)."""

from typing import Any

import pytest

from tests.unit.specs_requests import FakeRuntimes, Request, container, custom_job, pool, rejected_fields
from trainshed.core.job import JobDraft
from trainshed.core.names import Api
from trainshed.core.specs.tuning import parse_tuning_job
from trainshed.core.study.spec import Goal, Metric, Selection
from trainshed.core.tuning.records import TuningSpec

LOSS: Request = {"metricId": "loss", "goal": "MINIMIZE"}
STUDY: Request = {
    "metrics": [LOSS],
    "parameters": [{"parameterId": "x", "doubleValueSpec": {"maxValue": 1.0}}],
}


def tuning_job(**changes: Any) -> Request:
    return {
        "displayName": "tuning",
        "studySpec": STUDY,
        "maxTrialCount": 12,
        "parallelTrialCount": 4,
        "trialJobSpec": custom_job()["jobSpec"],
        **changes,
    }


def parse(request: Request, max_trials: int = 0) -> JobDraft[TuningSpec]:
    return parse_tuning_job(request, region="us-central1", runtimes=FakeRuntimes(), max_trials=max_trials)


def violations(request: Request, max_trials: int = 0) -> dict[str, str]:
    return rejected_fields(lambda: parse(request, max_trials))


def study(**changes: Any) -> Request:
    return tuning_job(studySpec={**STUDY, **changes})


ONE_FAULT: dict[str, tuple[Request, str]] = {
    "more parallel trials than trials": (tuning_job(parallelTrialCount=13), "parallel_trial_count"),
    "negative number of failures": (tuning_job(maxFailedTrialCount=-1), "max_failed_trial_count"),
    "more failures than trials": (tuning_job(maxFailedTrialCount=13), "max_failed_trial_count"),
    "unknown machine type of a trial": (
        tuning_job(trialJobSpec={"workerPoolSpecs": [pool(machineSpec={"machineType": "n1-standard-99"})]}),
        "trial_job_spec.worker_pool_specs[0].machine_spec.machine_type",
    ),
    "two objectives": (study(metrics=[LOSS, {"metricId": "b", "goal": "MAXIMIZE"}]), "study_spec.metrics"),
    "metric ID reserved by hypertune": (
        study(metrics=[{"metricId": "global_step", "goal": "MAXIMIZE"}]),
        "study_spec.metrics[0].metric_id",
    ),
}


@pytest.mark.parametrize("case", ONE_FAULT)
def test_each_violation_in_a_tuning_job_request_names_the_invalid_field(case: str) -> None:
    """spec/submit#refusals, facts/resources#tuning-jobs, facts/tuning: a request that breaks one rule has
    exactly one violation."""
    request, field = ONE_FAULT[case]
    assert list(violations(request)) == [field]


def test_tuning_job_error_lists_all_violations() -> None:
    """spec/submit#refusals: violations of the study, the trial job and the tuning job itself."""
    assert set(violations({"labels": {"A": "b"}})) == {
        "display_name",
        "labels.A",
        "study_spec.metrics",
        "study_spec.parameters",
        "trial_job_spec.worker_pool_specs",
        "max_trial_count",
        "parallel_trial_count",
    }


def test_valid_tuning_job_is_parsed() -> None:
    """spec/tuning, facts/resources#tuning-jobs: all fields of the specification."""
    tuning = parse(
        tuning_job(
            studySpec={**STUDY, "measurementSelectionType": "BEST_MEASUREMENT"},
            trialJobSpec={
                **custom_job(pool(), container(args=["--a"]))["jobSpec"],
                "baseOutputDirectory": {"outputUriPrefix": "gs://bucket/out"},
            },
            maxFailedTrialCount=3,
            labels={"team": "a"},
            encryptionSpec={"kmsKeyName": "k"},
        )
    )
    spec = tuning.spec
    assert (tuning.display_name, tuning.labels) == ("tuning", (("team", "a"),))
    assert (spec.max_trials, spec.parallel_trials, spec.max_failed_trials) == (12, 4, 3)
    assert spec.study.metrics == (Metric("loss", Goal.MINIMIZE),)
    assert spec.study.selection is Selection.BEST
    assert (spec.trial.api, spec.trial.region) == (Api.VERTEX, "us-central1")
    assert [p.position for p in spec.trial.pools] == [0, 1]
    assert spec.trial.base_output_directory == "gs://bucket/out"
    assert any("encryption_spec" in warning for warning in spec.trial.warnings)
    assert (spec.resumed, spec.first_trial) == ((), 1)
