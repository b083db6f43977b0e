"""The stored form of a record: JSON of the domain's own dataclasses, the same in every dialect.

Fields that a later version adds need a default; fields that it drops are skipped when an older record is
read. Whoever renames or retypes a field writes a migration. Floats in a record are finite.
"""

from dataclasses import replace
from typing import Any

import msgspec

from trainshed.core.lifecycle.drills import Drill
from trainshed.core.lifecycle.events import CancelRequested, DrillOrdered
from trainshed.core.lifecycle.records import Job

Labels = tuple[tuple[str, str], ...]

_encoder = msgspec.json.Encoder()
_jobs = msgspec.json.Decoder(Job)
_labels = msgspec.json.Decoder(Labels)
_cancels = msgspec.json.Decoder(CancelRequested)
_drills = msgspec.json.Decoder(DrillOrdered)
_plans = msgspec.json.Decoder(tuple[Drill, ...])
_details = msgspec.json.Decoder(dict[str, Any])


def encode_job(job: Job) -> bytes:
    """The record of a job. Its labels travel along but are not read back: see `decode_job`."""
    return _encoder.encode(job)


def decode_job(record: bytes, labels: bytes, labels_updated: int) -> Job:
    """A job from its record and its label columns.

    Labels are changed by requests while the controller holds an older copy of the record, so they are kept
    beside it and win over what the record says. `labels_updated`: nanoseconds, 0 if never changed.
    Raises msgspec.DecodeError for a record that is not one.
    """
    job = _jobs.decode(record)
    current = _labels.decode(labels)
    if job.labels == current and job.updated >= labels_updated:
        return job
    return replace(job, labels=current, updated=max(job.updated, labels_updated))


def encode_labels(labels: Labels) -> bytes:
    return _encoder.encode(labels)


def encode_cancel(cancel: CancelRequested) -> bytes:
    return _encoder.encode(cancel)


def decode_cancel(intent: bytes) -> CancelRequested:
    return _cancels.decode(intent)


def encode_drill(order: DrillOrdered) -> bytes:
    return _encoder.encode(order)


def decode_drill(intent: bytes) -> DrillOrdered:
    return _drills.decode(intent)


def encode_drills(drills: tuple[Drill, ...]) -> bytes:
    """The drills of a plan."""
    return _encoder.encode(drills)


def decode_drills(drills: bytes) -> tuple[Drill, ...]:
    return _plans.decode(drills)


def encode_details(details: dict[str, Any]) -> bytes:
    return _encoder.encode(details)


def decode_details(details: bytes) -> dict[str, Any]:
    return _details.decode(details)
