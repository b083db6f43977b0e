"""Encodes and decodes stored records: JSON of the domain's own records, the same in every dialect. Decoding
raises UnreadableRecord for bytes that are no such record.

Fields that a later version adds need a default; fields that it drops are skipped when an older record is
read. Renaming or retyping a field takes a migration. Floats in a record are finite.
"""

import enum
from collections.abc import Callable
from typing import Any, TypeVar, assert_never

import msgspec
from msgspec.structs import replace

from trainshed.core.datasets.records import Dataset
from trainshed.core.lifecycle.events import CancelRequested, DrillOrdered
from trainshed.core.lifecycle.records import Job
from trainshed.core.metadata.records import MetadataStore, Node
from trainshed.core.pipelines.records import (
    ModelEvaluation,
    ModelVersion,
    Pipeline,
)
from trainshed.core.study.records import Measurement, Study, Trial
from trainshed.core.tensorboards.curves import CurveSeries
from trainshed.core.tensorboards.records import BoardResource
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.store.records import Operation
from trainshed.summaries.reading import FileProgress

Labels = tuple[tuple[str, str], ...]
T = TypeVar("T")


class UnreadableRecord(Exception):
    """A stored record does not have the form that its table's records have."""

    def __init__(self, table: str, column: str, raw: bytes, cause: str) -> None:
        super().__init__(f"a record of {table} cannot be read: {cause}")
        self.table = table
        self.column = column
        #: The bytes in the table's column.
        self.raw = raw
        #: Why it cannot be read.
        self.cause = cause


def _decoded(table: str, column: str, raw: bytes, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(raw)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as failure:
        raise UnreadableRecord(table, column, raw, str(failure)) from failure


class WorkKind(enum.StrEnum):
    """The kind of work that a stored record describes."""

    JOB = "job"
    TUNING = "tuning"
    PIPELINE = "pipeline"


_encoder = msgspec.json.Encoder()
_works: dict[WorkKind, msgspec.json.Decoder[Any]] = {
    WorkKind.JOB: msgspec.json.Decoder(Job),
    WorkKind.TUNING: msgspec.json.Decoder(TuningJob),
    WorkKind.PIPELINE: msgspec.json.Decoder(Pipeline),
}
_labels = msgspec.json.Decoder(Labels)
_cancels = msgspec.json.Decoder(CancelRequested)
_drills = msgspec.json.Decoder(DrillOrdered)
_details = msgspec.json.Decoder(dict[str, Any])
_studies = msgspec.json.Decoder(Study)
_trials = msgspec.json.Decoder(Trial)
_measurements = msgspec.json.Decoder(Measurement)
_operations = msgspec.json.Decoder(Operation)
_versions = msgspec.json.Decoder(ModelVersion)
_evaluations = msgspec.json.Decoder(ModelEvaluation)
_stores = msgspec.json.Decoder(MetadataStore)
_nodes = msgspec.json.Decoder(Node)
_boards = msgspec.json.Decoder(BoardResource)
_curve_files = msgspec.json.Decoder(FileProgress)
_curve_series = msgspec.json.Decoder(CurveSeries)
_datasets = msgspec.json.Decoder(Dataset)


def work_kind(job: Work) -> WorkKind:
    """Return the kind of a work's record, which selects its decoder."""
    match job:
        case Job():
            return WorkKind.JOB
        case TuningJob():
            return WorkKind.TUNING
        case Pipeline():
            return WorkKind.PIPELINE
        case _:
            assert_never(job)


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

    job = _decoded("jobs", "record", record, decode)
    current = _decoded("jobs", "labels", labels, _labels.decode)
    if job.labels == current and job.updated >= labels_updated:
        return job
    return replace(job, labels=current, updated=max(job.updated, labels_updated))


def encode_labels(labels: Labels) -> bytes:
    return _encoder.encode(labels)


def encode_cancel(cancel: CancelRequested) -> bytes:
    return _encoder.encode(cancel)


def decode_cancel(intent: bytes) -> CancelRequested:
    return _decoded("intents", "intent", intent, _cancels.decode)


def encode_drill(order: DrillOrdered) -> bytes:
    return _encoder.encode(order)


def decode_drill(intent: bytes) -> DrillOrdered:
    return _decoded("intents", "intent", intent, _drills.decode)


def encode_details(details: dict[str, Any]) -> bytes:
    return _encoder.encode(details)


def decode_details(details: bytes) -> dict[str, Any]:
    return _decoded("timeline", "details", details, _details.decode)


def encode_study(study: Study) -> bytes:
    return _encoder.encode(study)


def decode_study(record: bytes) -> Study:
    return _decoded("studies", "record", record, _studies.decode)


def encode_trial(trial: Trial) -> bytes:
    return _encoder.encode(trial)


def decode_trial(record: bytes) -> Trial:
    """Return a trial. Must be fast, microseconds: a study's whole history is read for each suggestion."""
    return _decoded("trials", "record", record, _trials.decode)


def encode_measurement(measurement: Measurement) -> bytes:
    return _encoder.encode(measurement)


def decode_measurement(record: bytes) -> Measurement:
    return _decoded("measurements", "record", record, _measurements.decode)


def encode_operation(operation: Operation) -> bytes:
    return _encoder.encode(operation)


def decode_operation(record: bytes) -> Operation:
    return _decoded("operations", "record", record, _operations.decode)


def encode_version(version: ModelVersion) -> bytes:
    """Return the record of a model's version. See `decode_version` for its aliases."""
    return _encoder.encode(version)


def decode_version(record: bytes, aliases: bytes) -> ModelVersion:
    """Return a model's version, with those of its aliases that are among `aliases` (a JSON array): another
    version may have taken one since the record was written."""
    version = _decoded("model_versions", "record", record, _versions.decode)
    current: list[str] = msgspec.json.decode(aliases, type=list[str])
    kept = tuple(alias for alias in version.aliases if alias in current)
    return version if kept == version.aliases else replace(version, aliases=kept)


def encode_metadata_store(store: MetadataStore) -> bytes:
    return _encoder.encode(store)


def decode_metadata_store(record: bytes) -> MetadataStore:
    return _decoded("metadata_stores", "record", record, _stores.decode)


def encode_node(node: Node) -> bytes:
    return _encoder.encode(node)


def decode_node(record: bytes) -> Node:
    """Return a node without its parents, which are stored as edges."""
    return _decoded("metadata_nodes", "record", record, _nodes.decode)


def encode_evaluation(evaluation: ModelEvaluation) -> bytes:
    return _encoder.encode(evaluation)


def decode_evaluation(record: bytes) -> ModelEvaluation:
    return _decoded("model_evaluations", "record", record, _evaluations.decode)


def encode_board_resource(resource: BoardResource) -> bytes:
    return _encoder.encode(resource)


def decode_board_resource(record: bytes) -> BoardResource:
    return _decoded("tensorboard_resources", "record", record, _boards.decode)


def encode_curve_file(progress: FileProgress) -> bytes:
    return _encoder.encode(progress)


def decode_curve_file(record: bytes) -> FileProgress:
    return _decoded("curve_files", "record", record, _curve_files.decode)


def encode_curve_series(series: CurveSeries) -> bytes:
    return _encoder.encode(series)


def decode_curve_series(record: bytes) -> CurveSeries:
    return _decoded("curve_series", "record", record, _curve_series.decode)


def encode_dataset(dataset: Dataset) -> bytes:
    return _encoder.encode(dataset)


def decode_dataset(record: bytes) -> Dataset:
    return _decoded("datasets", "record", record, _datasets.decode)


def encode_edge_labels(labels: Labels) -> bytes:
    return _encoder.encode(labels)


def decode_edge_labels(labels: bytes) -> Labels:
    return _decoded("metadata_edges", "labels", labels, _labels.decode)
