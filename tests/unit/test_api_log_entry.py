"""Log entries: the service derives its own lines from the timeline, in strictly increasing order
(spec/logs#order)."""

from typing import Any

import pytest

from tests.unit.jobs import job
from trainshed.api.logging_v2.entry import Entry, message, replica_entry, service_entries, task_source
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.names import Api, JobName, JobUid, ReplicaId
from trainshed.store.logs.lines import LogLine, Severity, Stream, read_line
from trainshed.wire.json import to_public

NAME = JobName(Api.ML, "p1", "", "job_a")


def test_timeline_entries_become_log_lines_with_severities() -> None:
    """facts/lifecycle#service-lines: public lines have the times of their events. The reason of a failure
    comes before the failure."""
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
        ("unknown_effect", Severity.ERROR),
    ],
)
def test_log_severity_of_a_failure_verdict_depends_on_the_effect_of_the_verdict(
    effect: str, severity: Severity
) -> None:
    """spec/logs#lines: the log of a successful job contains no errors."""
    verdict = TimelineEntry(1, "verdict", "Rule some_rule for workerpool0-0.", {"effect": effect})
    assert [entry.severity for entry in service_entries(job(), [verdict])] == [severity]


def render(entry: Entry) -> Any:
    return to_public(message(entry))


def test_plain_text_line_is_rendered_as_text_payload() -> None:
    line = LogLine(JobUid(7), 1, ReplicaId(1, 2), 3, 1_500_000_000, Stream.STDERR, "hi", Severity.ERROR)
    view = render(replica_entry(NAME, line))
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
        "labels": {"ml.googleapis.com/job_id": "job_a", "ml.googleapis.com/task_name": "worker-replica-2"},
        "textPayload": "hi",
    }


@pytest.mark.parametrize("text", [f'{{"a":1{400 * "0"}}}', 40 * '{"a":' + "1" + 40 * "}"])
def test_json_line_that_clients_cannot_parse_is_sent_as_text(text: str) -> None:
    """Otherwise a single such line of a program would fail every request for the log of its project."""
    reading = read_line(Stream.STDOUT, text)
    source = task_source(NAME, "master-replica-0")
    entry = Entry(source, 1, "", reading.severity, text, reading.payload)
    sent = message(entry).SerializeToString()
    assert type(message(entry)).FromString(sent) == message(entry)
    assert render(entry)["textPayload"] == text


def test_log_entry_of_a_json_line_contains_all_fields_of_the_line() -> None:
    line = LogLine(JobUid(7), 1, ReplicaId(0, 0), 0, 1, Stream.STDOUT, "m", Severity.INFO, {"loss": 0.5})
    assert render(replica_entry(NAME, line))["jsonPayload"] == {"loss": 0.5, "message": "m"}
