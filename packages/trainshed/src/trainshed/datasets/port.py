"""Defines the port through which the controller writes a dataset's splits before a job starts. Also defines
the messages of the process that writes them."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from trainshed.core.datasets.plans import DirectoryCopy, SplitPlan
from trainshed.core.units import Bytes


class DataRefused(Exception):
    """The dataset's files are malformed, or the job's account cannot access them. The user can correct this.
    The message contains the file and the row."""


class DataUnwritten(Exception):
    """The files could not be written because of a failure of the service or its storage."""


class Account(Struct, frozen=True):
    """The account with whose permissions files are read and written."""

    project: str
    #: The service account.
    email: str
    #: The job that needs the files.
    job_uid: str


class SplitCounts(Struct, frozen=True):
    rows: int = 0
    size: int = 0
    shards: tuple[str, ...] = ()


class Written(Struct, frozen=True):
    """The totals of a finished step. The manifest next to the files contains the same values."""

    dataset: str
    #: The number of input bytes.
    size: Bytes
    training: SplitCounts
    validation: SplitCounts
    test: SplitCounts
    #: Number of rows that belong to no split.
    ignored: int = 0
    #: (URI, generation) of each input file.
    sources: tuple[tuple[str, str], ...] = ()


def summary(written: Written) -> tuple[str, ...]:
    """Return the lines of a summary for the log. The timeline contains only the first of these lines."""
    splits = {"training": written.training, "validation": written.validation, "test": written.test}
    parts = [
        f"{counts.rows:,} {name} rows in {len(counts.shards)} file{'s' * (len(counts.shards) != 1)}"
        for name, counts in splits.items()
    ]
    lines = [f"The dataset {written.dataset} is split: {', '.join(parts)}."]
    if written.ignored:
        lines.append(f"{written.ignored:,} rows belong to no split and are omitted.")
    if empty := [name for name, counts in splits.items() if not counts.rows]:
        lines.append(f"These splits have no rows: {', '.join(empty)}. Their files exist.")
    return tuple(lines)


Progress = Callable[[str], None]
"""A function that receives a line about the progress. It is called on the event loop."""


class SplitFiles(Protocol):
    """Writes splits. A repeated call is safe, and does not write existing files again."""

    async def write(self, plan: SplitPlan, account: Account, progress: Progress) -> Written:
        """Write the splits and then their manifest. Raises DataRefused, DataUnwritten."""
        ...


class ExportFiles(SplitFiles, Protocol):
    """Writes the files of a dataset's export: splits, or copies of existing objects."""

    async def copy(self, copy: DirectoryCopy, account: Account) -> None:
        """Copy all objects of a directory. Raises DataRefused, DataUnwritten."""
        ...


class Request(Struct, frozen=True):
    """A request to the process that writes files. It has either a `plan` or a `copy`. `socket`: the bucket
    process's socket. The process that writes files ends when the process `parent` ends."""

    socket: str
    account: Account
    parent: int
    plan: SplitPlan | None = None
    copy: DirectoryCopy | None = None


class Answer(Struct, frozen=True, omit_defaults=True):
    """One line from the process that writes files. It is a line about the progress, or the last line with
    exactly one of the other fields."""

    progress: str | None = None
    refused: str | None = None
    failed: str | None = None
    written: Written | None = None
    is_copied: bool = False
