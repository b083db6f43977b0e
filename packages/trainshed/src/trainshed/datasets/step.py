"""The step that splits a dataset: it reads the files once, writes the splits, and then the manifest, which
says that they are complete.

It blocks, and holds one file of each split in memory, whatever the sizes of what it reads. It is a process of
its own (`main`), which opens no file and can write none, has a limit of memory, and dies with the service:
the data that it parses were written by others.
"""

import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import msgspec

from trainshed.core.datasets.lines import BadData, row_of
from trainshed.core.datasets.plans import SPLITS, DirectoryCopy, Split, SplitPlan
from trainshed.core.datasets.records import DataFiles
from trainshed.core.datasets.rows import ItemFile, Table, TableFile, of_items, of_table
from trainshed.datasets.port import (
    Answer,
    DataRefused,
    DataUnwritten,
    Request,
    SplitCounts,
    Written,
)
from trainshed.datasets.storage import Found, Storage
from trainshed.replica.system import kernel

SHARD: Final = 32 << 20
"""Bytes of a file after which the next one is begun; they are gathered in memory, those of each split."""
_TYPES: Final = {"csv": "text/csv", "jsonl": "application/jsonl"}


class Shards:
    """The files of one split. Which row begins a file follows from the rows alone, so a second try writes the
    same files."""

    def __init__(
        self, plan: SplitPlan, split: Split, header: bytes | None, to: Storage, *, size: int
    ) -> None:
        """`header`: None = the files have none. `size`: bytes of a file."""
        self._plan = plan
        self._split = split
        self._header = b"" if header is None else header + b"\n"
        self._to = to
        self._limit = size
        self._content = bytearray(self._header)
        self.rows = 0
        self._total = 0
        self._uris: list[str] = []

    def add(self, row: bytes) -> None:
        """Add a row. It blocks when a file is full and sent."""
        if not self._content:
            self._content += self._header
        self._content += row
        self._content += b"\n"
        self.rows += 1
        if len(self._content) >= self._limit:
            self._send()

    def close(self) -> SplitCounts:
        """Write what is left. A split without rows also gets one file, with only the header."""
        if self._content or not self._uris:
            self._send()
        return SplitCounts(self.rows, self._total, tuple(self._uris))

    def _send(self) -> None:
        uri = self._plan.shard(self._split, len(self._uris))
        self._to.write(uri, bytes(self._content), _TYPES[self._plan.format])
        self._uris.append(uri)
        self._total += len(self._content)
        self._content = bytearray()


_TOLD_AFTER: Final = 1.0
"""Seconds between two lines about the progress."""


def write_splits(
    plan: SplitPlan, buckets: Storage, tell: Callable[[str], None], *, shard: int = SHARD
) -> Written:
    """Write the splits, unless their manifest is there. `shard`: bytes of a file. Raises DataRefused,
    DataUnwritten."""
    if (done := buckets.read(plan.manifest)) is not None:
        try:
            return msgspec.json.decode(done, type=Written)
        except (ValueError, RecursionError) as failure:
            raise DataRefused(
                f"{plan.manifest} is not what was written there: {failure}. Name another destination."
            ) from None
    try:
        written = _written(plan, buckets, tell, shard)
    except (BadData, DataRefused) as bad:
        raise DataRefused(f"The dataset {plan.dataset} cannot be split: {bad}") from None
    buckets.write(plan.manifest, msgspec.json.encode(written), "application/json")
    return written


def _written(plan: SplitPlan, buckets: Storage, tell: Callable[[str], None], shard: int) -> Written:
    """Write everything but the manifest. Raises BadData, DataRefused, DataUnwritten."""
    sources = _sources(plan, buckets)
    total = sum(source.size for source, _ in sources)
    header, rows = _rows(plan, sources, buckets, _Meter(total, tell))
    shards = {split: Shards(plan, split, header, buckets, size=shard) for split in plan.splits}
    ignored = 0
    for row, split in rows:
        if plan.is_whole:
            shards[Split.TRAINING].add(row)
        elif split is None:
            ignored += 1
        else:
            shards[split].add(row)
    if not any(split_shards.rows for split_shards in shards.values()):
        raise BadData(_nothing(plan, ignored))
    training, validation, test = (
        shards[split].close() if split in shards else SplitCounts() for split in SPLITS
    )
    read = tuple((source.uri, source.generation) for source, _ in sources)
    written = Written(str(plan.dataset), total, training, validation, test, ignored, read)
    _tidy(plan, buckets, written)
    return written


def _nothing(plan: SplitPlan, ignored: int) -> str:
    if not ignored:
        return "its files have no rows; add some, or name other files."
    return (
        f"of its {ignored} rows none goes to a split: the column {plan.rule.key!r} says training, "
        "validation or test in none."
    )


def _sources(plan: SplitPlan, buckets: Storage) -> list[tuple[Found, DataFiles]]:
    """The files to read, each once, in the order in which the dataset names them."""
    sources: dict[str, tuple[Found, DataFiles]] = {}
    for files in plan.files:
        for uri in files.uris:
            objects = buckets.named(uri)
            if not objects:
                raise DataRefused(
                    f"there is no object {uri!r} any more; copy the file there, or make a "
                    "dataset of other files."
                )
            # A wildcard may match what an earlier try wrote, which is no source.
            for stored in (n for n in objects if not n.uri.startswith(f"{plan.directory}/")):
                sources.setdefault(stored.uri, (stored, files))
    return list(sources.values())


def _rows(
    plan: SplitPlan, sources: list[tuple[Found, DataFiles]], buckets: Storage, meter: "_Meter"
) -> tuple[bytes | None, Iterable[tuple[bytes, Split | None]]]:
    """Returns the header (None: there is none) and the rows with their splits."""

    def blocks(source: Found) -> Iterator[bytes]:
        return meter.over(buckets.blocks(source))

    if not plan.kind.is_table:
        files = [ItemFile(f.uri, form, partial(blocks, f)) for f, form in sources]
        return None, of_items(files, plan.rule, plan.dataset.dataset_id)
    table = Table(TableFile(f.uri, partial(blocks, f)) for f, _ in sources)
    return row_of(table.columns), of_table(table, plan.rule, plan.dataset.dataset_id)


def _tidy(plan: SplitPlan, buckets: Storage, written: Written) -> None:
    """Remove files of an earlier try that this one did not write: its sources may have been others."""
    for split, counts in zip(
        plan.splits, (written.training, written.validation, written.test), strict=False
    ):
        for old in buckets.named(plan.pattern(split)):
            if old.uri not in counts.shards:
                buckets.delete(old.uri)


def copy_directory(copy: DirectoryCopy, buckets: Storage) -> None:
    """Copy all objects of a directory; a repetition writes the same objects. Raises DataRefused,
    DataUnwritten."""
    objects = buckets.named(f"{copy.source}**")
    if not objects:
        raise DataRefused(
            f"There is nothing at {copy.source} any more. Copy the files there again, and repeat the export."
        )
    for stored in objects:
        target = copy.target + stored.uri.removeprefix(copy.source)
        if not buckets.copy(stored, target):
            raise DataRefused(
                f"{stored.uri} changed during the export, so the copy at {copy.target} is incomplete. "
                "Delete the copy, and export again."
            )


class _Meter:
    """Counts the bytes that are read, and reports the progress now and then."""

    def __init__(self, total: int, tell: Callable[[str], None]) -> None:
        self._total = total
        self._tell = tell
        self._read = 0
        self._began = self._told = time.monotonic()

    def over(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            yield block
            self._read += len(block)
            now = time.monotonic()
            if now - self._told >= _TOLD_AFTER:
                self._told = now
                part = min(self._read / max(self._total, 1), 1.0)
                rate = self._read / (now - self._began) / 1e6
                self._tell(
                    f"{part:.0%} of {self._total / 1e6:,.0f} MB read and split, {rate:.0f} MB/s."
                )


MEMORY: Final = 1 << 30
"""Bytes of address space that the process may have."""


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    kernel.help_parent(request.parent)
    kernel.forbid_new_privileges()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)
    storage = Storage(request.socket, request.account)
    try:
        answer = Answer(is_copied=True)
        if request.copy is not None:
            copy_directory(request.copy, storage)
        elif request.plan is not None:
            answer = Answer(written=write_splits(request.plan, storage, _tell))
    except DataRefused as failure:
        _say(Answer(refused=str(failure)))
    except DataUnwritten as failure:
        _say(Answer(failed=str(failure)))
    except MemoryError:
        _say(Answer(failed=f"The files need more than {MEMORY >> 20} MiB of memory."))
    else:
        _say(answer)


def _tell(text: str) -> None:
    _say(Answer(progress=text))


def _say(answer: Answer) -> None:
    os.write(1, msgspec.json.encode(answer) + b"\n")
