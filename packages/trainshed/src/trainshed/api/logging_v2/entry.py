"""A log entry, and its conversion to the public message (facts/packaging#endpoints,
facts/lifecycle#service-lines).

Entries are not stored. They are made from the lines of the replicas, from the service's own lines, which
follow from the job's timeline, and from the audit.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from google.protobuf.message import Message
from msgspec import Struct

from trainshed.core.failure.rules import Effect
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.names import SERVICE_TASK, JobName, log_task_name
from trainshed.core.units import Nanos
from trainshed.core.works import Work
from trainshed.store.logs.lines import LogLine, Severity
from trainshed.wire import json as wire_json
from trainshed.wire import pool

RESOURCE_TYPE: Final = "ml_job"
AUDIT_LOG: Final = "cloudaudit.googleapis.com"
_AUDIT_MESSAGE: Final = "google.cloud.audit.AuditLog"

_PUBLIC_LINES: Final[Mapping[str, str]] = {
    "created": "Waiting for job to be provisioned.",
    "admitted": "Job is preparing.",
    "launching": "Waiting for training program to start.",
    "running": "Job is running.",
    "succeeded": "Job completed successfully.",
    "failed": "Job failed.",
}
"""Timeline kinds whose line in the log is this public one; all others are logged with their own message."""

_IN_THE_LOG: Final = frozenset({"building"})
"""Timeline kinds that are left out, because the service's lines in the log say more."""

_SEVERITIES: Final[Mapping[str, Severity]] = {
    "notice": Severity.NOTICE,
    "warning": Severity.WARNING,
    "cancel_requested": Severity.WARNING,
    "cancelled": Severity.WARNING,
    "replica_lost": Severity.ERROR,
    "package_failed": Severity.ERROR,
    "data_failed": Severity.ERROR,
    "launch_rejected": Severity.ERROR,
    "internal_error": Severity.ERROR,
    "failed": Severity.ERROR,
    "trial_infeasible": Severity.WARNING,
}

_VERDICTS: Final[Mapping[object, Severity]] = {
    Effect.JOB_SUCCEEDS: Severity.INFO,
    Effect.REPLICA_DONE: Severity.INFO,
    Effect.JOB_CANCELLED: Severity.WARNING,
}
"""Severities of verdicts by their effect; all other verdicts report a failure."""


class Entry(Struct, frozen=True):
    """A log entry. Entries of one job have one order: by `at`, then `insert_id` as text."""

    #: The job whose entry readers see; a trial's line belongs to the tuning job when that job's log is read.
    job: JobName
    task: str
    #: Nanoseconds since the epoch.
    at: Nanos
    insert_id: str
    severity: Severity
    text: str
    payload: dict[str, Any] | None = None
    #: Number of the trial; "" = none.
    trial: str = ""

    @property
    def position(self) -> tuple[int, str]:
        return (self.at, self.insert_id)

    @property
    def log_name(self) -> str:
        return (
            f"projects/{self.job.project_id}/logs/ml.googleapis.com%2F{quote(self.task, safe='')}"
        )

    @property
    def resource_type(self) -> str:
        return RESOURCE_TYPE

    @property
    def resource_labels(self) -> dict[str, str]:
        return {
            "job_id": self.job.job_id,
            "project_id": self.job.project_id,
            "task_name": self.task,
        }

    @property
    def labels(self) -> dict[str, str]:
        labels = {
            "ml.googleapis.com/job_id": self.job.job_id,
            "ml.googleapis.com/task_name": self.task,
        }
        return labels | {"ml.googleapis.com/trial_id": self.trial} if self.trial else labels

    def put(self, view: Any) -> None:
        """Write what it holds into a LogEntry message. A line that was JSON keeps its fields beside
        `message`."""
        if self.payload is None:
            view.text_payload = self.text
        else:
            view.json_payload.update({**self.payload, "message": self.text})


class AuditEntry(Struct, frozen=True):
    """A record of the audit. Its attributes are those of `Entry`."""

    project: str
    at: Nanos
    insert_id: str
    text: str
    #: The AuditLog message in its public form.
    payload: dict[str, Any]
    severity: Severity

    @property
    def position(self) -> tuple[int, str]:
        return (self.at, self.insert_id)

    @property
    def log_name(self) -> str:
        return f"projects/{self.project}/logs/{AUDIT_LOG}%2Factivity"

    @property
    def resource_type(self) -> str:
        return "audited_resource"

    @property
    def resource_labels(self) -> dict[str, str]:
        return {key: self.payload[f"{key}Name"] for key in ("service", "method")} | {
            "project_id": self.project
        }

    @property
    def labels(self) -> dict[str, str]:
        return {}

    def put(self, view: Any) -> None:
        """Write what it holds into a LogEntry message."""
        view.proto_payload.Pack(wire_json.from_public(_AUDIT_MESSAGE, self.payload))


AnyEntry = Entry | AuditEntry


def replica_entry(name: JobName, line: LogLine, trial: str = "") -> Entry:
    """Return the entry of a replica's line, as one of the job `name`."""
    return Entry(
        name,
        log_task_name(name.api, line.replica),
        line.at,
        line.insert_id,
        line.severity,
        line.text,
        line.payload,
        trial=trial,
    )


def service_entries(job: Work, timeline: Sequence[TimelineEntry]) -> tuple[Entry, ...]:
    """Return the service's own lines, in strictly ascending time: an entry whose time is not later than its
    predecessor's moves behind it."""
    entries: list[Entry] = []
    last, begun = 0, timeline[0].at if timeline else 0
    # The first line of a log says what the job gets instead of what it asked for (spec/runtimes#substitutes).
    for event in sorted(timeline, key=lambda event: event.kind != "notice" or event.at != begun):
        for text in _texts(event):
            last = max(event.at, last + 1)
            entries.append(
                Entry(
                    job.name,
                    SERVICE_TASK,
                    last,
                    # "-" sorts before the digits of a replica's line (`LogLine.insert_id`).
                    f"{job.uid:016x}-{len(entries):020x}",
                    _severity(event),
                    text,
                )
            )
    return tuple(entries)


def _severity(event: TimelineEntry) -> Severity:
    if event.kind == "verdict":
        return _VERDICTS.get(event.details.get("effect"), Severity.ERROR)
    return _SEVERITIES.get(event.kind, Severity.INFO)


def message(entry: AnyEntry) -> Message:
    view = pool.message(
        "google.logging.v2.LogEntry",
        log_name=entry.log_name,
        insert_id=entry.insert_id,
        severity=entry.severity.value,
        labels=entry.labels,
    )
    view.timestamp.seconds, view.timestamp.nanos = divmod(entry.at, 10**9)
    view.receive_timestamp.CopyFrom(view.timestamp)
    view.resource.type = entry.resource_type
    view.resource.labels.update(entry.resource_labels)
    entry.put(view)
    return view


def _texts(event: TimelineEntry) -> Iterator[str]:
    if event.kind in _IN_THE_LOG:
        return
    public = _PUBLIC_LINES.get(event.kind)
    if public is None or event.kind == "failed":
        yield event.message
    if public is not None:
        yield public
