"""What the methods of the storage API ask of the place where objects lie: on this disk, or in a store
elsewhere.

A place has buckets, and `at` finds the store of one. All methods block and may be called from several
threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from trainshed.buckets.conditions import ALWAYS, Conditions
from trainshed.buckets.content import UNKNOWN, Checksums, Staged
from trainshed.buckets.disk.catalog import BucketCatalog
from trainshed.core.units import Bytes

MAX_RESULTS = 1000


class FileIdentity(Struct, frozen=True):
    """What changes when somebody writes to, or replaces, a file; times in ns since the epoch."""

    inode: int
    size: Bytes
    mtime_ns: int

    @staticmethod
    def of(stat: os.stat_result) -> FileIdentity:
        """The identity that a stat result shows."""
        return FileIdentity(stat.st_ino, stat.st_size, stat.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class ObjectRecord:
    """Everything that is known of one generation of an object beside its bytes."""

    file: FileIdentity
    generation: int
    metageneration: int
    #: Since the epoch, as is `updated_ns`.
    created_ns: int
    updated_ns: int
    #: Base64, as is `crc32c`; "" while unknown.
    md5: str = ""
    crc32c: str = ""
    #: The editable properties under their public names (contentType, cacheControl, ...).
    fields: dict[str, str] = field(default_factory=dict[str, str])
    #: The client's own names and values.
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    #: Of a composed object; 0 = it is none.
    components: int = 0
    #: In which ``file`` is what it says; "" in records of older versions.
    epoch: str = field(default="", compare=False)

    @property
    def size(self) -> int:
        """Bytes of content."""
        return self.file.size


class Draft(Struct, frozen=True):
    """What a client says of an object that it writes."""

    fields: Mapping[str, str] = {}
    metadata: Mapping[str, str] = {}
    #: Checksums to verify.
    expected: Checksums = UNKNOWN


class Query(Struct, frozen=True):
    """What to list; the fields are those of the public method of the same names."""

    prefix: str = ""
    delimiter: str = ""
    page_token: str = ""
    max_results: int = MAX_RESULTS
    start_offset: str = ""
    end_offset: str = ""
    include_trailing_delimiter: bool = False
    match_glob: str = ""


class Page(Struct, frozen=True):
    """One page: (name, record) of objects, common prefixes, and the token of the next page."""

    objects: list[tuple[str, ObjectRecord]]
    prefixes: list[str]
    next_page_token: str


class Opened(Protocol):
    """An object open for reading: one generation of it, whatever is written meanwhile."""

    @property
    def record(self) -> ObjectRecord:
        """What is known of it beside its bytes."""
        ...

    def blocks(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes from ``start`` up to ``end``, in blocks. Raises ``Unavailable`` if it was changed
        meanwhile."""
        ...

    def copy_into(self, staged: Staged, known: Checksums | None) -> None:
        """Append all of it; ``known``: its checksums, if it is all that there will be."""
        ...

    def close(self) -> None:
        """Let go of it; repeating that is not allowed."""
        ...


class BucketStore(Protocol):
    """The objects of buckets, with preconditions. Raises the exceptions of ``errors``."""

    def precheck(self, bucket: str, name: str, conditions: Conditions) -> None:
        """Refuse early what ``commit`` would refuse, before the content is sent."""
        ...

    def commit(
        self,
        bucket: str,
        name: str,
        staged: Staged,
        draft: Draft,
        conditions: Conditions = ALWAYS,
        *,
        components: int = 0,
        announce: Callable[[ObjectRecord], None] | None = None,
    ) -> ObjectRecord:
        """Make staged content an object, durably. ``announce``: called with the record, at the latest before
        the staged file is gone."""
        ...

    def open(
        self,
        bucket: str,
        name: str,
        generation: int | None = None,
        conditions: Conditions = ALWAYS,
        *,
        hash_limit: int | None = None,
    ) -> Opened:
        """Open an object for reading. ``hash_limit``: bytes up to which missing checksums are computed, None
        = any."""
        ...

    def read_record(
        self,
        bucket: str,
        name: str,
        generation: int | None = None,
        conditions: Conditions = ALWAYS,
        *,
        hash_limit: int | None = None,
    ) -> ObjectRecord:
        """The record alone; see ``open``."""
        ...

    def patch(
        self,
        bucket: str,
        name: str,
        change: Callable[[ObjectRecord], ObjectRecord],
        generation: int | None = None,
        conditions: Conditions = ALWAYS,
    ) -> ObjectRecord:
        """Change an object's editable properties."""
        ...

    def delete(
        self,
        bucket: str,
        name: str,
        generation: int | None = None,
        conditions: Conditions = ALWAYS,
    ) -> None:
        """Remove an object, durably."""
        ...

    def list(self, bucket: str, query: Query) -> Page:
        """One page of a bucket's objects, in the order of their names' UTF-8 bytes."""
        ...

    def last_written(self, bucket: str, prefix: str) -> int:
        """When an object with the prefix, a directory's name, was last written (ns); 0 if there is none."""
        ...


class Buckets(Protocol):
    """All buckets of a service."""

    #: What unfinished uploads need lies beside it, on this disk.
    root: Path
    catalog: BucketCatalog
    #: Nanoseconds since the epoch.
    now: Callable[[], int]

    def at(self, bucket: str) -> BucketStore:
        """Where the objects of a bucket lie, or would."""
        ...

    def stage(self) -> Staged:
        """A temporary file for new content."""
        ...

    def complete_records(self) -> None:
        """Bind the records of objects on this disk after their directory was copied. Takes as long as looking
        at each of them; the buckets may be used meanwhile."""
        ...

    def clean(self) -> None:
        """Remove what an earlier process left half-written; call before serving."""
        ...
