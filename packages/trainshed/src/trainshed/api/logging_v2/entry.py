"""A log entry, and its conversion to the public message (facts/packaging#endpoints,
facts/lifecycle#service-lines).

Entries are not stored. They are created from lines of replicas, from a job's timeline (the service's own
lines), and from audit records.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

from google.protobuf.message import Message
from msgspec import Struct

from trainshed.api.logging_v2.special_fields import ENTRY, split_fields
from trainshed.core.failure.rules import Effect
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import SERVICE_TASK, Api, JobName, log_task_name
from trainshed.core.units import Nanos
from trainshed.core.works import Work
from trainshed.store.audit import AuditRow
from trainshed.store.logs.lines import LogLine, Severity
from trainshed.wire import json as wire_json
from trainshed.wire.status import StatusCode

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
"""The public log lines of timeline entries, by kind. Timeline entries of all other kinds are logged with
their own messages."""

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

_STATE_LABEL: Final = "ml.googleapis.com/job_state"
_STATES_BY_KIND: Final[Mapping[str, JobState]] = {
    "admitted": JobState.PREPARING,
    "running": JobState.RUNNING,
    "cancel_requested": JobState.CANCELLING,
    "succeeded": JobState.SUCCEEDED,
    "failed": JobState.FAILED,
    "cancelled": JobState.CANCELLED,
}
"""The state of a job after a timeline entry, by the kind of the entry."""

_VERDICT_SEVERITIES: Final[Mapping[object, Severity]] = {
    Effect.JOB_SUCCEEDS: Severity.INFO,
    Effect.REPLICA_DONE: Severity.INFO,
    Effect.JOB_CANCELLED: Severity.WARNING,
}
"""Severities of the timeline entries about verdicts (decisions of the failure table), by effect. Verdicts
with any other effect have the severity ERROR."""


class Source(Struct, frozen=True):
    """The fields that all entries of one task, or of the audit log, have in common."""

    log_name: str
    resource_type: str
    resource_labels: dict[str, str]
    labels: dict[str, str] = {}


@lru_cache(1024)
def task_source(job: JobName, task: str, trial: str | None = None) -> Source:
    """Return the source of the entries of a job's task. `trial`: the trial's number, in the log of a tuning
    job."""
    labels = {"ml.googleapis.com/job_id": job.job_id, "ml.googleapis.com/task_name": task}
    return Source(
        f"projects/{job.project_id}/logs/ml.googleapis.com%2F{quote(task, safe='')}",
        RESOURCE_TYPE,
        {"job_id": job.job_id, "project_id": job.project_id, "task_name": task},
        labels | {"ml.googleapis.com/trial_id": trial} if trial else labels,
    )


class Entry(Struct, frozen=True):
    """A log entry. The entries of a job are ordered by `time`, then by `insert_id` as text."""

    source: Source
    #: Time of the entry in nanoseconds since the epoch.
    time: Nanos
    insert_id: str
    severity: Severity
    text: str
    #: The fields of a JSON line, or the public form of an audit record's AuditLog message.
    payload: dict[str, Any] | None = None
    #: Additional labels. If the source has a label with the same key, the source's value is used.
    own_labels: dict[str, str] = {}
    #: Additional fields in public JSON, such as `httpRequest`. If they contain `insertId`, clients see it
    #: instead of `insert_id`.
    fields: dict[str, Any] = {}

    @property
    def labels(self) -> Mapping[str, str]:
        return self.own_labels | self.source.labels if self.own_labels else self.source.labels

    @property
    def public_id(self) -> str:
        return self.fields.get("insertId", self.insert_id)

    @property
    def position(self) -> tuple[int, str]:
        return (self.time, self.insert_id)


def replica_entry(name: JobName, line: LogLine, trial: str | None = None) -> Entry:
    """Return the entry for a line of a replica of the job `name`."""
    source = task_source(name, log_task_name(name.api, line.replica), trial)
    payload, labels, fields = line.payload, dict[str, str](), dict[str, Any]()
    if payload is not None:
        payload, labels, fields = split_fields(payload)
        if payload == {"message": line.text}:
            payload = None
    return Entry(source, line.at, line.insert_id, line.severity, line.text, payload, labels, fields)


_SERVICE_NAMES: Final = {
    "admin": "iam",
    "credentials": "iamcredentials",
    "resourcemanager": "cloudresourcemanager",
}
"""Names of services, by the word before the version in their method names. All other services have this word
as their name."""


def audit_entry(row: AuditRow) -> Entry:
    """Return the log entry for an audit record."""
    record = row.record
    # `google.cloud.ml.v1.JobService.CreateJob` belongs to `ml.googleapis.com`.
    words = record.method.split(".")
    service = words[0]
    if service == "google":
        service = f"{_SERVICE_NAMES.get(words[-4], words[-4])}.googleapis.com"
    authentication: dict[str, Any] = {"principalEmail": record.acting_as or record.who}
    if record.acting_as:
        delegation = {"firstPartyPrincipal": {"principalEmail": record.who}}
        authentication["serviceAccountDelegationInfo"] = [delegation]
    severity, status = Severity.NOTICE, dict[str, Any]()
    if record.status:
        severity, name = Severity.ERROR, StatusCode.of(record.status).name
        status = {"code": record.status, "message": name}
    payload: dict[str, Any] = {
        "serviceName": service,
        "methodName": record.method,
        "resourceName": record.resource,
        "authenticationInfo": authentication,
        "requestMetadata": {"callerIp": record.source or ""},
        "metadata": dict(record.facts),
        "status": status,
    }
    source = Source(
        f"projects/{row.project}/logs/{AUDIT_LOG}%2Factivity",
        "audited_resource",
        {"service": service, "method": record.method, "project_id": row.project},
    )
    text = f"{record.who} {record.method} {record.resource}"
    return Entry(source, row.at, f"{row.seq:020d}", severity, text, payload)


def service_entries(job: Work, timeline: Sequence[TimelineEntry]) -> tuple[Entry, ...]:
    """Return entries for the service's own lines, in strictly ascending order of time. An entry that is not
    later than its predecessor is moved to the next nanosecond."""
    entries: list[Entry] = []
    source = task_source(job.name, SERVICE_TASK)
    labels, is_ml = {"ml.googleapis.com/endpoint": ""}, job.name.api is Api.ML
    if is_ml:
        labels[_STATE_LABEL] = JobState.QUEUED
    last, first_time = 0, timeline[0].at if timeline else 0
    # Return the notices of the submission first, so that the first line of a log shows the resources that
    # replace the requested ones (spec/runtimes#substitutes).
    for event in sorted(timeline, key=lambda event: event.kind != "notice" or event.at != first_time):
        if is_ml and event.kind in _STATES_BY_KIND:
            labels = {**labels, _STATE_LABEL: _STATES_BY_KIND[event.kind]}
        for text in _texts(event):
            last = max(event.at, last + 1)
            # The "-" places this line before a replica's line of the same time, because "-" sorts before the
            # digits in the replica's insert ID (`LogLine.insert_id`).
            insert_id = f"{job.uid:016x}-{len(entries):020x}"
            severity = _SEVERITIES.get(event.kind, Severity.INFO)
            if event.kind == "verdict":
                severity = _VERDICT_SEVERITIES.get(event.details.get("effect"), Severity.ERROR)
            entries.append(Entry(source, last, insert_id, severity, text, own_labels=labels))
    return tuple(entries)


def message(entry: Entry) -> Message:
    source = entry.source
    view: Any = wire_json.from_public(ENTRY, entry.fields)
    view.log_name = source.log_name
    view.insert_id = entry.public_id
    view.severity = entry.severity.value
    view.labels.update(entry.labels)
    view.timestamp.seconds, view.timestamp.nanos = divmod(entry.time, 10**9)
    view.receive_timestamp.CopyFrom(view.timestamp)
    view.resource.type = source.resource_type
    view.resource.labels.update(source.resource_labels)
    if entry.payload is None:
        view.text_payload = entry.text
    elif source.resource_type == RESOURCE_TYPE:
        # The payload of a JSON line contains its fields and `message`.
        view.json_payload.update({"message": entry.text, **entry.payload})
    else:
        view.proto_payload.Pack(wire_json.from_public(_AUDIT_MESSAGE, entry.payload))
    return view


def _texts(event: TimelineEntry) -> Iterator[str]:
    public = _PUBLIC_LINES.get(event.kind)
    if public is None or event.kind == "failed":
        yield event.message
    if public is not None:
        yield public
