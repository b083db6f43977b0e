"""Between rows and the domain: parameters of a job's columns, etags, timeline entries, operations."""

import base64
import sqlite3
import struct
from collections.abc import Iterable
from typing import Any

from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobName, JobUid
from trainshed.store.codec import decode_details, decode_job, encode_details
from trainshed.store.port import Operation

Parameters = dict[str, Any]


def name_parameters(name: JobName) -> Parameters:
    return {
        "api": name.api.value,
        "project_id": name.project_id,
        "location": name.location,
        "job_id": name.job_id,
    }


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


def operation(row: tuple[Any, ...]) -> Operation:
    name, kind, target, created, updated = row
    return Operation(name, kind, target, created, updated)
