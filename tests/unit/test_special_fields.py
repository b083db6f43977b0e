"""Special fields of structured logs (facts/packaging#structured-logs)."""

from typing import Any

import pytest

from trainshed.api.logging_v2.special_fields import split

PREFIX = "logging.googleapis.com/"


def test_special_fields_leave_the_payload() -> None:
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
    rest, labels, fields = split(payload)
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


def test_a_line_without_them_is_its_own_payload() -> None:
    payload = {"message": "m", "labels": {"a": "b"}, "trace": "t"}
    assert split(payload) == (payload, {}, {})
    assert split(payload)[0] is payload


def test_empty_fields_of_googles_handlers_vanish() -> None:
    """google-cloud-logging's StructuredLogHandler writes all of them, empty where there is nothing."""
    empty: dict[str, Any] = {f"{PREFIX}trace": "", f"{PREFIX}spanId": "", "httpRequest": {}}
    empty |= {f"{PREFIX}labels": {}, f"{PREFIX}sourceLocation": {}, f"{PREFIX}trace_sampled": False}
    assert split(empty) == ({}, {}, {})


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
def test_values_of_wrong_types_stay(member: str, value: Any) -> None:
    assert split({member: value}) == ({member: value}, {}, {})


def test_unknown_members_stay() -> None:
    rest, _, fields = split({"httpRequest": {"status": 200, "user": "me"}})
    assert rest == {"httpRequest": {"user": "me"}}
    assert fields == {"httpRequest": {"status": 200}}
