"""Between rows and the domain: parameters of a job's columns, etags, timeline entries, operations."""

import base64
import enum
import sqlite3
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from trainshed.core.capacity import QuotaKey
from trainshed.core.lifecycle.drills import DrillPlan
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobName, JobUid
from trainshed.store.codec import (
    decode_cancel,
    decode_details,
    decode_drill,
    decode_drills,
    decode_job,
    encode_details,
)
from trainshed.store.port import Intent, NodeDrain, Operation

Parameters = dict[str, Any]


class IntentKind(enum.StrEnum):
    """What the column `kind` of an intent says."""

    CANCEL = "cancel"
    DRILL = "drill"


def name_parameters(name: JobName) -> Parameters:
    return {
        "api": name.api.value,
        "project_id": name.project_id,
        "location": name.location,
        "job_id": name.job_id,
    }


def quota_parameters(key: QuotaKey) -> Parameters:
    return {"project_id": key.project_id, "region": key.region, "metric": key.metric}


def etag(generation: int, labels_version: int) -> str:
    """Base64 (facts §1.1); differs after every commit and every change of labels."""
    return base64.b64encode(struct.pack(">II", generation, labels_version)).decode("ascii")


def viewed_job(row: tuple[Any, ...]) -> tuple[Job, str]:
    """(job, etag) from (record, labels, labels_updated, generation, labels_version)."""
    record, labels, labels_updated, generation, labels_version = row
    return decode_job(record, labels, labels_updated), etag(generation, labels_version)


def append_timeline(
    connection: sqlite3.Connection, statement: str, uid: JobUid, entries: Iterable[TimelineEntry]
) -> None:
    for entry in entries:
        connection.execute(
            statement,
            {
                "uid": uid,
                "at": entry.at,
                "kind": entry.kind,
                "message": entry.message,
                "details": encode_details(entry.details),
            },
        )


def timeline_entry(row: tuple[Any, ...]) -> TimelineEntry:
    at, kind, message, details = row
    return TimelineEntry(at, kind, message, decode_details(details))


def intent(row: Sequence[Any]) -> Intent:
    seq, kind, encoded = row
    match IntentKind(kind):
        case IntentKind.CANCEL:
            return Intent(seq, decode_cancel(encoded))
        case IntentKind.DRILL:
            return Intent(seq, decode_drill(encoded))


def node_drain(row: tuple[Any, ...]) -> NodeDrain:
    node, since, reason = row
    return NodeDrain(node, since, reason)


def quota(row: tuple[Any, ...]) -> tuple[QuotaKey, float]:
    project_id, region, metric, ceiling = row
    return QuotaKey(project_id, region, metric), ceiling


def drill_plan(row: tuple[Any, ...]) -> DrillPlan:
    project_id, name, drills = row
    return DrillPlan(project_id, name, decode_drills(drills))


def operation(row: tuple[Any, ...]) -> Operation:
    name, kind, target, created, updated = row
    return Operation(name, kind, target, created, updated)
