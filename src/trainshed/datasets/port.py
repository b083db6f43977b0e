"""What the controller asks for: the files of a dataset's splits, written before a job starts."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from trainshed.core.datasets.plans import SplitPlan
from trainshed.core.units import Bytes


class DataRefused(Exception):
    """The dataset's files are not what they should be, or cannot be read or written with the job's rights:
    the user's mistake. The message names file and row."""


class DataUnwritten(Exception):
    """The step itself could not be carried out here: the service's failure."""


class Account(Struct, frozen=True):
    """With whose rights files are read and written."""

    project: str
    #: The service account; "" = the project's default.
    email: str = ""
    #: For the access log; "" = none.
    job_uid: str = ""


class SplitCounts(Struct, frozen=True):
    """What was written of one split."""

    rows: int = 0
    size: int = 0
    shards: tuple[str, ...] = ()


class Written(Struct, frozen=True):
    """What the manifest beside the files says."""

    dataset: str
    #: Bytes that were read.
    size: Bytes
    training: SplitCounts
    validation: SplitCounts
    test: SplitCounts
    #: Rows that went nowhere.
    ignored: int = 0
    #: (URI, generation) of the files that were read.
    sources: tuple[tuple[str, str], ...] = ()


def summary(written: Written) -> tuple[str, ...]:
    """What was written, for the log; the first line for the timeline as well."""
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
"""Takes a line of what is being done; on the event loop."""


class SplitFiles(Protocol):
    """Writes splits. Safe to repeat: what is written already is not written again."""

    async def write(self, plan: SplitPlan, account: Account, progress: Progress) -> Written:
        """Until the manifest is there. Raises DataRefused, DataUnwritten."""
        ...
