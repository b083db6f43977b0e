"""Encodes and decodes stored records: JSON of the domain's own records. Decoding raises FailedPrecondition
for bytes that are no such record: whoever asks for that one is told (ADR 44).

Fields that a later version adds need a default; fields that it drops are skipped when an older record is
read. Renaming or retyping a field takes a migration. Floats in a record are finite.
"""

import enum
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from trainshed.core.curves import CurveSeries
from trainshed.core.datasets.records import Dataset
from trainshed.core.errors import FailedPrecondition
from trainshed.core.lifecycle.events import CancelRequested, DrillOrdered
from trainshed.core.lifecycle.records import Job
from trainshed.core.pipelines import ModelEvaluation, ModelVersion, Pipeline
from trainshed.core.study.records import Measurement, Study, Trial
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.store.records import Operation
from trainshed.summaries.reading import FileProgress

Labels = tuple[tuple[str, str], ...]
T = TypeVar("T")


CODECS: Final[list["Codec[Any]"]] = []
"""All that were made."""


class Codec(Generic[T]):
    """The JSON of one kind of record in a column of a table."""

    def __init__(self, table: str, column: str, kind: type[T]) -> None:
        self.table, self.column = table, column
        self._decoder = msgspec.json.Decoder(kind)
        CODECS.append(self)

    def encode(self, record: T) -> bytes:
        return _encoder.encode(record)

    def decode(self, raw: bytes) -> T:
        return _decoded(self.table, raw, self._decoder.decode)


def _decoded(table: str, raw: bytes, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(raw)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as failure:
        raise FailedPrecondition(
            f"A record in the table {table} of trainshed.db cannot be read: {failure}. {ADVICE}"
        ) from failure


ADVICE: Final = (
    "Another version of the service, or a damaged disk, may have written it. Use that version, or restore a "
    "backup of before (`trainshed restore`); nothing else depends on it."
)
"""What to do about a record that cannot be read."""


class WorkKind(enum.StrEnum):
    """The kind of work that a stored record describes."""

    JOB = "job"
    TUNING = "tuning"
    PIPELINE = "pipeline"


WORK_KINDS: Final[dict[type[Work], WorkKind]] = {
    Job: WorkKind.JOB,
    TuningJob: WorkKind.TUNING,
    Pipeline: WorkKind.PIPELINE,
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


def encode_job(job: Work) -> bytes:
    """Return the record of a work. It contains the labels, but they are not read back from it: see
    `decode_job`."""
    return _encoder.encode(job)


def decode_job(record: bytes, labels: bytes, labels_updated: int, kind: str = WorkKind.JOB) -> Work:
    """Return a work from its record, which is one of `kind`, and its label columns.

    Requests change labels while the controller holds an older copy of the record, so labels have columns of
    their own, which take precedence over the record. `labels_updated`: ns since the epoch, 0 if never
    changed.
    """

    def decode(raw: bytes) -> Work:
        return _works[WorkKind(kind)].decode(raw)

    job = _decoded("jobs", record, decode)
    current = LABELS.decode(labels)
    if job.labels == current and job.updated >= labels_updated:
        return job
    return replace(job, labels=current, updated=max(job.updated, labels_updated))
