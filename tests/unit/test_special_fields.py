"""Special fields of structured logs (facts/packaging#structured-logs)."""

from typing import Any

import pytest

from trainshed.api.logging_v2.special_fields import split_fields

PREFIX = "logging.googleapis.com/"


def test_special_log_fields_are_removed_from_the_payload() -> None:
    payload = {
        "message": "m",
        "loss": 0.5,
        f"{PREFIX}labels": {"run": "7", "n": 3, "is": True},
        f"{PREFIX}trace": "projects/p/traces/1",
        f"{PREFIX}spanId": "0001",
        f"{PREFIX}trace_sampled": True,
        f"{PREFIX}insertId": "i",
        f"{PREFIX}operation": {"id": "o", "producer": "p", "first": True},
        f"{PREFIX}sourceLocation": {"file": "a.py", "line": 3, "function": "f"},
        "httpRequest": {"status": 200, "requestMethod": "GET", "latency": "0.500s"},
    }
    rest, labels, fields = split_fields(payload)
    assert rest == {"message": "m", "loss": 0.5}
    assert labels == {"run": "7", "n": "3", "is": "true"}
    assert fields == {
        "trace": "projects/p/traces/1",
        "spanId": "0001",
        "traceSampled": True,
        "insertId": "i",
        "operation": {"id": "o", "producer": "p", "first": True},
        "sourceLocation": {"file": "a.py", "line": "3", "function": "f"},
        "httpRequest": {"status": 200, "requestMethod": "GET", "latency": "0.500s"},
    }


def test_log_line_without_special_fields_is_unchanged() -> None:
    payload = {"message": "m", "labels": {"a": "b"}, "trace": "t"}
    assert split_fields(payload) == (payload, {}, {})
    assert split_fields(payload)[0] is payload


def test_empty_special_fields_of_google_log_handlers_are_dropped() -> None:
    """The StructuredLogHandler of google-cloud-logging always writes all fields, some of them empty."""
    empty: dict[str, Any] = {f"{PREFIX}trace": "", f"{PREFIX}spanId": "", "httpRequest": {}}
    empty |= {f"{PREFIX}labels": {}, f"{PREFIX}sourceLocation": {}, f"{PREFIX}trace_sampled": False}
    assert split_fields(empty) == ({}, {}, {})


@pytest.mark.parametrize(
    ("member", "value"),
    [
        (f"{PREFIX}labels", "not an object"),
        (f"{PREFIX}trace", 7),
        (f"{PREFIX}trace_sampled", "maybe"),
        (f"{PREFIX}sourceLocation", {"line": "three"}),
        (f"{PREFIX}operation", []),
        ("httpRequest", {"status": "ok"}),
        ("httpRequest", {"latency": {"deep": [1]}}),
    ],
)
def test_special_log_field_of_a_wrong_type_stays_in_the_payload(member: str, value: Any) -> None:
    assert split_fields({member: value}) == ({member: value}, {}, {})


def test_unknown_members_of_special_log_fields_stay_in_the_payload() -> None:
    rest, _, fields = split_fields({"httpRequest": {"status": 200, "user": "me"}})
    assert rest == {"httpRequest": {"user": "me"}}
    assert fields == {"httpRequest": {"status": 200}}
