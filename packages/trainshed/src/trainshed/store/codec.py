"""Encodes and decodes stored records: the domain's records as JSON, and their columns.

Decoding raises FailedPrecondition for invalid bytes. Only callers that read the invalid record receive the
error (ADR 44). A new field needs a default. When an older record is read, fields that no longer exist are
ignored. A renamed field or a new type requires a migration. Floats in a record are finite.
"""

import base64
import enum
import struct
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from trainshed.core.capacity import QuotaKey
from trainshed.core.curves import CurveSeries
from trainshed.core.datasets.records import Dataset
from trainshed.core.errors import FailedPrecondition
from trainshed.core.lifecycle.events import CancelRequested, DrillOrdered, TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import Api, Collection, JobName
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.pipelines import ModelEvaluation, ModelVersion, Pipeline
from trainshed.core.reservations import PersistentResource
from trainshed.core.study.records import Measurement, Study, Trial
from trainshed.core.tuning.records import TuningJob
from trainshed.core.usage import MachineTime, Use
from trainshed.core.works import Work
from trainshed.store.records import Operation
from trainshed.summaries.reading import FileProgress

Labels = tuple[tuple[str, str], ...]
Parameters = dict[str, Any]
"""Values of a row's columns, by column name."""
T = TypeVar("T")


CODECS: Final[list["Codec[Any]"]] = []
"""All codecs of the program."""


class Codec(Generic[T]):
    """Encodes and decodes one type of record in a column of a table."""

    def __init__(self, table: str, column: str, kind: type[T]) -> None:
        self.table, self.column = table, column
        self._decoder = msgspec.json.Decoder(kind)
        CODECS.append(self)

    def encode(self, record: T) -> bytes:
        return _encoder.encode(record)

    def decode(self, raw: bytes) -> T:
        return _decode_or_fail(self.table, raw, self._decoder.decode)


def _decode_or_fail(table: str, raw: bytes, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(raw)
    except (ValueError, TypeError, RecursionError) as failure:
        raise FailedPrecondition(
            f"A record in the table {table} of trainshed.db cannot be read: {failure}. {ADVICE}"
        ) from failure


ADVICE: Final = (
    "Another version of the service, or a damaged disk, may have written it. Use "
    "that version, or restore an earlier backup (`trainshed restore`). Other "
    "records do not depend on it."
)
"""Advice in the error about an unreadable record."""


class WorkKind(enum.StrEnum):
    """The kind of a stored record: job, tuning job or pipeline."""

    JOB = "job"
    TUNING = "tuning"
    PIPELINE = "pipeline"
    PIPELINE_JOB = "pipeline_job"


WORK_KINDS: Final[dict[type[Work], WorkKind]] = {
    Job: WorkKind.JOB,
    TuningJob: WorkKind.TUNING,
    Pipeline: WorkKind.PIPELINE,
    PipelineJob: WorkKind.PIPELINE_JOB,
}
_encoder = msgspec.json.Encoder()
_works = {kind: msgspec.json.Decoder(work) for work, kind in WORK_KINDS.items()}
LABELS = Codec("jobs", "labels", Labels)
CANCEL = Codec("intents", "intent", CancelRequested)
DRILL = Codec("intents", "intent", DrillOrdered)
DETAILS = Codec("timeline", "details", dict[str, Any])
STUDY = Codec("studies", "record", Study)
TRIAL = Codec("trials", "record", Trial)
MEASUREMENT = Codec("measurements", "record", Measurement)
OPERATION = Codec("operations", "record", Operation)
VERSION = Codec("model_versions", "record", ModelVersion)
EVALUATION = Codec("model_evaluations", "record", ModelEvaluation)
CURVE_FILE = Codec("curve_files", "record", FileProgress)
CURVE_SERIES = Codec("curve_series", "record", CurveSeries)
DATASET = Codec("datasets", "record", Dataset)
PERSISTENT_RESOURCE = Codec("persistent_resources", "record", PersistentResource)


def encode_job(job: Work) -> bytes:
    """Return the stored record of a job, tuning job or pipeline. It contains the labels, but `decode_job`
    ignores them and reads labels from their own column."""
    return _encoder.encode(job)


def decode_job(record: bytes, labels: bytes, labels_updated: int, kind: str = WorkKind.JOB) -> Work:
    """Return a job, tuning job or pipeline from its stored record and its label columns.

    Requests change labels while the controller holds an older copy of the record. Labels therefore have their
    own columns, which override the record. `labels_updated`: ns since the epoch, or 0 if the labels never
    changed. `kind`: the kind of the stored work.
    """

    def decode(raw: bytes) -> Work:
        return _works[WorkKind(kind)].decode(raw)

    job = _decode_or_fail("jobs", record, decode)
    current = LABELS.decode(labels)
    if job.labels == current and job.updated >= labels_updated:
        return job
    return replace(job, labels=current, updated=max(job.updated, labels_updated))


ABOVE_ALL_UIDS = 2**63 - 1
"""Larger than all UIDs and times: the start of the first page of a list with descending UIDs."""
_DIGITS_OF_A_UID = len(str(ABOVE_ALL_UIDS))

KINDS = {
    Collection.CUSTOM_JOBS: WorkKind.JOB,
    Collection.TUNING_JOBS: WorkKind.TUNING,
    Collection.PIPELINES: WorkKind.PIPELINE,
    Collection.PIPELINE_JOBS: WorkKind.PIPELINE_JOB,
}
"""The kind of record (job, tuning job or pipeline) in each collection of the Vertex API."""


def name_parameters(name: JobName) -> Parameters:
    """Return the columns of a job's name.

    - `kind`: "" if unknown, because `ml` names do not contain it.
    - `numbered`: the UID of a job whose ID is its UID, or 0 if a client chose the ID.
    """
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
    """Return the columns of a new job, tuning job or pipeline."""
    return name_parameters(job.name) | {
        "uid": job.uid,
        "kind": WORK_KINDS[type(job)].value,
        "parent_uid": job.parent.uid if job.parent else 0,
        "state": job.state.value,
        "is_live": int(not job.state.is_final),
        "display_name": job.display_name,
        "created": job.created,
        "labels": LABELS.encode(job.labels),
        "record": encode_job(job),
    }


def use_parameters(use: Use) -> Parameters:
    labels = msgspec.json.encode(dict(use.labels), order="sorted").decode()
    return asdict(use) | {"labels": labels}


def machine_time(row: tuple[Any, ...]) -> MachineTime:
    project_id, person, labels, *used = row
    return MachineTime(project_id, person, tuple(msgspec.json.decode(labels).items()), *used)


def etag(generation: int, labels_version: int) -> str:
    """Return the etag in base64 (facts/resources#ml). It changes with every commit and with every change of
    the labels."""
    return base64.b64encode(struct.pack(">II", generation, labels_version)).decode("ascii")


def viewed_job(row: tuple[Any, ...]) -> tuple[Work, str]:
    """Return (job, etag) from a row with the columns record, labels, labels_updated, kind, generation,
    labels_version."""
    record, labels, labels_updated, kind, generation, labels_version = row
    job = decode_job(record, labels, labels_updated, kind)
    return job, etag(generation, labels_version)


def timeline_entry(row: tuple[Any, ...]) -> TimelineEntry:
    at, kind, message, details = row
    return TimelineEntry(at, kind, message, DETAILS.decode(details))


def quota(row: tuple[Any, ...]) -> tuple[QuotaKey, float]:
    *key, ceiling = row
    return QuotaKey(*key), ceiling
