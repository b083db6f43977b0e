"""Converts between rows and the domain: parameters for columns, etags, timeline entries, operations."""

import base64
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from trainshed.core.capacity import QuotaKey
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.names import Api, Collection, JobName
from trainshed.core.pipelines import Pipeline
from trainshed.core.usage import MachineTime, Use
from trainshed.core.works import Work
from trainshed.store.codec import (
    CANCEL,
    DETAILS,
    DRILL,
    LABELS,
    WORK_KINDS,
    WorkKind,
    decode_job,
    encode_job,
)
from trainshed.store.port import Intent
from trainshed.store.sqlite.connections import Parameters, readable

ABOVE_ALL_UIDS = 2**63 - 1
"""The upper bound of the first page of a list that descends from the newest uid; also above all times."""
_DIGITS_OF_A_UID = len(str(ABOVE_ALL_UIDS))


KINDS = {
    Collection.CUSTOM_JOBS: WorkKind.JOB,
    Collection.TUNING_JOBS: WorkKind.TUNING,
    Collection.PIPELINES: WorkKind.PIPELINE,
}
"""The kind of work in each collection of the Vertex API."""


def name_parameters(name: JobName) -> Parameters:
    """Return the columns of a job's name. `kind` "": unknown, because names of `ml` do not contain it.
    `numbered`: the uid of a work whose id is its uid; 0: a client chose the id."""
    job_id = name.job_id
    number = int(job_id) if job_id.isdecimal() and len(job_id) <= _DIGITS_OF_A_UID else 0
    return {
        "api": name.api.value,
        "project_id": name.project_id,
        "location": name.location,
        "job_id": job_id,
        "numbered": number if number <= ABOVE_ALL_UIDS else 0,
        "kind": KINDS[name.collection].value if name.api is Api.VERTEX else "",
    }


def work_parameters(job: Work) -> Parameters:
    """Return the columns of a new work."""
    parent = None if isinstance(job, Pipeline) else job.parent
    return name_parameters(job.name) | {
        "uid": job.uid,
        "kind": WORK_KINDS[type(job)].value,
        "parent_uid": parent.uid if parent else 0,
        "state": job.state.value,
        "is_live": int(not job.state.is_final),
        "display_name": job.display_name,
        "created": job.created,
        "labels": LABELS.encode(job.labels),
        "record": encode_job(job),
    }


def use_parameters(use: Use) -> Parameters:
    labels = msgspec.json.encode(dict(use.labels), order="sorted").decode()
    return msgspec.structs.asdict(use) | {"labels": labels}


def machine_time(row: tuple[Any, ...]) -> MachineTime:
    project_id, person, labels, *used = row
    return MachineTime(project_id, person, tuple(msgspec.json.decode(labels).items()), *used)


def etag(generation: int, labels_version: int) -> str:
    """Return the etag in base64 (facts/resources#ml); it differs after every commit and every change of
    labels."""
    return base64.b64encode(struct.pack(">II", generation, labels_version)).decode("ascii")


def viewed_job(row: tuple[Any, ...]) -> tuple[Work, str]:
    """Return (job, etag) from (record, labels, labels_updated, kind, generation, labels_version)."""
    record, labels, labels_updated, kind, generation, labels_version = row
    job = decode_job(record, labels, labels_updated, kind)
    return job, etag(generation, labels_version)


def timeline_entry(row: tuple[Any, ...]) -> TimelineEntry:
    at, kind, message, details = row
    return TimelineEntry(at, kind, message, DETAILS.decode(details))


def intent(row: Sequence[Any]) -> Intent:
    seq, kind, encoded = row
    codec = {"cancel": CANCEL, "drill": DRILL}.get(kind)
    events = readable([encoded], codec.decode) if codec is not None else iter(())
    return Intent(seq, next(events, None))


def quota(row: tuple[Any, ...]) -> tuple[QuotaKey, float]:
    *key, ceiling = row
    return QuotaKey(*key), ceiling
