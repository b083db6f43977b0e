"""Strict JSON: accepted forms, and the form of answers (spec/clients#wire)."""

import json
import sys
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.commands import execute
from trainshed.wire import json as wire
from trainshed.wire import pool
from trainshed.wire.status import WireError

AI = "google.cloud.aiplatform.v1."
ML = "google.cloud.ml.v1."
WORKERS = AI + "WorkerPoolSpec"
DOMAIN = AI + "ExplanationMetadata.InputMetadata.FeatureValueDomain"


def parse(kind: str, body: Any) -> Any:
    """Return a message from a client's JSON, as text or as objects."""
    raw = wire.decode_text(body) if isinstance(body, bytes) else body
    return wire.from_public(kind, raw, keep_output_only=False)


def public(kind: str, body: Any) -> Any:
    return wire.to_public(parse(kind, body))


@pytest.mark.parametrize(
    ("kind", "sent", "expected"),
    [
        # spelling of keys, separate and mixed (spec/clients#task-inputs)
        (AI + "CustomJob", {"display_name": "a"}, {"displayName": "a"}),
        (
            WORKERS,
            {"containerSpec": {"image_uri": "i"}, "disk_spec": {"boot_disk_size_gb": 100.0}},
            {"containerSpec": {"imageUri": "i"}, "diskSpec": {"bootDiskSizeGb": 100}},
        ),
        # enums by name in any case, number, number as text, integral float (spec/clients#numbers)
        (ML + "TrainingInput", {"scaleTier": "custom"}, {"scaleTier": "CUSTOM"}),
        (ML + "TrainingInput", {"scaleTier": "basic-gpu"}, {"scaleTier": "BASIC_GPU"}),
        (AI + "MachineSpec", {"acceleratorType": 2}, {"acceleratorType": "NVIDIA_TESLA_P100"}),
        (AI + "MachineSpec", {"acceleratorType": "2"}, {"acceleratorType": "NVIDIA_TESLA_P100"}),
        (AI + "MachineSpec", {"acceleratorType": 2.0}, {"acceleratorType": "NVIDIA_TESLA_P100"}),
        # integers
        (WORKERS, {"replicaCount": "1.0"}, {"replicaCount": "1"}),
        (WORKERS, {"replicaCount": 1.0}, {"replicaCount": "1"}),
        (WORKERS, {"replicaCount": "1e2"}, {"replicaCount": "100"}),
        (WORKERS, {"replicaCount": "9007199254740993"}, {"replicaCount": "9007199254740993"}),
        (AI + "DiskSpec", {"bootDiskSizeGb": "2"}, {"bootDiskSizeGb": 2}),
        (ML + "TrainingInput", {"workerCount": 9}, {"workerCount": "9"}),
        # the largest float, as protobuf prints it
        (DOMAIN, {"maxValue": 3.4028234663852886e38}, {"maxValue": 3.4028235e38}),
        (DOMAIN, {"maxValue": 3.4028235e38}, {"maxValue": 3.4028235e38}),
        # null is the same as absent (spec/clients#task-inputs), zero is omitted
        (AI + "Scheduling", {"timeout": None, "restartJobOnWorkerRestart": None}, {}),
        (AI + "CustomJob", {"labels": None, "jobSpec": None}, {}),
        (WORKERS, {"containerSpec": None, "pythonPackageSpec": {}}, {"pythonPackageSpec": {}}),
        (WORKERS, {"replicaCount": 0}, {}),
        # doubles
        (AI + "Measurement.Metric", {"value": 1}, {"value": 1}),
        (AI + "Measurement.Metric", {"value": "1.5e3"}, {"value": 1500}),
        (AI + "Measurement.Metric", {"value": "NaN"}, {"value": "NaN"}),
        (AI + "Measurement.Metric", {"value": "-Infinity"}, {"value": "-Infinity"}),
        (AI + "Measurement.Metric", {"value": 0.1}, {"value": 0.1}),
        # durations
        (AI + "Scheduling", {"timeout": "7200s"}, {"timeout": "7200s"}),
        (AI + "Scheduling", {"timeout": "0.000000001s"}, {"timeout": "0.000000001s"}),
        (AI + "Scheduling", {"timeout": "-1.5s"}, {"timeout": "-1.500s"}),
        # bytes, both alphabets, with and without padding
        (ML + "Job", {"etag": "-_8="}, {"etag": "+/8="}),
        (ML + "Job", {"etag": "+/8"}, {"etag": "+/8="}),
        # output-only fields are ignored with any value (spec/clients#numbers: webAccessUris: {})
        (AI + "CustomJob", {"webAccessUris": {}, "displayName": "a"}, {"displayName": "a"}),
        (AI + "CustomJob", {"state": "NO_SUCH", "error": {"nope": [1]}, "createTime": 5}, {}),
        (ML + "Job", {"state": "RUNNING", "trainingOutput": {"x": 1}, "jobId": "j"}, {"jobId": "j"}),
    ],
)
def test_requests_of_real_clients_are_accepted(kind: str, sent: Any, expected: Any) -> None:
    assert public(kind, sent) == expected
    assert public(kind, json.dumps(sent).encode()) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2020-09-15T19:09:54Z", "2020-09-15T19:09:54Z"),
        ("2020-09-15T19:09:54.342080Z", "2020-09-15T19:09:54.342080Z"),
        ("2020-09-15T19:09:54.3+02:00", "2020-09-15T17:09:54.300Z"),
        ("2020-01-01T00:00:00.123456789-00:30", "2020-01-01T00:30:00.123456789Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999999Z"),
        ("1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59.500Z"),
    ],
)
def test_timestamps_keep_nanoseconds_and_offsets(text: str, expected: str) -> None:
    job = wire.from_public(AI + "CustomJob", {"createTime": text})
    assert wire.to_public(job) == {"createTime": expected}


def test_field_masks_in_camel_case_and_snake_case_are_accepted() -> None:
    kind = ML + "UpdateJobRequest"
    for text in ("jobId,trainingInput.scaleTier", "job_id,training_input.scale_tier"):
        request = parse(kind, {"updateMask": text})
        assert list(request.update_mask.paths) == ["job_id", "training_input.scale_tier"]
        assert wire.to_public(request) == {"updateMask": "jobId,trainingInput.scaleTier"}


def test_protobuf_any_messages_are_packed_with_the_private_descriptor_pool() -> None:
    """spec/invariants#private-pool."""
    operation = {
        "name": "projects/p/locations/l/operations/1",
        "metadata": {
            "@type": "type.googleapis.com/google.cloud.aiplatform.v1.DeleteOperationMetadata",
            "genericMetadata": {"createTime": "2020-01-01T00:00:00Z"},
        },
        "done": True,
        "response": {"@type": "type.googleapis.com/google.protobuf.Empty"},
    }
    message = wire.from_public("google.longrunning.Operation", operation)
    assert wire.to_public(message) == operation


def test_rendered_json_has_sorted_keys_and_enum_names_or_numbers() -> None:
    job = wire.from_public(
        AI + "CustomJob", {"displayName": "é", "state": "JOB_STATE_RUNNING", "labels": {"b": "2", "a": "1"}}
    )
    assert wire.render(wire.to_public(job)) == (
        '{"displayName":"é","labels":{"a":"1","b":"2"},"state":"JOB_STATE_RUNNING"}'.encode()
    )
    assert wire.to_public(job, enums_as_ints=True)["state"] == 3


def test_output_only_fields_of_the_first_parsed_message_are_dropped() -> None:
    """Protobuf parses a field's options once, with the extensions that are imported at that time."""
    script = (
        "from trainshed.wire import json\n"
        f"job = json.from_public({AI + 'CustomJob'!r}, {{'state': 3}}, keep_output_only=False)\n"
        "print(json.to_public(job))\n"
    )
    done = execute(sys.executable, "-c", script, check=True)
    assert done.stdout.strip() == "{}"


Strategy = st.SearchStrategy[Any]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.text("abcdefghij-_0123456789", min_size=1, max_size=8)
ENV: Strategy = st.fixed_dictionaries({}, optional={"name": NAMES, "value": TEXT.filter(bool)})
INT64 = st.integers(1, 2**63 - 1)
POOL: Strategy = st.fixed_dictionaries(
    {},
    optional={
        "machineSpec": st.fixed_dictionaries(
            {},
            optional={
                "machineType": NAMES,
                "acceleratorType": st.sampled_from(["NVIDIA_TESLA_T4", "NVIDIA_A100_80GB"]),
                "acceleratorCount": st.integers(1, 16),
            },
        ),
        "replicaCount": INT64.map(str),
        "containerSpec": st.fixed_dictionaries(
            {"imageUri": NAMES, "args": st.lists(TEXT, min_size=1), "env": st.lists(ENV, min_size=1)}
        ),
        "diskSpec": st.fixed_dictionaries({"bootDiskSizeGb": st.integers(1, 2**31 - 1)}),
    },
)
JOBS: Strategy = st.fixed_dictionaries(
    {},
    optional={
        "displayName": TEXT.filter(bool),
        "labels": st.dictionaries(NAMES, TEXT, min_size=1, max_size=4),
        "jobSpec": st.fixed_dictionaries({"workerPoolSpecs": st.lists(POOL, min_size=1, max_size=3)}),
        "state": st.sampled_from(["JOB_STATE_RUNNING", "JOB_STATE_FAILED"]),
    },
)


@settings(max_examples=60)
@given(JOBS)
def test_public_json_is_converted_to_messages_and_back_as_by_protobuf(job: dict[str, Any]) -> None:
    message = wire.from_public(AI + "CustomJob", job)
    assert wire.to_public(message) == job
    assert wire.from_public(AI + "CustomJob", json.loads(wire.render(wire.to_public(message)))) == message
    theirs = pool.message_class(AI + "CustomJob")()
    assert json_format.ParseDict(job, theirs, descriptor_pool=pool.pool()) == message
    assert json_format.MessageToDict(theirs, descriptor_pool=pool.pool()) == job


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["displayName", "job_spec", "jobSpec", "labels", "state", "workerPoolSpecs", "env", "timeout"]
)


@settings(max_examples=150)
@given(st.recursive(JSON, lambda inner: st.dictionaries(KEYS, inner, max_size=4), max_leaves=12))
def test_arbitrary_json_is_read_or_rejected_with_a_message(value: Any) -> None:
    try:
        parse(AI + "CustomJob", value)
    except WireError as error:
        assert error.violations
        assert all(violation.description for violation in error.violations)
        str(error).encode()
