"""The step that splits a dataset.

The step reads the files once, writes the splits, and finally writes the manifest that marks the splits as
complete. It blocks. Whatever the size of the input, at most one output file per split is in memory.

The step runs in its own process (`main`), because it parses untrusted data. This process cannot open or write
local files, has a memory limit, and ends with the service.
"""

import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import msgspec

from trainshed.core.datasets.lines import BadData, format_row
from trainshed.core.datasets.plans import SPLITS, DirectoryCopy, Split, SplitPlan
from trainshed.core.datasets.records import DataFiles
from trainshed.core.datasets.rows import ItemFile, Table, TableFile, split_items, split_table
from trainshed.datasets.port import Answer, DataRefused, DataUnwritten, Request, SplitCounts, Written
from trainshed.datasets.storage import Storage, StoredObject
from trainshed.replica.system import kernel

SHARD: Final = 32 << 20
"""Size in bytes at which an output file is complete. Until then, the file is in memory."""
_TYPES: Final = {"csv": "text/csv", "jsonl": "application/jsonl"}


class Shards:
    """The files of one split. Their boundaries depend only on the rows, so that a repeated attempt writes the
    same files."""

    def __init__(
        self, plan: SplitPlan, split: Split, header: bytes | None, to: Storage, *, size: int
    ) -> None:
        """`header`: the first row of each file; None = no header. `size`: bytes per file."""
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
        """Add a row. When a file is full, block until it has been sent."""
        if not self._content:
            self._content += self._header
        self._content += row
        self._content += b"\n"
        self.rows += 1
        if len(self._content) >= self._limit:
            self._send_file()

    def close(self) -> SplitCounts:
        """Write the remaining rows. A split without rows has one file, which contains only the header."""
        if self._content or not self._uris:
            self._send_file()
        return SplitCounts(self.rows, self._total, tuple(self._uris))

    def _send_file(self) -> None:
        uri = self._plan.shard(self._split, len(self._uris))
        self._to.write(uri, bytes(self._content), _TYPES[self._plan.format])
        self._uris.append(uri)
        self._total += len(self._content)
        self._content = bytearray()


_PROGRESS_INTERVAL: Final = 1.0
"""Minimum number of seconds between two lines about the progress."""


def write_splits(
    plan: SplitPlan, buckets: Storage, report: Callable[[str], None], *, shard: int = SHARD
) -> Written:
    """Write the splits and their manifest, unless the manifest already exists. `shard`: bytes per file.
    Raises DataRefused, DataUnwritten."""
    if (done := buckets.read(plan.manifest)) is not None:
        try:
            return msgspec.json.decode(done, type=Written)
        except (ValueError, RecursionError) as failure:
            raise DataRefused(
                f"{plan.manifest} was not written by this service: {failure}. Use another destination."
            ) from None
    try:
        written = _write_files(plan, buckets, report, shard)
    except (BadData, DataRefused) as bad:
        raise DataRefused(f"The dataset {plan.dataset} cannot be split: {bad}") from None
    buckets.write(plan.manifest, msgspec.json.encode(written), "application/json")
    return written


def _write_files(plan: SplitPlan, buckets: Storage, report: Callable[[str], None], shard: int) -> Written:
    """Write all files except the manifest. Raises BadData, DataRefused, DataUnwritten."""
    sources = _sources(plan, buckets)
    total = sum(source.size for source, _ in sources)
    header, rows = _rows(plan, sources, buckets, _Meter(total, report))
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
        raise BadData(_no_rows_error(plan, ignored))
    training, validation, test = (
        shards[split].close() if split in shards else SplitCounts() for split in SPLITS
    )
    read = tuple((source.uri, source.generation) for source, _ in sources)
    written = Written(str(plan.dataset), total, training, validation, test, ignored, read)
    _delete_stale_files(plan, buckets, written)
    return written


def _no_rows_error(plan: SplitPlan, ignored: int) -> str:
    if not ignored:
        return "its files have no rows. Add some, or use other files."
    return (
        f"none of its {ignored} rows belongs to a split. The column {plan.rule.key!r} must contain training, "
        "validation or test. Correct the column."
    )


def _sources(plan: SplitPlan, buckets: Storage) -> list[tuple[StoredObject, DataFiles]]:
    """Return the input files in the order of the dataset, without duplicates."""
    sources: dict[str, tuple[StoredObject, DataFiles]] = {}
    for files in plan.files:
        for uri in files.uris:
            objects = buckets.list_objects(uri)
            if not objects:
                raise DataRefused(
                    f"the object {uri!r} no longer exists. Copy the file there, or create a dataset of other "
                    "files."
                )
            # Skip the directory to which this step writes: a wildcard may also match output of an earlier
            # attempt, which must not be read.
            for stored in (n for n in objects if not n.uri.startswith(f"{plan.directory}/")):
                sources.setdefault(stored.uri, (stored, files))
    return list(sources.values())


def _rows(
    plan: SplitPlan, sources: list[tuple[StoredObject, DataFiles]], buckets: Storage, meter: "_Meter"
) -> tuple[bytes | None, Iterable[tuple[bytes, Split | None]]]:
    """Return the header (None = no header) and the rows, each with its split."""

    def blocks(source: StoredObject) -> Iterator[bytes]:
        return meter.over(buckets.blocks(source))

    if not plan.kind.is_table:
        files = [ItemFile(f.uri, form, partial(blocks, f)) for f, form in sources]
        return None, split_items(files, plan.rule, plan.dataset.dataset_id)
    table = Table(TableFile(f.uri, partial(blocks, f)) for f, _ in sources)
    return format_row(table.columns), split_table(table, plan.rule, plan.dataset.dataset_id)


def _delete_stale_files(plan: SplitPlan, buckets: Storage, written: Written) -> None:
    """Delete files that an earlier attempt wrote and this attempt did not write. The input of the earlier
    attempt may have differed."""
    for split, counts in zip(plan.splits, (written.training, written.validation, written.test), strict=False):
        for old in buckets.list_objects(plan.pattern(split)):
            if old.uri not in counts.shards:
                buckets.delete(old.uri)


def copy_directory(copy: DirectoryCopy, buckets: Storage) -> None:
    """Copy all objects of a directory. A repeated call writes the same objects. Raises DataRefused,
    DataUnwritten."""
    objects = buckets.list_objects(f"{copy.source}**")
    if not objects:
        raise DataRefused(
            f"No objects exist at {copy.source}. Copy the files there again, and repeat the export."
        )
    for stored in objects:
        target = copy.target + stored.uri.removeprefix(copy.source)
        if not buckets.copy(stored, target):
            raise DataRefused(
                f"{stored.uri} changed during the export, so the copy at {copy.target} is incomplete. "
                "Delete the copy, and export again."
            )


class _Meter:
    """Counts the input bytes, and reports the progress at regular intervals."""

    def __init__(self, total: int, report: Callable[[str], None]) -> None:
        self._total = total
        self._report = report
        self._read = 0
        self._began = self._reported = time.monotonic()

    def over(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            yield block
            self._read += len(block)
            now = time.monotonic()
            if now - self._reported >= _PROGRESS_INTERVAL:
                self._reported = now
                part = min(self._read / max(self._total, 1), 1.0)
                rate = self._read / (now - self._began) / 1e6
                self._report(f"{part:.0%} of {self._total / 1e6:,.0f} MB read and split, {rate:.0f} MB/s.")


MAX_MEMORY: Final = 1 << 30
"""Maximum size in bytes of the process's address space."""


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    kernel.become_helper(request.parent)
    kernel.forbid_new_privileges()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)
    storage = Storage(request.socket, request.account)
    try:
        answer = Answer(is_copied=True)
        if request.copy is not None:
            copy_directory(request.copy, storage)
        elif request.plan is not None:
            answer = Answer(written=write_splits(request.plan, storage, _report))
    except DataRefused as failure:
        _send(Answer(refused=str(failure)))
    except DataUnwritten as failure:
        _send(Answer(failed=str(failure)))
    except MemoryError:
        _send(Answer(failed=f"The files need more than {MAX_MEMORY >> 20} MiB of memory."))
    else:
        _send(answer)


def _report(text: str) -> None:
    _send(Answer(progress=text))


def _send(answer: Answer) -> None:
    os.write(1, msgspec.json.encode(answer) + b"\n")
