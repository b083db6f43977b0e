"""Describes how a dataset is written to files for a program: the files to read, the split of each row, and
the names of the written files (facts/datasets#splits)."""

import enum
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from trainshed.core.datasets.records import DataFiles, DatasetKind, DatasetName
from trainshed.core.units import Nanos, whole_second


class Split(enum.StrEnum):
    """A set of rows, such as the training rows. The names of a split's files begin with its value, such as
    `training`."""

    TRAINING = "training"
    VALIDATION = "validation"
    TEST = "test"


SPLITS: Final = tuple(Split)
DEFAULT: Final = (0.8, 0.1, 0.1)
"""Fractions of the splits for requests without fractions."""


class SplitMethod(enum.StrEnum):
    """The method that assigns rows to splits."""

    FRACTION = "fraction"
    #: A column contains the split of each row.
    PREDEFINED = "predefined"


class SplitRule(Struct, frozen=True):
    """Assigns each row to a split."""

    method: SplitMethod = SplitMethod.FRACTION
    #: The fractions of rows for training, validation and test. Their sum is 1.
    fractions: tuple[float, float, float] = DEFAULT
    #: The column that determines the split, or "" for methods without a column.
    key: str = ""


class SplitPlan(Struct, frozen=True):
    """The plan for writing the data of one program. It contains the files of the dataset at the time of the
    request."""

    dataset: DatasetName
    kind: DatasetKind
    files: tuple[DataFiles, ...]
    rule: SplitRule
    #: gs:// URI of the output directory, without a trailing `/`.
    directory: str
    #: Whether all rows are written as one set, whose file names begin with `data-`.
    is_whole: bool = False

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that are written. If all rows form one set, only the first split is used."""
        return SPLITS[:1] if self.is_whole else SPLITS

    @property
    def format(self) -> str:
        """The value of AIP_DATA_FORMAT, which is also the extension of the files."""
        return "csv" if self.kind.is_table else "jsonl"

    def pattern(self, split: Split) -> str:
        """Return the pattern of a split's files, such as the value of AIP_TRAINING_DATA_URI."""
        return f"{self.directory}/{self._stem(split)}-*.{self.format}"

    @property
    def env(self) -> tuple[tuple[str, str], ...]:
        """The variables for every program that reads the data."""
        places = ((f"AIP_{split.upper()}_DATA_URI", self.pattern(split)) for split in SPLITS)
        return (("AIP_DATA_FORMAT", self.format), *places)

    def shard(self, split: Split, number: int) -> str:
        """Return the URI of one file of a split. `number` counts from 0."""
        return f"{self.directory}/{self._stem(split)}-{number:05}.{self.format}"

    def _stem(self, split: Split) -> str:
        return "data" if self.is_whole else split

    @property
    def manifest(self) -> str:
        """URI of the file that is written last. Its existence shows that all other files are complete."""
        return f"{self.directory}/manifest.json"


class DirectoryCopy(Struct, frozen=True):
    """A copy of all objects below one directory to another directory. Both are gs:// URIs that end with a
    slash."""

    source: str
    target: str


class Export(Struct, frozen=True):
    """An export of a dataset (`plan`) or of the files of a model (`copy`). Exactly one of `plan` and `copy`
    is set."""

    #: The project whose service agent reads and writes the files.
    project: str
    plan: SplitPlan | None = None
    copy: DirectoryCopy | None = None

    @property
    def output(self) -> str:
        """The gs:// URI of the directory that the export creates."""
        return self.copy.target if self.copy is not None else self.plan.directory if self.plan else ""


def complete_fractions(parts: Sequence[float]) -> tuple[float, float, float]:
    """Return fractions whose sum is 1. If all are zero, return the default. If the sum is smaller than 1, the
    remainder goes to the splits without a fraction, in the proportions of the default. If all three splits
    have fractions, the remainder goes to training."""
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
    """Return the directory name `dataset-ID-TYPE-TIME`. `at` is in nanoseconds since the epoch."""
    return f"dataset-{dataset_id}-{annotation}-{whole_second(at // 10**9)}.{at // 1000 % 10**6:06}Z"


def model_directory_name(display_name: str, at: Nanos) -> str:
    """Return the directory name `model-export-NAME-TIME` (facts/models#export). `at` is in nanoseconds since
    the epoch. Characters of the display name that are not allowed in a path are replaced by `-`."""
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in display_name)
    return f"model-export-{plain}-{whole_second(at // 10**9)}.{at // 10**6 % 1000:03}Z"
