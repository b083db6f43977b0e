"""The public schemas of imported files and of annotations, and which belong together
(facts/datasets#formats)."""

from typing import Final

from msgspec import Struct

from trainshed.core.datasets.records import DatasetKind

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
        ImportFormat("text_classification_single_label", _TEXT, "text_classification"),
        ImportFormat("text_classification_multi_label", _TEXT, "text_classification"),
    )
}
"""Import formats by URI. Others are refused: no public program trains on them by a program of its own."""
OTHERWISE: Final = (
    "For anything else name the files and what is known of them in a CSV file, and make a tabular "
    "dataset of it."
)
"""What to do with items that no format here describes."""


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
