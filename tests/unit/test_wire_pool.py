"""The private pool, the discovery documents, statuses (spec/invariants#private-pool,
facts/limits#error-texts)."""

import json
import subprocess
import sys
from typing import Any, cast

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.message import Message

from trainshed.wire import pool, status
from trainshed.wire.status import StatusCode, Violation

CUSTOM_JOB = "google.cloud.aiplatform.v1.CustomJob"


def test_shared_messages_are_one_class_for_all_apis() -> None:
    status_class = pool.message_class("google.rpc.Status")
    operation = pool.message_class("google.longrunning.Operation")(
        error=status_class(code=3, message="no")
    )
    pool.load("ml_v1")
    pool.load("logging_v2")
    assert pool.message_class("google.longrunning.Operation") is type(operation)
    entry = pool.message_class("google.logging.v2.LogEntry")()
    cast(Any, entry).timestamp.seconds = 5
    assert cast(Any, entry).timestamp.ToDatetime().year == 1970


def test_the_default_pool_stays_clean() -> None:
    """spec/invariants#private-pool: the SDK registers the same files in the default pool."""
    script = (
        "from google.protobuf import descriptor_pool\n"
        "from trainshed.wire import pool\n"
        f"[pool.load(api) for api in pool.APIS]\n"
        "try:\n"
        f"    descriptor_pool.Default().FindMessageTypeByName({CUSTOM_JOB!r})\n"
        "except KeyError:\n"
        "    print('clean')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "clean"
    assert pool.pool() is not descriptor_pool.Default()


@pytest.mark.parametrize("api", ["ml_v1", "logging_v2"])
def test_discovery_documents_hold_names_and_no_prose(api: str) -> None:
    text = pool.discovery_document(api, "http://127.0.0.1:8080")
    document = json.loads(text)
    assert document["rootUrl"] == document["baseUrl"] == "http://127.0.0.1:8080/"
    assert b"enumDescriptions" not in text

    def longest(value: object) -> int:
        if isinstance(value, dict):
            return max(
                (longest(inner) for inner in cast(dict[str, object], value).values()), default=0
            )
        if isinstance(value, list):
            return max((longest(inner) for inner in cast(list[object], value)), default=0)
        return value.count(" ") if isinstance(value, str) else 0

    assert longest(document) < 4


def test_error_body_has_the_public_shape() -> None:
    body = status.error_body(
        StatusCode.INVALID_ARGUMENT, "bad", [Violation("job.job_id", "no")], reason="WHY"
    )
    assert json.loads(body) == {
        "error": {
            "code": 400,
            "message": "bad",
            "status": "INVALID_ARGUMENT",
            "details": [
                {
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": "WHY",
                    "domain": "googleapis.com",
                },
                {
                    "@type": "type.googleapis.com/google.rpc.BadRequest",
                    "fieldViolations": [{"field": "job.job_id", "description": "no"}],
                },
            ],
        }
    }
    assert "details" not in json.loads(status.error_body(StatusCode.NOT_FOUND, "gone"))["error"]


def test_the_grpc_status_says_the_same() -> None:
    from trainshed.wire.json import to_public

    message = status.status_message(
        StatusCode.INVALID_ARGUMENT, "bad", [Violation("job.job_id", "no")], reason="WHY"
    )
    assert isinstance(message, Message)
    rest = json.loads(
        status.error_body(
            StatusCode.INVALID_ARGUMENT, "bad", [Violation("job.job_id", "no")], reason="WHY"
        )
    )["error"]
    public = to_public(message)
    assert public["code"] == 3
    assert public["message"] == rest["message"]
    assert public["details"] == rest["details"]
