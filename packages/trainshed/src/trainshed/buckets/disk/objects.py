"""Writes, reads, changes, copies and deletes the objects of all buckets with reliable preconditions.

A write has these steps: temporary file → fsync → record → fsync → rename → fsync of the directory. After a
crash, an acknowledged object is therefore complete, and an unacknowledged object is complete or absent.

A lock around "check the condition, then rename" serialises the writers of one object. A program that writes
through `/gcs` does not use this lock. Creation (`ifGenerationMatch=0`) is nevertheless exclusive, because it
uses a hard link. Other conditions are checked against the object's state that includes all earlier writes of
the program. In a bucket with versioning, a write or a deletion first stores the live generation
(`generations`).

All methods block and are thread-safe.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast

from msgspec import Struct, structs

from trainshed.buckets.content import BLOCK, Checksums, Staged, digest_file, verify
from trainshed.buckets.disk.catalog import BucketCatalog, state_directory
from trainshed.buckets.disk.files import ObjectFiles, key_of
from trainshed.buckets.disk.records import RecordStore
from trainshed.buckets.disk.tree import (
    SHADOW_DIR,
    Entry,
    ObjectFile,
    Walk,
    directory,
    is_absent,
    make_directories,
    place_of,
    prune,
)
from trainshed.buckets.errors import (
    BucketsError,
    Forbidden,
    InvalidRequest,
    NotFound,
    Unavailable,
    hold_error,
    no_such_bucket,
)
from trainshed.buckets.listing import floor_of, list_page, with_noncurrent
from trainshed.buckets.names import MARK, validate_object_name
from trainshed.buckets.port import Draft, FileIdentity, ObjectRecord, ObjectRef, Page, Query
from trainshed.buckets.settings import EVENT_BASED_HOLD, holds_by_default, keeps_generations, storage_class
from trainshed.buckets.setup import PLAIN, BucketRules
from trainshed.replica.system import durable

if TYPE_CHECKING:
    from trainshed.buckets.remote import OpenRemote, RemoteBucket

Opened: TypeAlias = "OpenObject | OpenRemote"
"""An object open for reading. Its generation is fixed, so that later writes do not affect it."""
BucketStore: TypeAlias = "ObjectStore | RemoteBucket"
"""The store of a bucket's objects, with preconditions: the result of `ObjectStore.bucket_store`."""
_HASH_LIMIT = 4 << 20
"""Maximum size in bytes of a file whose missing checksums are computed for a listing."""
_SETTLED_NS = 2_000_000_000
"""Minimum age of a file before its checksum is stored. The kernel's clock may be coarse. A later write of the
same size could then leave the file's identity unchanged."""


class OpenObject(Struct, frozen=True):
    """An object open for reading. It is a snapshot, since writers replace files. Call `close` after use."""

    fd: int
    record: ObjectRecord

    def blocks(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` to before `end`. Raises `Unavailable` if a program has shortened the
        file."""
        while start < end:
            block = os.pread(self.fd, min(BLOCK, end - start), start)
            if not block:
                raise Unavailable("The object was shortened during the read. Read it again.")
            start += len(block)
            yield block

    def copy_into(self, staged: Staged, known: Checksums | None) -> Generator[None]:
        """Append the object's whole content to `staged`, and yield after each step. `known`: the content's
        checksums; None if `staged` also receives other content. Raises `Unavailable` if a program writes to
        the object at the same time."""
        yield from staged.copy_from(self.fd, self.record.size, known)
        if FileIdentity.of(os.fstat(self.fd)) != self.record.file:
            raise Unavailable("The source object changed during the copy. Try again.")

    def close(self) -> None:
        os.close(self.fd)


class ObjectStore:
    """The buckets of a service: the objects below one root directory, which belongs only to this store, and
    access to remote stores."""

    def __init__(
        self,
        root: Path,
        *,
        now: Callable[[], int] = time.time_ns,
        rules: BucketRules = PLAIN,
        attributes: bool = True,
    ) -> None:
        self.root = root
        self.now = now
        self.catalog = BucketCatalog(root, now, rules)
        self.generations = self.catalog.generations
        self._temporary = state_directory(root) / "tmp"
        self._files = ObjectFiles(RecordStore(state_directory(root), attributes=attributes))
        self._generations = GenerationSource(state_directory(root) / "generation", now)
        self._remote: dict[str, BucketStore] = {}
        self._lock = threading.Lock()

    def bucket_store(self, bucket: str) -> BucketStore:
        """Return the store of a bucket: this store, or the remote store that the rules configure."""
        table = self.catalog.tables.get(bucket)
        if table is None or not table.is_remote:
            return self
        with self._lock:
            if bucket not in self._remote:
                # The library needs many megabytes, so it is imported only for remote buckets.
                from trainshed.buckets.remote import RemoteBucket
                from trainshed.buckets.remote_access import connect

                self._remote[bucket] = RemoteBucket(table, connect(table))
            return self._remote[bucket]

    def clean(self) -> None:
        """Delete unfinished files of an earlier process. Call this method before serving requests."""
        for path in self._temporary.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        self._files.records.close()
        self.generations.close()

    def walk(self, bucket: str) -> Iterator[Entry]:
        """Yield all objects of a bucket in the order of their names' UTF-8 bytes. Raises `NotFound`."""
        with self.catalog.open_directory(bucket) as base:
            yield from Walk(base, "", b"")

    def stage(self) -> Staged:
        """Return a temporary file for new content. The caller commits or discards it."""
        return Staged.create(self._temporary)

    def precheck(self, ref: ObjectRef) -> None:
        """Raise the errors of `commit` that are already known before the client sends the content."""
        with self.catalog.open_directory(ref.bucket) as base:
            self._files.check(base, ref)

    def commit(
        self,
        ref: ObjectRef,
        staged: Staged,
        draft: Draft,
        *,
        components: int = 0,
        announce: Callable[[ObjectRecord], None] | None = None,
    ) -> ObjectRecord:
        """Turn staged content into an object, durably. After success, the staged file is closed. After a
        failure, the caller must discard it. `announce`: called with the record before the object becomes
        visible. Raises `InvalidRequest` (checksum, name), `NotFound` (bucket), `PreconditionFailed`, `Held`.
        """
        validate_object_name(ref.name)
        settings = self.catalog.get(ref.bucket).settings
        try:
            with self.catalog.open_directory(ref.bucket) as base:
                verify(staged.sums, draft.expected)
                self._files.check(base, ref)
                staged.seal()
                record = self._describe(staged, _with_defaults(draft, settings), components)
                if announce is not None:
                    announce(record)
                keep = partial(self._keep, ref.bucket, ref.name)
                kept = keep if keeps_generations(settings) else None
                self._files.install(base, ref, staged, record, kept)
                if os.fstat(base).st_ino != self.catalog.directory(ref.bucket).stat().st_ino:
                    raise no_such_bucket(ref.bucket)
        except FileNotFoundError as error:
            raise no_such_bucket(ref.bucket) from error
        staged.close()
        return record

    def open_object(self, ref: ObjectRef, *, hash_limit: int | None = None) -> OpenObject:
        """Open an object for reading, with its record. Raises `NotFound`, `NotModified` and other errors. A
        file that a program wrote through the directory has no checksums. They are computed and stored if the
        file has at most `hash_limit` bytes (None = no limit)."""
        handle = self._open(ref)
        try:
            record = handle.record
            ref.conditions.check(record.generation, record.metageneration, reading=True)
            is_hashed = hash_limit is None or record.size <= hash_limit
            if not record.crc32c and not record.deleted_ns and is_hashed:
                record = self._with_checksums(ref.bucket, ref.name, handle)
        except BaseException:
            handle.close()
            raise
        return OpenObject(handle.fd, record)

    def _open(self, ref: ObjectRef) -> OpenObject:
        """Open the generation in the reference. Default: the live generation. Raises `NotFound`."""
        bucket, name, generation = ref.bucket, ref.name, ref.generation
        with self.catalog.open_directory(bucket) as base:
            try:
                live = self._files.find(base, bucket, name)
            except NotFound:
                if generation is None:
                    raise
                return OpenObject(*self.generations.open(bucket, name, generation))
        try:
            record = self._files.load(live, bucket, name)
            if generation in (None, record.generation):
                return OpenObject(live.fd, record)
        except BaseException:
            os.close(live.fd)
            raise
        os.close(live.fd)
        return OpenObject(*self.generations.open(bucket, name, generation))

    def _with_checksums(self, bucket: str, name: str, handle: OpenObject) -> ObjectRecord:
        """Compute the checksums of a file written through the directory. Return the record with them."""
        record, sums = handle.record, digest_file(handle.fd).sums()
        if FileIdentity.of(os.fstat(handle.fd)) != record.file:
            # A program is writing to the file now. A missing checksum is better than a wrong one.
            return record
        with_sums = partial(replace, md5=sums.md5, crc32c=sums.crc32c)
        if self.now() - record.file.mtime_ns > _SETTLED_NS:
            # Storing the checksums only saves work at the next read. A read-only tree or a later write is
            # therefore no error.
            with suppress(OSError, BucketsError), self._open_exclusively(ObjectRef(bucket, name)) as now:
                if now.record.file == record.file:
                    self._files.save(now.fd, key_of(bucket, name), with_sums(now.record))
        return with_sums(record)

    @contextmanager
    def _open_exclusively(self, ref: ObjectRef) -> Generator[OpenObject]:
        """Open an object, yield it, and close it afterwards. In between, no other request can change the
        object."""
        place = place_of(validate_object_name(ref.name))
        with self._files.lock(place), closing(self._open(ref)) as handle:
            yield handle

    def read_record(self, ref: ObjectRef, *, hash_limit: int | None = None) -> ObjectRecord:
        handle = self.open_object(ref, hash_limit=hash_limit)
        handle.close()
        return handle.record

    def patch(self, ref: ObjectRef, change: Callable[[ObjectRecord], ObjectRecord]) -> ObjectRecord:
        """Change an object's editable properties. Its metageneration increases by one."""
        with self._open_exclusively(ref) as handle:
            record = handle.record
            ref.conditions.check(record.generation, record.metageneration)
            changed = replace(change(record), metageneration=record.metageneration + 1, updated_ns=self.now())
            if record.deleted_ns:
                self.generations.note(ref.bucket, ref.name, changed)
            else:
                self._files.save(handle.fd, key_of(ref.bucket, ref.name), changed)
                os.fsync(handle.fd)
        return changed

    def delete(self, ref: ObjectRef) -> None:
        """Delete an object durably, and then its directories if they are empty. If the reference specifies a
        generation, that generation is deleted permanently."""
        bucket, name = ref.bucket, ref.name
        keeps = ref.generation is None and keeps_generations(self.catalog.get(bucket).settings)
        with self.catalog.open_directory(bucket) as base:
            with self._open_exclusively(ref) as handle:
                record = handle.record
                ref.conditions.check(record.generation, record.metageneration)
                if record.holds:
                    raise hold_error(bucket, name, record.holds)
                if keeps:
                    self.generations.keep(bucket, name, handle.fd, record, self.now())
                if not record.deleted_ns:
                    self._files.remove(base, bucket, name)
                if not keeps:
                    # Also delete a noncurrent copy of this generation, which a crash during an overwrite may
                    # have left.
                    self.generations.remove(bucket, name, record.generation)
            prune(base, (*place_of(name).dirs, SHADOW_DIR))

    def _keep(self, bucket: str, name: str, live: ObjectFile) -> None:
        record = self._files.load(live, bucket, name)
        self.generations.keep(bucket, name, live.fd, record, self.now())

    def list(self, bucket: str, query: Query) -> Page:
        """Return one page of a bucket's objects. Raises `NotFound`, `InvalidRequest` (token, glob)."""
        with self.catalog.open_directory(bucket) as base:
            if "\0" in query.prefix:
                return Page([], [], "")

            def generations(name: str) -> list[ObjectRecord]:
                live = self._live_records(base, bucket, name)
                if not query.versions:
                    return live
                # Read noncurrent generations after the live one, so that a generation that is replaced in
                # between is not omitted.
                known = [record.generation for record in live]
                kept = self.generations.of(bucket, name)
                others = [record for record in kept if record.generation not in known]
                return sorted(live + others, key=lambda record: record.generation)

            walk = Walk(base, query.prefix, floor_of(query))
            names = (entry.name for entry in walk)
            if query.versions:
                next_removed = partial(self.generations.next_name, bucket)
                names = with_noncurrent(walk, query.prefix.encode(), next_removed)
            entries = ((name, partial(generations, name)) for name in names)
            return list_page(query, entries, walk.skip_to)

    def _live_records(self, base: int, bucket: str, name: str) -> list[ObjectRecord]:
        """Return the live record of an object in a listing, or [] if it was deleted in the meantime."""
        try:
            return [self.read_record(ObjectRef(bucket, name), hash_limit=_HASH_LIMIT)]
        except Forbidden:
            # The service may not read this file. List its known properties, so that the listing does not
            # fail.
            with suppress(NotFound):
                return [self._files.closed_record(base, bucket, name)]
        except (NotFound, InvalidRequest):
            # Omit a file that was deleted or whose path is not a valid object name, so that the listing does
            # not fail.
            pass
        return []

    def content(self, bucket: str, name: str) -> BinaryIO:
        """Return the content of a local or remote object, open for reading. The content of a remote object is
        downloaded first. Raises `NotFound`."""
        handle = self.bucket_store(bucket).open_object(ObjectRef(bucket, name), hash_limit=0)
        if isinstance(handle, OpenObject):
            return os.fdopen(handle.fd, "rb")
        file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 the caller closes it
        try:
            for block in handle.blocks(0, handle.record.size):
                file.write(block)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file

    def all_of(self, bucket: str, prefix: str) -> Iterator[tuple[str, ObjectRecord]]:
        """Yield (name, record) of all objects with a prefix, local or remote, in the order of their names'
        UTF-8 bytes."""
        query = Query(prefix=prefix)
        while True:
            page = self.bucket_store(bucket).list(bucket, query)
            yield from page.objects
            if not page.next_page_token:
                return
            query = structs.replace(query, page_token=page.next_page_token)

    def write_probe(self, bucket: str, prefix: str) -> None:
        """Check that objects below `prefix` can be written: create and delete a hidden file in the deepest
        existing directory of the prefix. Raises `NotFound` (bucket), `InvalidRequest` (invalid prefix),
        `Forbidden`."""
        name = validate_object_name(f"{prefix.rstrip('/')}/x".lstrip("/"))
        if self.catalog.is_remote(bucket):
            probe = ObjectRef(bucket, f"{name[:-1]}{MARK}probe-{os.urandom(6).hex()}")
            store, staged = self.bucket_store(bucket), self.stage()
            try:
                store.commit(probe, staged, Draft())
                store.delete(probe)
            finally:
                staged.discard()
            return
        try:
            with self.catalog.open_directory(bucket) as base:
                _probe(base, place_of(name).dirs)
        except OSError as error:
            raise Forbidden(
                f"gs://{bucket}/{prefix} cannot be written: {error.strerror}. "
                "Check the permissions and the free space of the bucket's directory."
            ) from error

    def make_directory(self, bucket: str, prefix: str) -> None:
        """Create the directory of a prefix, so that programs can write files to it without creating it first.
        A bucket in a remote store has no directories. Raises `NotFound` (bucket), `InvalidRequest` (invalid
        prefix), `Forbidden` if a file has the name of the directory or the disk rejects the directory."""
        name = validate_object_name(f"{prefix.rstrip('/')}/x".lstrip("/"))
        if self.catalog.is_remote(bucket):
            return
        try:
            with self.catalog.open_directory(bucket) as base:
                os.close(make_directories(base, place_of(name).dirs, _refuse))
        except OSError as error:
            raise Forbidden(
                f"The directory gs://{bucket}/{prefix} cannot be created: {error.strerror}. Check the free "
                "space of the bucket's directory, and that no object has the name of the directory."
            ) from error

    def last_written(self, bucket: str, prefix: str) -> int:
        """Return the time of the last write to any object with the prefix (ns since the epoch), or 0 without
        such an object. Reads the status of every object."""
        root = self.catalog.directory(bucket)
        latest = 0
        with self.catalog.open_directory(bucket) as base:
            for entry in Walk(base, prefix, b""):
                with suppress(FileNotFoundError, PermissionError):
                    path = root.joinpath(*entry.dirs, entry.leaf)
                    latest = max(latest, path.stat().st_mtime_ns)
        return latest

    def _describe(self, staged: Staged, draft: Draft, components: int) -> ObjectRecord:
        generation = self._generations.next()
        now = self.now()
        # Set the file's time here to make its identity unique. The kernel's clock is coarse: a program's
        # write within the same tick would not change the time, and would not be detected.
        mtime = now - now % 1000 + generation % 997
        os.utime(staged.fd, ns=(mtime, mtime))
        sums = staged.sums
        record = ObjectRecord(
            file=FileIdentity.of(os.fstat(staged.fd)),
            generation=generation,
            metageneration=1,
            created_ns=now,
            updated_ns=now,
            md5="" if components else sums.md5,
            crc32c=sums.crc32c,
            fields=dict(draft.fields),
            metadata=dict(draft.metadata),
            components=components,
            holds=draft.holds,
        )
        self._files.records.attach(staged.fd, record)
        os.fsync(staged.fd)
        return record


def _probe(base: int, dirs: tuple[str, ...]) -> None:
    """Create and delete a hidden file in the deepest existing directory."""
    leaf = f"{MARK}probe-{os.urandom(6).hex()}"
    for depth in range(len(dirs), -1, -1):
        try:
            with directory(base, dirs[:depth]) as parent:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                os.close(os.open(leaf, flags, 0o600, dir_fd=parent))
                os.unlink(leaf, dir_fd=parent)
            return
        except OSError as error:
            if not is_absent(error):
                raise


def _with_defaults(draft: Draft, settings: Mapping[str, Any]) -> Draft:
    """Return a draft in which missing properties have the bucket's defaults for new objects."""
    fields = dict(draft.fields)
    if (usual := storage_class(settings)) != storage_class({}):
        fields.setdefault("storageClass", usual)
    by_default = (EVENT_BASED_HOLD,) if holds_by_default(settings) else ()
    holds = tuple(dict.fromkeys((*draft.holds, *by_default)))
    return structs.replace(draft, fields=fields, holds=holds)


_STEP = 60_000_000


class GenerationSource:
    """Produces generation numbers that never repeat, even after a crash or if the clock is set back.

    A generation number is the current time in microseconds since the epoch, as in the public service. If an
    earlier number is equal or higher, the new number is that number plus one. An upper limit is stored on
    disk before a number below it is used. Blocking (one sync per minute), thread-safe.
    """

    def __init__(self, path: Path, now: Callable[[], int]) -> None:
        self._path = path
        self._now = now
        self._lock = threading.Lock()
        try:
            self._last = int(path.read_bytes())
        except FileNotFoundError:
            self._last = 0
        self._ceiling = self._last

    def next(self) -> int:
        with self._lock:
            number = max(self._now() // 1000, self._last + 1)
            if number >= self._ceiling:
                ceiling = number + _STEP
                durable.write(str(self._path), str(ceiling).encode(), is_shared=True)
                self._ceiling = ceiling
            self._last = number
            return number


def _refuse(path: tuple[str, ...]) -> None:
    raise FileExistsError(errno.EEXIST, "An object has the name of the directory", "/".join(path))
