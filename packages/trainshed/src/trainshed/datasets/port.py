"""The port through which the controller has a dataset's splits written before a job starts, and the messages
to and from the process that writes them."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from trainshed.core.datasets.plans import DirectoryCopy, SplitPlan
from trainshed.core.units import Bytes


class DataRefused(Exception):
    """The dataset's files are malformed, or the job's account cannot read or write them: the user's mistake.
    The message names file and row."""


class DataUnwritten(Exception):
    """The step could not be carried out: the service's failure."""


class Account(Struct, frozen=True):
    """The account with whose rights files are read and written."""

    project: str
    #: The service account.
    email: str
    #: The job for which they are.
    job_uid: str


class SplitCounts(Struct, frozen=True):
    rows: int = 0
    size: int = 0
    shards: tuple[str, ...] = ()


class Written(Struct, frozen=True):
    """What was written in all; the manifest beside the files holds the same."""

    dataset: str
    #: Bytes that were read.
    size: Bytes
    training: SplitCounts
    validation: SplitCounts
    test: SplitCounts
    #: Rows that belong to no split.
    ignored: int = 0
    #: (URI, generation) of each file that was read.
    sources: tuple[tuple[str, str], ...] = ()


def summary(written: Written) -> tuple[str, ...]:
    """Returns lines that say what was written, for the log; the first one is also for the timeline."""
    splits = {"training": written.training, "validation": written.validation, "test": written.test}
    parts = [
        f"{counts.rows:,} {name} rows in {len(counts.shards)} file{'s' * (len(counts.shards) != 1)}"
        for name, counts in splits.items()
    ]
    lines = [f"The dataset {written.dataset} is split: {', '.join(parts)}."]
    if written.ignored:
        lines.append(f"{written.ignored:,} rows go to no split and are left out.")
    if empty := [name for name, counts in splits.items() if not counts.rows]:
        lines.append(
            f"There are no rows for {' and '.join(empty)}: its files are there, without rows."
        )
    return tuple(lines)


Progress = Callable[[str], None]
"""Takes a line about the progress; it is called on the event loop."""


class SplitFiles(Protocol):
    """Writes splits. Repeating it is safe: what is written already is not written again."""

    async def write(self, plan: SplitPlan, account: Account, progress: Progress) -> Written:
        """Write the splits, and return once their manifest is written. Raises DataRefused, DataUnwritten."""
        ...


class ExportFiles(SplitFiles, Protocol):
    """Writes the files of exports."""

    async def copy(self, copy: DirectoryCopy, account: Account) -> None:
        """Copy all objects of a directory. Raises DataRefused, DataUnwritten."""
        ...


class Request(Struct, frozen=True):
    """What to write (`plan` or `copy`), through which socket of the buckets, and with whose rights. The
    process dies with `parent`."""

    socket: str
    account: Account
    parent: int
    plan: SplitPlan | None = None
    copy: DirectoryCopy | None = None


class Answer(Struct, frozen=True, omit_defaults=True):
    """One line of the process: a line of progress, or at the end exactly one of the other fields."""

    progress: str | None = None
    refused: str | None = None
    failed: str | None = None
    written: Written | None = None
    is_copied: bool = False
