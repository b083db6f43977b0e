"""Log entries: the service's own lines follow from the timeline, in strictly growing order
(spec/logs#order)."""

from typing import Any

import pytest

from tests.unit.jobs import job
from trainshed.api.logging_v2.entry import Entry, message, replica_entry, service_entries, task_of
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.names import Api, JobName, JobUid, ReplicaId
from trainshed.store.logs.lines import LogLine, Severity, Stream, read_line
from trainshed.wire.json import to_public

NAME = JobName(Api.ML, "p1", "", "job_a")


def test_public_lines_and_severities() -> None:
    """facts/lifecycle#service-lines: the public lines stand at their moments; a failure tells its reason
    first."""
    timeline = [
        TimelineEntry(1, "created", "made"),
        TimelineEntry(2, "warning", "careful"),
        TimelineEntry(3, "running", "All replicas are running."),
        TimelineEntry(4, "failed", "The replica workerpool0-0 exited."),
    ]
    entries = service_entries(job(), timeline)
    assert [(entry.text, entry.severity) for entry in entries] == [
        ("Waiting for job to be provisioned.", Severity.INFO),
        ("careful", Severity.WARNING),
        ("Job is running.", Severity.INFO),
        ("The replica workerpool0-0 exited.", Severity.ERROR),
        ("Job failed.", Severity.ERROR),
    ]
    assert {entry.source.resource_labels["task_name"] for entry in entries} == {"service"}


@pytest.mark.parametrize(
    ("effect", "severity"),
    [
        ("job_succeeds", Severity.INFO),
        ("replica_done", Severity.INFO),
        ("job_cancelled", Severity.WARNING),
        ("job_retries", Severity.ERROR),
        ("job_fails", Severity.ERROR),
        ("unheard_of", Severity.ERROR),
    ],
)
def test_a_verdict_is_as_severe_as_what_it_does(effect: str, severity: Severity) -> None:
    """spec/logs#lines: who filters for errors finds none in the log of a job that went well."""
    verdict = TimelineEntry(1, "verdict", "Rule some_rule for workerpool0-0.", {"effect": effect})
    assert [entry.severity for entry in service_entries(job(), [verdict])] == [severity]


def rendered(entry: Entry) -> Any:
    return to_public(message(entry))


def test_a_plain_line_as_the_public_message() -> None:
    line = LogLine(
        JobUid(7), 1, ReplicaId(1, 2), 3, 1_500_000_000, Stream.STDERR, "hi", Severity.ERROR
    )
    view = rendered(replica_entry(NAME, line))
    assert view == {
        "insertId": line.insert_id,
        "timestamp": "1970-01-01T00:00:01.500Z",
        "receiveTimestamp": "1970-01-01T00:00:01.500Z",
        "severity": "ERROR",
        "logName": "projects/p1/logs/ml.googleapis.com%2Fworker-replica-2",
        "resource": {
            "type": "ml_job",
            "labels": {"job_id": "job_a", "project_id": "p1", "task_name": "worker-replica-2"},
        },
        "labels": {
            "ml.googleapis.com/job_id": "job_a",
            "ml.googleapis.com/task_name": "worker-replica-2",
        },
        "textPayload": "hi",
    }


@pytest.mark.parametrize("text", [f'{{"a":1{400 * "0"}}}', 40 * '{"a":' + "1" + 40 * "}"])
def test_a_line_that_no_client_could_read_is_a_text(text: str) -> None:
    """Otherwise a program's line would fail each request for its project's log."""
    reading = read_line(Stream.STDOUT, text)
    source = task_of(NAME, "master-replica-0")
    entry = Entry(source, 1, "", reading.severity, text, reading.payload)
    sent = message(entry).SerializeToString()
    assert type(message(entry)).FromString(sent) == message(entry)
    assert rendered(entry)["textPayload"] == text


def test_a_json_line_keeps_its_fields() -> None:
    line = LogLine(
        JobUid(7), 1, ReplicaId(0, 0), 0, 1, Stream.STDOUT, "m", Severity.INFO, {"loss": 0.5}
    )
    assert rendered(replica_entry(NAME, line))["jsonPayload"] == {"loss": 0.5, "message": "m"}
