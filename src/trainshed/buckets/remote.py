"""A bucket whose objects lie in a store elsewhere, behind the same methods as one on this disk.

Preconditions hold as far as the store's own conditional operations go: creating and replacing up to ``CONDITIONAL``
bytes are atomic; larger writes, deletions and copies look first and act then (docs/buckets.md has the table). A
generation is made of the time and the tag that the store gives a version.

Checksums and custom metadata are kept in the object's metadata at the store, so that they live and die with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import obstore

from trainshed.buckets.conditions import ALWAYS, Conditions
from trainshed.buckets.digests import BLOCK, Checksums, verify
from trainshed.buckets.errors import (
    InvalidRequest,
    NotFound,
    NotSupported,
    PreconditionFailed,
    Unavailable,
    no_such_object,
)
from trainshed.buckets.port import Draft, Page, Query
from trainshed.buckets.records import ObjectRecord
from trainshed.buckets.remote_access import all_of, translated
from trainshed.buckets.remote_listing import list_page
from trainshed.buckets.remote_records import (
    Version,
    attributes_of,
    checked_name,
    version_of,
    written_ns,
)
from trainshed.buckets.rules import BucketTable
from trainshed.buckets.staging import Staged

if TYPE_CHECKING:
    from obstore import Attributes, ObjectMeta
    from obstore.store import ObjectStore

CONDITIONAL = 32 << 20
"""Bytes up to which a precondition goes to the store with the content, which is then in memory as a whole."""
_PART = 8 << 20
_PARTS = 9000
_AT_ONCE = 4
_SPAN = 64 << 20
"""Bytes that one request reads: a client that is slow must not make it run into the time limit of requests."""


class RemoteBucket:
    """See `port.BucketStore`; serves the one bucket of its table. Safe to use from several threads."""

    def __init__(self, table: BucketTable, store: ObjectStore, now: Callable[[], int]) -> None:
        self._table = table
        self._store = store
        self._now = now

    def precheck(self, bucket: str, name: str, conditions: Conditions) -> None:
        """See the port."""
        checked_name(name)
        if conditions != ALWAYS:
            self._check(name, conditions)

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
        """See the port. Done again after a crash, it finds what it did before."""
        checked_name(name)
        verify(staged.sums, draft.expected)
        token = hashlib.blake2b(str(staged.path).encode(), digest_size=12).hexdigest()
        attributes = attributes_of(draft, staged.sums, components, token)
        try:
            current = self._check(name, conditions) if conditions != ALWAYS else None
            self._put(name, staged, attributes, conditions, current)
        except PreconditionFailed:
            found = self._find(name)
            if found is None or found.token != token:
                raise
        written = self._find(name)
        if written is None:
            raise Unavailable("The object was removed while it was written. Try again.")
        if announce is not None:
            announce(written.record)
        staged.discard()
        return written.record

    def open(
        self,
        bucket: str,
        name: str,
        generation: int | None = None,
        conditions: Conditions = ALWAYS,
        *,
        hash_limit: int | None = None,
    ) -> OpenRemote:
        """See the port. Checksums of what others wrote to the store are not known, and not computed."""
        try:
            found = self._find(checked_name(name))
        except InvalidRequest:
            # What cannot be kept is not there: gcloud asks for `dir/` before it lists what lies below.
            found = None
        if found is None:
            raise no_such_object(self._table.name, name)
        record = found.record
        if generation is not None and generation != record.generation:
            raise no_such_object(self._table.name, f"{name}#{generation}")
        conditions.check(record.generation, record.metageneration, reading=True)
        return OpenRemote(self._table, self._store, name, found)

    def read_record(
        self,
        bucket: str,
        name: str,
        generation: int | None = None,
        conditions: Conditions = ALWAYS,
        *,
        hash_limit: int | None = None,
    ) -> ObjectRecord:
        """See the port."""
        return self.open(bucket, name, generation, conditions).record

    def patch(
        self,
        bucket: str,
        name: str,
        change: Callable[[ObjectRecord], ObjectRecord],
        generation: int | None = None,
        conditions: Conditions = ALWAYS,
    ) -> ObjectRecord:
        """Refused: such a store changes properties only by writing the object anew."""
        raise NotSupported(
            f"The bucket {self._table.name} lies in a store elsewhere, where properties of an object cannot be "
            "changed alone. Write the object again, or copy it onto itself with the new properties."
        )

    def delete(
        self,
        bucket: str,
        name: str,
        generation: int | None = None,
        conditions: Conditions = ALWAYS,
    ) -> None:
        """See the port."""
        record = self.read_record(bucket, name, generation)
        conditions.check(record.generation, record.metageneration)
        with translated(self._table, name):
            obstore.delete(self._store, name)

    def list(self, bucket: str, query: Query) -> Page:
        """See the port. Properties beside size, time and generation are not known in a list."""

        def record(meta: ObjectMeta) -> ObjectRecord:
            return version_of(meta, {}).record

        with translated(self._table):
            return list_page(self._store, query, record)

    def last_written(self, bucket: str, prefix: str) -> int:
        """See the port. Looks at each object below the directory."""
        with translated(self._table):
            below = all_of(self._store, prefix.rstrip("/") or None)
            return max((written_ns(meta) for meta in below), default=0)

    def _check(self, name: str, conditions: Conditions) -> Version | None:
        """The object as it is now, if the conditions hold for it."""
        found = self._find(name)
        record = found.record if found is not None else None
        conditions.check(
            record.generation if record is not None else 0,
            record.metageneration if record is not None else 0,
        )
        return found

    def _find(self, name: str) -> Version | None:
        with suppress(NotFound), translated(self._table, name):
            result = obstore.get(self._store, name, options={"head": True})
            return version_of(result.meta, result.attributes)
        return None

    def _put(
        self,
        name: str,
        staged: Staged,
        attributes: Attributes,
        conditions: Conditions,
        current: Version | None,
    ) -> None:
        size = staged.path.stat().st_size
        atomic = size <= CONDITIONAL
        with translated(self._table, name), staged.path.open("rb") as file:
            if atomic and conditions.must_be_absent:
                obstore.put(self._store, name, file, attributes=attributes, mode="create")
            elif atomic and conditions != ALWAYS and current is not None:
                obstore.put(self._store, name, file, attributes=attributes, mode=current.exact)
            else:
                obstore.put(
                    self._store,
                    name,
                    file,
                    attributes=attributes,
                    chunk_size=max(_PART, size // _PARTS),
                    max_concurrency=_AT_ONCE,
                )


class OpenRemote:
    """See `port.Opened`: the one version that was there when it was opened."""

    def __init__(self, table: BucketTable, store: ObjectStore, name: str, found: Version) -> None:
        self._table = table
        self._store = store
        self._name = name
        self._etag = found.etag
        self.record = found.record

    def blocks(self, start: int, end: int) -> Iterator[bytes]:
        """See the port."""
        while start < end:
            stop = min(end, start + _SPAN)
            options: Any = {"range": (start, stop)}
            if self._etag:
                options["if_match"] = self._etag
            try:
                with translated(self._table, self._name):
                    result = obstore.get(self._store, self._name, options=options)
                    for chunk in result.stream(min_chunk_size=BLOCK):
                        start += len(chunk)
                        yield bytes(chunk)
            except (PreconditionFailed, NotFound) as error:
                raise Unavailable("The object changed while it was read. Read it again.") from error
            if start != stop:
                raise Unavailable("The store sent less than the object has. Read it again.")

    def copy_into(self, staged: Staged, known: Checksums | None) -> None:
        """See the port."""
        for block in self.blocks(0, self.record.size):
            staged.write(block)

    def close(self) -> None:
        """Nothing is held."""
