"""Requests with too many values are rejected before they are read, over REST and gRPC."""

from typing import Any

import pytest

from trainshed.wire import json, pool
from trainshed.wire.status import MAX_LISTED_VIOLATIONS, WireError

JOB = "google.cloud.aiplatform.v1.CustomJob"


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"[]," * 60_000 + b"[]]",
        b'{"a":"' + b"," * 60_000 + b'","b":[' + b"1," * 60_000 + b"1]}",
        b'["' + b'","' * 60_000 + b'"]',
    ],
    ids=["lists", "numbers-behind-a-text", "texts"],
)
def test_request_with_too_many_values_is_rejected_before_it_is_parsed(text: bytes) -> None:
    with pytest.raises(WireError, match="more than 50000 values"):
        json.check_count(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"script": "' + b"[,{" * 100_000 + b'"}',
        b'{"script": "' + b'\\",\\\\' * 100_000 + b'"}',
        b'"' + b'\\",' * 100_000,
        b'"' + b'\\",' * 100_000 + b"\\",
        b"[" + b"1," * 40_000 + b"1]",
    ],
    ids=["within-a-text", "escaped", "unfinished", "unfinished-escape", "fewer"],
)
def test_punctuation_in_a_json_string_is_not_counted_as_values(text: bytes) -> None:
    json.check_count(text)


def test_request_with_a_list_or_map_above_the_length_limit_is_rejected() -> None:
    labels = {f"l{n}": "x" for n in range(json.MAX_ENTRIES + 1)}
    with pytest.raises(WireError, match="at most 10000") as refused:
        json.from_public(JOB, {"labels": labels})
    assert [violation.field for violation in refused.value.violations] == ["labels"]


def test_binary_message_has_the_size_limits_of_a_json_request() -> None:
    many = pool.message_class(JOB)(labels={f"l{n}": "x" for n in range(json.MAX_ENTRIES + 1)})
    with pytest.raises(WireError, match="'labels', 10001 entries"):
        json.check_received(many)
    deep: Any = pool.message_class("google.protobuf.Value")()
    for _ in range(300):
        value = deep.list_value.values.add()
        for _ in range(200):
            value.list_value.values.add()
    with pytest.raises(WireError, match="more than 50000 values"):
        json.check_received(deep)


def test_binary_message_with_a_time_that_json_cannot_express_is_rejected() -> None:
    late: Any = pool.message_class("google.logging.v2.LogEntry")()
    late.timestamp.seconds = 10**15
    with pytest.raises(WireError, match=r"'timestamp'.*out of range"):
        json.check_received(late)


def test_binary_message_with_a_number_that_json_cannot_express_is_rejected() -> None:
    """REST clients cannot send such numbers. A Struct over gRPC can contain them."""
    message: Any = pool.message_class("google.cloud.aiplatform.v1.Context")()
    wrong = {"loss": float("nan"), "list": [[1, float("inf")]]}
    message.metadata.update({"fine": 1.5, "text": "NaN", **wrong})
    with pytest.raises(WireError) as refused:
        json.check_received(message)
    assert {violation.field for violation in refused.value.violations} == {
        'metadata.fields["loss"]',
        'metadata.fields["list"].list_value.values[0].list_value.values[1]',
    }


def test_first_hundred_violations_are_listed_and_the_rest_is_counted() -> None:
    with pytest.raises(WireError) as refused:
        json.from_public(JOB, {f"unknown{n}": 1 for n in range(MAX_LISTED_VIOLATIONS + 20)})
    lines = str(refused.value).splitlines()
    assert len(lines) == MAX_LISTED_VIOLATIONS + 1
    assert lines[-1] == "And 20 more faults, which are not listed."
