"""JSON that is refused, and with which words (spec/submit#refusals, spec/clients#wire)."""

import sys
from typing import Any

import pytest

from trainshed.wire import json as wire
from trainshed.wire.status import WireError

AI = "google.cloud.aiplatform.v1."
ML = "google.cloud.ml.v1."
INVALID = "Invalid JSON payload received. "
SCALE_TIER = "(type.googleapis.com/google.cloud.ml.v1.TrainingInput.ScaleTier)"
TIERS = "; the values are BASIC, STANDARD_1, PREMIUM_1, BASIC_GPU, BASIC_TPU, CUSTOM."
DURATION = "(type.googleapis.com/google.protobuf.Duration)"


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        (
            {"parameter_server_type": "x"},
            "job.parameter_server_type",
            f"{INVALID}Unknown name \"parameter_server_type\" at 'job': Cannot find field.",
        ),
        (
            {"trainingInput": {"x": 1}},
            "job.training_input.x",
            f"{INVALID}Unknown name \"x\" at 'job.training_input': Cannot find field.",
        ),
        (
            {"trainingInput": {"scaleTier": "XYZ"}},
            "job.training_input.scale_tier",
            f"Invalid value at 'job.training_input.scale_tier' {SCALE_TIER}, \"XYZ\"{TIERS}",
        ),
        (
            {"trainingInput": {"scaleTier": 99}},
            "job.training_input.scale_tier",
            f"Invalid value at 'job.training_input.scale_tier' {SCALE_TIER}, 99{TIERS}",
        ),
        (
            {"trainingInput": {"workerCount": "abc"}},
            "job.training_input.worker_count",
            "Invalid value at 'job.training_input.worker_count' (TYPE_INT64), \"abc\"",
        ),
        (
            {"jobId": 5},
            "job.job_id",
            "Invalid value at 'job.job_id' (TYPE_STRING), 5; write it in quotes: \"5\"",
        ),
        (
            {"jobId": ["a"]},
            "job.jobId",
            f"{INVALID}Unknown name \"jobId\" at 'job': Proto field is not repeating, "
            "cannot start list.",
        ),
        (
            {"jobId": {}},
            "job.jobId",
            f"{INVALID}Unknown name \"jobId\" at 'job': Proto field is not a message, "
            "cannot start object.",
        ),
        (
            {"trainingInput": {"args": "--x"}},
            "job.training_input.args",
            "Invalid value at 'job.training_input.args' (repeated TYPE_STRING), \"--x\"; "
            'write a list: ["--x"]',
        ),
        (
            {"trainingInput": {"args": ["a", None, "c"]}},
            "job.training_input.args[1]",
            "Invalid value at 'job.training_input.args[1]' (TYPE_STRING), null",
        ),
        (
            {"trainingInput": "x"},
            "job.training_input",
            "Invalid value at 'job.training_input' "
            '(type.googleapis.com/google.cloud.ml.v1.TrainingInput), "x"',
        ),
        (
            {"labels": {"a": 1}},
            'job.labels["a"]',
            'Invalid value at \'job.labels["a"]\' (TYPE_STRING), 1; write it in quotes: "1"',
        ),
        ({"labels": []}, "job.labels", "Invalid value at 'job.labels' (map of TYPE_STRING), []"),
        (
            {"trainingInput": {"useChiefInTfConfig": "true"}},
            "job.training_input.use_chief_in_tf_config",
            "Invalid value at 'job.training_input.use_chief_in_tf_config' (TYPE_BOOL), \"true\"; "
            "write it without quotes: true",
        ),
        (
            {"trainingInput": {"scheduling": {"maxWaitTime": "1h"}}},
            "job.training_input.scheduling.max_wait_time",
            f"Invalid value at 'job.training_input.scheduling.max_wait_time' {DURATION}, "
            "Field 'max_wait_time', Illegal duration format; duration must end with 's'",
        ),
        (
            {"jobId": "a", "job_id": "b"},
            "job.job_id",
            f"{INVALID}Unknown name \"job_id\" at 'job': "
            "Proto field is given twice, under two spellings.",
        ),
    ],
)
def test_refusals_have_the_public_words(body: Any, field: str, text: str) -> None:
    """spec/submit#refusals; the templates of facts/limits#error-texts."""
    with pytest.raises(WireError) as caught:
        wire.parse(ML + "Job", body, path="job")
    (violation,) = caught.value.violations
    assert (violation.field, violation.description) == (field, text)
    assert str(caught.value) == text


def test_two_members_of_a_oneof_are_refused() -> None:
    with pytest.raises(WireError) as caught:
        wire.parse(
            AI + "CustomJobSpec",
            {"workerPoolSpecs": [{"containerSpec": {}, "pythonPackageSpec": {}}]},
        )
    (violation,) = caught.value.violations
    assert violation.field == "worker_pool_specs[0].python_package_spec"
    assert violation.description == (
        "Invalid value at 'worker_pool_specs[0]' (oneof), oneof field 'task' is already set. "
        "Cannot set 'pythonPackageSpec'"
    )


def test_all_violations_are_found_at_once() -> None:
    """spec/submit#refusals: fieldViolations names all the offending fields."""
    with pytest.raises(WireError) as caught:
        wire.parse(
            AI + "CustomJob",
            {
                "nope": 1,
                "displayName": 5,
                "jobSpec": {
                    "workerPoolSpecs": [
                        {"replicaCount": "x", "machineSpec": {"acceleratorType": "GPU"}},
                        {"diskSpec": {"bootDiskSizeGb": 1.5}, "wrong": None},
                    ],
                    "scheduling": {"timeout": "1h", "restartJobOnWorkerRestart": 1},
                },
                "labels": {"a": 1, "b": "fine"},
            },
        )
    assert [violation.field for violation in caught.value.violations] == [
        "nope",
        "display_name",
        "job_spec.worker_pool_specs[0].replica_count",
        "job_spec.worker_pool_specs[0].machine_spec.accelerator_type",
        "job_spec.worker_pool_specs[1].disk_spec.boot_disk_size_gb",
        "job_spec.worker_pool_specs[1].wrong",
        "job_spec.scheduling.timeout",
        "job_spec.scheduling.restart_job_on_worker_restart",
        'labels["a"]',
    ]
    assert str(caught.value).count("\n") == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "line 1 column 2"),
        (b'{\n "a": 1,}', "line 2"),
        (b"nope", "line 1 column 1"),
        (b'{"a":1,"a":2}', 'Duplicate name "a"'),
        (b'{"labels":{"a":"1","a":"2"}}', 'Duplicate name "a"'),
        (b"\xff", "not UTF-8"),
        ('{"displayName":"x"}'.encode("utf-16"), "not UTF-8"),
        (b"[]", "Root element must be a message"),
        (b"5", "Root element must be a message"),
        (b"null", "Root element must be a message"),
        (b'{"a":NaN}', "NaN is not a JSON value"),
        (b'{"displayName":"\\ud800"}', "Unpaired surrogate"),
        (b'{"labels":{"\\udc00":"x"}}', "labels"),
        (b'{"\\ud800":1}', 'Unknown name "?"'),
        (b'{"a":' + b"9" * 5000 + b"}", "too many digits"),
        # Python 3.14 parses it to its end.
        (b"[" * 40_000, "too deep" if sys.version_info < (3, 14) else "Expecting value"),
    ],
)
def test_malformed_text_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(WireError) as caught:
        wire.parse(AI + "CustomJob", text)
    (violation,) = caught.value.violations
    assert said in violation.description
    violation.description.encode()
    violation.field.encode()


def test_a_deep_value_is_refused() -> None:
    """Clients of gRPC could read no list with such a thing in it."""
    deep: Any = 1
    for _ in range(34):
        deep = {"a": deep}
    with pytest.raises(WireError, match="too deep"):
        wire.parse(AI + "TrainingPipeline", {"trainingTaskInputs": deep})
    parsed = wire.parse(AI + "TrainingPipeline", {"trainingTaskInputs": [[1]]})
    assert wire.to_public(parsed) == {"trainingTaskInputs": [[1]]}


def test_a_number_beyond_double_in_a_value_is_refused() -> None:
    with pytest.raises(WireError, match=r"google\.protobuf\.Value"):
        wire.parse(AI + "TrainingPipeline", {"trainingTaskInputs": {"n": 10**400}, "x": 1})


@pytest.mark.parametrize(
    "value",
    [{"a": 1}, {"@type": "nope"}, {"@type": "type.googleapis.com/no.Such"}, {"@type": 5}, "x"],
)
def test_bad_any_is_refused(value: Any) -> None:
    with pytest.raises(WireError, match=r"google\.protobuf\.Any"):
        wire.from_public("google.longrunning.Operation", {"metadata": value})
