"""Records of datasets: the names and formats of their files in buckets (facts/datasets#kinds), and the public
schemas of datasets and annotations (facts/datasets#formats). Rows are not stored."""

import enum
from typing import Final

from msgspec import Struct

from trainshed.core.names import PLACE, read_name
from trainshed.core.units import Nanos

METADATA_SCHEMAS: Final = "gs://google-cloud-aiplatform/schema/dataset/metadata"
"""Directory of the public schemas that determine the kind of a dataset."""


class DatasetKind(enum.StrEnum):
    """The kind of a dataset, determined by the public schema of its metadata."""

    TABULAR = "tabular"
    TIME_SERIES = "time_series"
    IMAGE = "image"
    TEXT = "text"

    @property
    def is_table(self) -> bool:
        """Return whether a dataset of this kind has rows in CSV files with a header. Other kinds have items
        with annotations."""
        return self in (DatasetKind.TABULAR, DatasetKind.TIME_SERIES)

    @property
    def schema_uri(self) -> str:
        return f"{METADATA_SCHEMAS}/{self}_1.0.0.yaml"


KINDS_BY_SCHEMA: Final = {kind.schema_uri: kind for kind in DatasetKind}


class DatasetName(Struct, frozen=True, order=True):
    """A dataset's name: `projects/P/locations/L/datasets/D`."""

    project_id: str
    location: str
    dataset_id: str

    def __str__(self) -> str:
        return f"projects/{self.project_id}/locations/{self.location}/datasets/{self.dataset_id}"

    @staticmethod
    def parse(name: str, *, of: str = "name") -> "DatasetName":
        """Parse a dataset's name. Raise InvalidRequest on the field `of` for an invalid name."""
        return DatasetName(*read_name(name, f"{PLACE}/datasets/DATASET", of))


class DataFiles(Struct, frozen=True):
    """Files of one format: the files of a table, or the files of one import."""

    #: gs:// URIs of the files. A URI may contain wildcards.
    uris: tuple[str, ...]
    #: The URI of the import schema, which specifies the format of the lines. "" for rows of a table.
    schema_uri: str = ""
    #: The labels of every item in the files.
    labels: tuple[tuple[str, str], ...] = ()


class Dataset(Struct, frozen=True):
    """A dataset in its stored form."""

    name: DatasetName
    kind: DatasetKind
    display_name: str
    #: Time of creation, in nanoseconds since the epoch. `updated` has the same unit.
    created: Nanos
    updated: Nanos
    #: `metadata` of the request as JSON text. "null" if the request has no metadata.
    metadata: str = "null"
    description: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    #: The files in the order of their imports. Files of a table are set when the dataset is created.
    files: tuple[DataFiles, ...] = ()

    @property
    def etag(self) -> str:
        """Return a version id that changes with every change of the dataset."""
        return str(self.updated // 1000)


_ROOT: Final = "gs://google-cloud-aiplatform/schema/dataset"
_IMPORT_END: Final = "_io_format_1.0.0.yaml"
_ANNOTATION_END: Final = "_1.0.0.yaml"


class ImportFormat(Struct, frozen=True):
    """The format of the lines in imported files."""

    #: The name of the schema file, without its extension.
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
"""Supported import formats by URI. Other formats are rejected, because users' own programs do not train on
them."""
OTHERWISE: Final = (
    "To use other data, list the files and their properties in a CSV file, and "
    "create a tabular dataset from it."
)
"""Advice for requests with a kind of dataset or an import format that is not supported."""


def annotation_of(uri: str) -> str:
    """Return the name of the annotation schema with this URI, or "" if none exists."""
    name = uri.removeprefix(f"{_ROOT}/annotation/").removesuffix(_ANNOTATION_END)
    known = any(entry.annotation == name for entry in FORMATS.values())
    return name if known and uri == annotation_uri(name) else ""


def annotation_uri(name: str) -> str:
    return f"{_ROOT}/annotation/{name}{_ANNOTATION_END}"


def annotations_of(kind: DatasetKind) -> tuple[str, ...]:
    """Return the distinct annotations that a dataset of this kind supports."""
    return tuple(dict.fromkeys(entry.annotation for entry in FORMATS.values() if entry.kind is kind))
