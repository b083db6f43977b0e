"""Datasets: the names of files in buckets, what the files are (facts/datasets#kinds), and the public schemas
of them and of annotations (facts/datasets#formats). No rows are stored."""

import enum
from typing import Final

from msgspec import Struct

from trainshed.core.names import PLACE, read_name
from trainshed.core.units import Nanos

METADATA_SCHEMAS: Final = "gs://google-cloud-aiplatform/schema/dataset/metadata"
"""Directory of the public schemas by which clients say which kind a dataset is."""


class DatasetKind(enum.StrEnum):
    """The kind of a dataset, by the name of the public schema of its metadata."""

    TABULAR = "tabular"
    TIME_SERIES = "time_series"
    IMAGE = "image"
    TEXT = "text"

    @property
    def is_table(self) -> bool:
        """Whether it is rows of CSV files with a header; otherwise it is items with annotations."""
        return self in (DatasetKind.TABULAR, DatasetKind.TIME_SERIES)

    @property
    def schema_uri(self) -> str:
        return f"{METADATA_SCHEMAS}/{self}_1.0.0.yaml"


KINDS_BY_SCHEMA: Final = {kind.schema_uri: kind for kind in DatasetKind}


class DatasetName(Struct, frozen=True, order=True):
    """`projects/P/locations/L/datasets/D`."""

    project_id: str
    location: str
    dataset_id: str

    def __str__(self) -> str:
        return f"projects/{self.project_id}/locations/{self.location}/datasets/{self.dataset_id}"

    @staticmethod
    def parse(name: str, *, of: str = "name") -> "DatasetName":
        """Read a dataset's name. Raise InvalidRequest on the field `of` for anything else."""
        return DatasetName(*read_name(name, f"{PLACE}/datasets/DATASET", of))


class DataFiles(Struct, frozen=True):
    """Files of one form: those of a table, or those of one import."""

    #: gs:// URIs, which may have wildcards (`wildcards`).
    uris: tuple[str, ...]
    #: The URI of the import schema, which specifies the lines of imported files; "" = rows of a
    #: table.
    schema_uri: str = ""
    #: The labels of every item in them.
    labels: tuple[tuple[str, str], ...] = ()


class Dataset(Struct, frozen=True):
    """A dataset in its stored form."""

    name: DatasetName
    kind: DatasetKind
    display_name: str
    #: Nanoseconds since the epoch, as is `updated`.
    created: Nanos
    updated: Nanos
    #: `metadata` as given, as JSON text; "null" if none was.
    metadata: str = "null"
    description: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    #: In the order in which they were imported; those of a table are given when it is made.
    files: tuple[DataFiles, ...] = ()

    @property
    def etag(self) -> str:
        """Changes whenever the dataset does."""
        return str(self.updated // 1000)


_ROOT: Final = "gs://google-cloud-aiplatform/schema/dataset"
_IMPORT_END: Final = "_io_format_1.0.0.yaml"
_ANNOTATION_END: Final = "_1.0.0.yaml"


class ImportFormat(Struct, frozen=True):
    """The form of the lines in imported files."""

    #: The name of the schema's file, without its ending.
    name: str
    kind: DatasetKind
    #: The name of the annotations in the lines.
    annotation: str

    @property
    def uri(self) -> str:
        return f"{_ROOT}/ioformat/{self.name}{_IMPORT_END}"


_IMAGE, _TEXT = DatasetKind.IMAGE, DatasetKind.TEXT
FORMATS: Final = {
    entry.uri: entry
    for entry in (
        ImportFormat("image_classification_single_label", _IMAGE, "image_classification"),
        ImportFormat("image_classification_multi_label", _IMAGE, "image_classification"),
        ImportFormat("image_bounding_box", _IMAGE, "image_bounding_box"),
        ImportFormat("image_segmentation", _IMAGE, "image_segmentation"),
        ImportFormat("text_classification_single_label", _TEXT, "text_classification"),
        ImportFormat("text_classification_multi_label", _TEXT, "text_classification"),
    )
}
"""Import formats by URI. Others are refused: no public program trains on them by a program of its own."""
OTHERWISE: Final = (
    "To use other data, list the files and their properties in a CSV file, and "
    "create a tabular dataset from it."
)
"""Advice for items that no supported format describes."""


def annotation_of(uri: str) -> str:
    """Return the name of an annotation schema; "" if there is none with this URI."""
    name = uri.removeprefix(f"{_ROOT}/annotation/").removesuffix(_ANNOTATION_END)
    known = any(entry.annotation == name for entry in FORMATS.values())
    return name if known and uri == annotation_uri(name) else ""


def annotation_uri(name: str) -> str:
    return f"{_ROOT}/annotation/{name}{_ANNOTATION_END}"


def annotations_of(kind: DatasetKind) -> tuple[str, ...]:
    """Return the annotations that a dataset of this kind can have, each once."""
    return tuple(
        dict.fromkeys(entry.annotation for entry in FORMATS.values() if entry.kind is kind)
    )
