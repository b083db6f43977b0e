"""The data of a dataset that are written for a program: the files to read, the split of each row,
and the names of the written files (facts/datasets#splits)."""

import enum
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from trainshed.core.datasets.records import DataFiles, DatasetKind, DatasetName
from trainshed.core.units import Nanos, whole_second


class Split(enum.StrEnum):
    """A set of rows; the names of its files begin with the value."""

    TRAINING = "training"
    VALIDATION = "validation"
    TEST = "test"


SPLITS: Final = tuple(Split)
DEFAULT: Final = (0.8, 0.1, 0.1)
"""Fractions of the splits where a request gives none."""


class SplitMethod(enum.StrEnum):
    """How a row is assigned to a split."""

    FRACTION = "fraction"
    #: A column names the split.
    PREDEFINED = "predefined"


class SplitRule(Struct, frozen=True):
    """Which row goes to which split."""

    method: SplitMethod = SplitMethod.FRACTION
    #: The parts for training, validation and test; they add up to 1.
    fractions: tuple[float, float, float] = DEFAULT
    #: The column that decides; "" = none does.
    key: str = ""


class SplitPlan(Struct, frozen=True):
    """The data to write for a program, from the dataset at the time of the request."""

    dataset: DatasetName
    kind: DatasetKind
    files: tuple[DataFiles, ...]
    rule: SplitRule
    #: gs:// URI of the directory that the files are written to, without a `/` at its end.
    directory: str
    #: All rows are written as one set, whose files are called `data-…`.
    is_whole: bool = False

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that are written; the first one is the whole set."""
        return SPLITS[:1] if self.is_whole else SPLITS

    @property
    def format(self) -> str:
        """The value of AIP_DATA_FORMAT, which is also the ending of file names."""
        return "csv" if self.kind.is_table else "jsonl"

    def pattern(self, split: Split) -> str:
        """Return the value of AIP_TRAINING_DATA_URI, or of its like for another split."""
        return f"{self.directory}/{self._stem(split)}-*.{self.format}"

    @property
    def env(self) -> tuple[tuple[str, str], ...]:
        """Variables for every program that reads it."""
        places = ((f"AIP_{split.upper()}_DATA_URI", self.pattern(split)) for split in SPLITS)
        return (("AIP_DATA_FORMAT", self.format), *places)

    def shard(self, split: Split, number: int) -> str:
        """Return the URI of a split's file; `number` counts from 0."""
        return f"{self.directory}/{self._stem(split)}-{number:05}.{self.format}"

    def _stem(self, split: Split) -> str:
        return "data" if self.is_whole else split

    @property
    def manifest(self) -> str:
        """URI of the file that marks all other files as complete."""
        return f"{self.directory}/manifest.json"


class DirectoryCopy(Struct, frozen=True):
    """A copy of all objects below one directory to another one. Both are gs:// URIs that end with a slash."""

    source: str
    target: str


class Export(Struct, frozen=True):
    """An export of a dataset (`plan`) or of the files of a model (`copy`); the other one is None."""

    #: The project whose service agent reads and writes the files.
    project: str
    plan: SplitPlan | None = None
    copy: DirectoryCopy | None = None

    @property
    def output(self) -> str:
        """The gs:// URI of the directory that the export creates."""
        return (
            self.copy.target if self.copy is not None else self.plan.directory if self.plan else ""
        )


def completed(parts: Sequence[float]) -> tuple[float, float, float]:
    """Return fractions that add up to 1. If all are zero, return the default. The remainder of a
    smaller sum goes to the splits without a fraction, in the proportions of the default. If all
    three splits have fractions, it goes to training."""
    if not any(parts):
        return DEFAULT
    left = max(1 - sum(parts), 0.0)
    open_ = [0.0 if fraction else usual for fraction, usual in zip(parts, DEFAULT, strict=True)]
    if not any(open_):
        open_ = [1.0, 0.0, 0.0]
    whole = sum(open_)
    training, validation, test = (
        fraction + left * share / whole for fraction, share in zip(parts, open_, strict=True)
    )
    return training, validation, test


def directory_name(dataset_id: str, annotation: str, at: Nanos) -> str:
    """Return `dataset-ID-TYPE-TIME`; `at`: nanoseconds since the epoch."""
    return f"dataset-{dataset_id}-{annotation}-{whole_second(at // 10**9)}.{at // 1000 % 10**6:06}Z"


def model_directory_name(display_name: str, at: Nanos) -> str:
    """Return `model-export-NAME-TIME`; `at`: nanoseconds since the epoch (facts/models#export). Characters of
    the display name that do not fit into a path are replaced by `-`."""
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in display_name)
    return f"model-export-{plain}-{whole_second(at // 10**9)}.{at // 10**6 % 1000:03}Z"
