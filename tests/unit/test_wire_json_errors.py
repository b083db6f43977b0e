"""Errors for invalid JSON (spec/submit#refusals, spec/clients#wire)."""

from functools import reduce
from typing import Any

import pytest

from tests.unit.test_wire_json import parse
from trainshed.wire import json as wire
from trainshed.wire.status import WireError

AI = "google.cloud.aiplatform.v1."
ML = "google.cloud.ml.v1."
SCALE_TIER = "(type.googleapis.com/google.cloud.ml.v1.TrainingInput.ScaleTier)"
TIERS = "; the values are BASIC, STANDARD_1, PREMIUM_1, BASIC_GPU, BASIC_TPU, CUSTOM."
INPUT = "job.training_input"


def violation_of(body: Any) -> tuple[str, str]:
    """Return the field and text of the only violation."""
    with pytest.raises(WireError) as caught:
        parse(ML + "CreateJobRequest", {"job": body})
    (violation,) = caught.value.violations
    assert str(caught.value) == violation.description
    return violation.field, violation.description


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        ({"trainingInput": {"scaleTier": "XYZ"}}, f"{INPUT}.scale_tier", f'{SCALE_TIER}, "XYZ"{TIERS}'),
        ({"trainingInput": {"scaleTier": 99}}, f"{INPUT}.scale_tier", f"{SCALE_TIER}, 99{TIERS}"),
        ({"trainingInput": {"workerCount": "abc"}}, f"{INPUT}.worker_count", '(TYPE_INT64), "abc"'),
        ({"jobId": 5}, "job.job_id", '(TYPE_STRING), 5; write it in quotes: "5"'),
        (
            {"trainingInput": {"args": "--x"}},
            f"{INPUT}.args",
            '(repeated TYPE_STRING), "--x"; write a list: ["--x"]',
        ),
        ({"trainingInput": {"args": ["a", None]}}, f"{INPUT}.args[1]", "(TYPE_STRING), null"),
        ({"trainingInput": "x"}, INPUT, '(type.googleapis.com/google.cloud.ml.v1.TrainingInput), "x"'),
        ({"labels": {"a": 1}}, 'job.labels["a"]', '(TYPE_STRING), 1; write it in quotes: "1"'),
        (
            {"trainingInput": {"args": "--a 'b c'"}},
            f"{INPUT}.args",
            '(repeated TYPE_STRING), "--a \'b c\'"; write a list: ["--a", "b c"]',
        ),
        (
            {"trainingInput": {"args": "it's"}},
            f"{INPUT}.args",
            '(repeated TYPE_STRING), "it\'s"; write a list: ["it\'s"]',
        ),
        (
            {"trainingInput": {"args": 5}},
            f"{INPUT}.args",
            '(repeated TYPE_STRING), 5; write a list: ["5"]',
        ),
        (
            {"trainingInput": {"masterConfig": {"containerCommand": "a && b"}}},
            f"{INPUT}.master_config.container_command",
            '(repeated TYPE_STRING), "a && b"; write a list: ["bash", "-c", "a && b"]',
        ),
        (
            {"trainingInput": {"packageUris": "gs://b/a b.tar.gz"}},
            f"{INPUT}.package_uris",
            '(repeated TYPE_STRING), "gs://b/a b.tar.gz"; write a list: ["gs://b/a b.tar.gz"]',
        ),
        ({"labels": []}, "job.labels", "(map of TYPE_STRING), []"),
        (
            {"trainingInput": {"useChiefInTfConfig": "true"}},
            f"{INPUT}.use_chief_in_tf_config",
            '(TYPE_BOOL), "true"; write it without quotes: true',
        ),
        (
            {"trainingInput": {"scheduling": {"maxWaitTime": "1h"}}},
            f"{INPUT}.scheduling.max_wait_time",
            "(type.googleapis.com/google.protobuf.Duration), Field 'max_wait_time', Illegal duration format; "
            "duration must end with 's'",
        ),
    ],
)  # fmt: skip
def test_invalid_value_is_rejected_with_the_public_error_text(body: Any, field: str, text: str) -> None:
    """spec/submit#refusals, with the templates of facts/limits#error-texts."""
    assert violation_of(body) == (field, f"Invalid value at '{field}' {text}")


@pytest.mark.parametrize(
    ("body", "field", "place", "text"),
    [
        (
            {"parameter_server_type": "x"},
            "parameter_server_type",
            "job",
            "Cannot find field. It is a field of 'job.training_input'.",
        ),
        (
            {"trainingInput": {"labels": {"a": "b"}}},
            "labels",
            INPUT,
            "Cannot find field. It is a field of 'job', 1 level up.",
        ),
        ({"y": 1}, "y", "job", "Cannot find field."),
        ({"trainingInput": {"x": 1}}, "x", INPUT, "Cannot find field."),
        ({"jobId": ["a"]}, "jobId", "job", "Proto field is not repeating, cannot start list."),
        ({"jobId": {}}, "jobId", "job", "Proto field is not a message, cannot start object."),
        ({"jobId": "a", "job_id": "b"}, "job_id", "job", "Proto field is given twice, under two spellings."),
    ],
)  # fmt: skip
def test_unknown_field_name_is_rejected_with_the_public_error_text(
    body: Any, field: str, place: str, text: str
) -> None:
    """facts/limits#error-texts."""
    words = f"Invalid JSON payload received. Unknown name \"{field}\" at '{place}': {text}"
    assert violation_of(body) == (f"{place}.{field}", words)


def test_message_with_two_fields_of_a_oneof_is_rejected() -> None:
    with pytest.raises(WireError) as caught:
        parse(AI + "CustomJobSpec", {"workerPoolSpecs": [{"containerSpec": {}, "pythonPackageSpec": {}}]})
    (violation,) = caught.value.violations
    assert violation.field == "worker_pool_specs[0].python_package_spec"
    assert violation.description == (
        "Invalid value at 'worker_pool_specs[0]' (oneof), oneof field 'task' is already set. "
        "Cannot set 'pythonPackageSpec'"
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"{", "truncated"),
        (b'{"a": 1,}', "trailing comma in object (byte 8)"),
        (b"nope", "invalid character"),
        (b"\xff", "invalid character (byte 0)"),
        (b'"\xff"', "can't decode byte 0xff"),
        ('{"displayName":"x"}'.encode("utf-16"), "invalid character (byte 0)"),
        (b"[]", "Root element must be a message"),
        (b"null", "Root element must be a message"),
        (b'{"a":NaN}', "invalid character"),
        (b'{"a":1e999}', "out of range"),
        (b'{"displayName":"\\ud800"}', "Invalid JSON payload received."),
        (b'{"labels":{"\\udc00":"x"}}', "Invalid JSON payload received."),
        (b'{"a":' + b"9" * 5000 + b"}", "out of range"),
        (b"[" * 40_000, "maximum recursion depth"),
    ],
)
def test_malformed_json_is_rejected(text: bytes, fault: str) -> None:
    with pytest.raises(WireError) as caught:
        parse(AI + "CustomJob", text)
    (violation,) = caught.value.violations
    assert fault in violation.description
    violation.description.encode()
    violation.field.encode()


def test_deeply_nested_value_is_rejected() -> None:
    """If the service stored the value, gRPC clients could not parse a list that contains it."""
    deep: Any = 1
    for _ in range(34):
        deep = {"a": deep}
    with pytest.raises(WireError, match="too deep"):
        parse(AI + "TrainingPipeline", {"trainingTaskInputs": deep})
    # Lists in binary form may be deeper. Stored values of this form must remain readable.
    deep = {"trainingTaskInputs": reduce(lambda inner, _: [inner], range(49), 1)}
    with pytest.raises(WireError, match="too deep"):
        parse(AI + "TrainingPipeline", deep)
    assert wire.to_public(wire.from_public(AI + "TrainingPipeline", deep)) == deep
    with pytest.raises(WireError, match="Invalid value at 'labels'"):
        parse(AI + "CustomJob", {"labels": reduce(lambda inner, _: [inner], range(20_000), deep)})


def test_json_number_above_the_range_of_a_double_is_rejected() -> None:
    with pytest.raises(WireError, match=r"google\.protobuf\.Value"):
        parse(AI + "TrainingPipeline", {"trainingTaskInputs": {"n": 10**400}, "x": 1})


@pytest.mark.parametrize(
    "value", [{"a": 1}, {"@type": "nope"}, {"@type": "type.googleapis.com/no.Such"}, {"@type": 5}, "x"]
)
def test_invalid_protobuf_any_message_is_rejected(value: Any) -> None:
    with pytest.raises(WireError, match=r"google\.protobuf\.Any"):
        wire.from_public("google.longrunning.Operation", {"metadata": value})
