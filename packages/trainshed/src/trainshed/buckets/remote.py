"""A bucket whose objects are in a remote store, with the same methods as a bucket on the local disk.

Preconditions are only as strong as the conditional operations of the remote store. Creating and replacing
objects of up to `MAX_CONDITIONAL_BYTES` is atomic. Larger writes, deletions and copies check the conditions
first and act afterwards (see the table in docs/buckets.md). A generation is computed from the time and the
tag of a version in the remote store. Checksums and custom metadata are in the remote object's metadata. They
are therefore deleted together with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import obstore
from msgspec import Struct
from msgspec.structs import replace

from trainshed.buckets.content import BLOCK, Checksums, Staged, verify
from trainshed.buckets.errors import (
    InvalidRequest,
    NotFound,
    NotSupported,
    PreconditionFailed,
    Unavailable,
    no_such_object,
)
from trainshed.buckets.listing import floor_of, list_page
from trainshed.buckets.names import validate_object_name
from trainshed.buckets.port import ALWAYS, Draft, FileIdentity, ObjectRecord, ObjectRef, Page, Query
from trainshed.buckets.remote_access import list_all, list_level, translate_errors
from trainshed.buckets.settings import HEADERS, reject_unsupported
from trainshed.buckets.setup import BucketTable

if TYPE_CHECKING:
    from obstore import Attributes, ObjectMeta, UpdateVersion
    from obstore.store import ObjectStore

MAX_CONDITIONAL_BYTES = 32 << 20
"""Maximum size in bytes of content whose precondition the remote store checks. Such content is completely in
memory."""
_PART = 8 << 20
_MAX_PARTS = 9000
_MAX_PARALLEL_PARTS = 4
_SPAN = 64 << 20
"""Number of bytes per request to the remote store. It prevents timeouts if the client is slow."""


class RemoteBucket:
    """Implements the methods of `ObjectStore` for the bucket of one table. Thread-safe."""

    def __init__(self, table: BucketTable, store: ObjectStore) -> None:
        self._table = table
        self._store = store

    def precheck(self, ref: ObjectRef) -> None:
        self._check(ref)

    def commit(
        self,
        ref: ObjectRef,
        staged: Staged,
        draft: Draft,
        *,
        components: int = 0,
        announce: Callable[[ObjectRecord], None] | None = None,
    ) -> ObjectRecord:
        """See `ObjectStore`. If a commit is repeated after a crash, the completed commit is detected."""
        name = check_name(ref.name)
        reject_unsupported(list(draft.holds), "object, whose bucket is in a remote store")
        verify(staged.sums, draft.expected)
        token = hashlib.blake2b(str(staged.path).encode(), digest_size=12).hexdigest()
        attributes = attributes_of(draft, staged.sums, components, token)
        try:
            self._put(ref, staged, attributes, self._check(ref))
        except PreconditionFailed:
            version = self._find(name)
            if version is None or version.token != token:
                raise
        written = self._find(name)
        if written is None:
            raise Unavailable("The object was deleted during the write. Try again.")
        if announce is not None:
            announce(written.record)
        staged.discard()
        return written.record

    def open_object(self, ref: ObjectRef, *, hash_limit: int | None = None) -> OpenRemote:
        """See `ObjectStore`. Objects that other programs wrote to the remote store have no checksums, and
        this method does not compute them."""
        try:
            version = self._find(check_name(ref.name))
        except InvalidRequest:
            # Treat an object with an invalid name as absent. gcloud requests `dir/` before it lists the
            # objects below `dir/`.
            version = None
        if version is None:
            raise no_such_object(self._table.name, ref.name)
        record = version.record
        if ref.generation not in (None, record.generation):
            raise no_such_object(self._table.name, f"{ref.name}#{ref.generation}")
        ref.conditions.check(record.generation, record.metageneration, reading=True)
        return OpenRemote(self._table, self._store, ref.name, version.etag, record)

    def read_record(self, ref: ObjectRef, *, hash_limit: int | None = None) -> ObjectRecord:
        return self.open_object(ref).record

    def patch(self, ref: ObjectRef, change: Callable[[ObjectRecord], ObjectRecord]) -> ObjectRecord:
        """Raise NotSupported: a remote store can change properties only by writing the object again."""
        raise NotSupported(
            f"The bucket {self._table.name} is in a remote store, which cannot change an object's properties "
            "without its content. Write the object again, or copy it onto itself with the new properties."
        )

    def delete(self, ref: ObjectRef) -> None:
        record = self.read_record(replace(ref, conditions=ALWAYS))
        ref.conditions.check(record.generation, record.metageneration)
        with translate_errors(self._table, ref.name):
            obstore.delete(self._store, ref.name)

    def list(self, bucket: str, query: Query) -> Page:
        """See `ObjectStore`. Listed objects have only size, time and generation."""

        def read(meta: ObjectMeta) -> list[ObjectRecord]:
            return [version_of(meta, {}).record]

        entries = (
            (name, partial(read, meta) if meta is not None else None)
            for name, meta in _entries(self._store, query)
        )
        with translate_errors(self._table):
            return list_page(query, entries)

    def last_written(self, bucket: str, prefix: str) -> int:
        """See `ObjectStore`. Reads the status of each object below the directory."""
        with translate_errors(self._table):
            below = list_all(self._store, prefix.rstrip("/") or None)
            return max((written_ns(meta) for meta in below), default=0)

    def _check(self, ref: ObjectRef) -> Version | None:
        """Return the current version of an object, or None if the object does not exist. Raise unless the
        conditions are met. If the request has no conditions, return None without a request to the remote
        store."""
        check_name(ref.name)
        if ref.conditions == ALWAYS:
            return None
        version = self._find(ref.name)
        record = version.record if version is not None else None
        ref.conditions.check(*(record.generation, record.metageneration) if record else (0, 0))
        return version

    def _find(self, name: str) -> Version | None:
        with suppress(NotFound), translate_errors(self._table, name):
            result = obstore.get(self._store, name, options={"head": True})
            return version_of(result.meta, result.attributes)
        return None

    def _put(self, ref: ObjectRef, staged: Staged, attributes: Attributes, current: Version | None) -> None:
        name, conditions = ref.name, ref.conditions
        size = staged.path.stat().st_size
        way: Any = {"chunk_size": max(_PART, size // _MAX_PARTS), "max_concurrency": _MAX_PARALLEL_PARTS}
        if size <= MAX_CONDITIONAL_BYTES and conditions.must_be_absent:
            way = {"mode": "create"}
        elif size <= MAX_CONDITIONAL_BYTES and conditions != ALWAYS and current is not None:
            way = {"mode": current.exact}
        with translate_errors(self._table, name), staged.path.open("rb") as file:
            obstore.put(self._store, name, file, attributes=attributes, **way)


class OpenRemote(Struct, frozen=True):
    """An `OpenObject` for the version that was current when the object was opened."""

    table: BucketTable
    store: ObjectStore
    name: str
    etag: str
    record: ObjectRecord

    def blocks(self, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            stop = min(end, start + _SPAN)
            options: Any = {"range": (start, stop)}
            if self.etag:
                options["if_match"] = self.etag
            try:
                with translate_errors(self.table, self.name):
                    result = obstore.get(self.store, self.name, options=options)
                    for chunk in result.stream(min_chunk_size=BLOCK):
                        start += len(chunk)
                        yield bytes(chunk)
            except (PreconditionFailed, NotFound) as error:
                raise Unavailable("The object changed during the read. Read the object again.") from error
            if start != stop:
                raise Unavailable(
                    "The read is incomplete: the remote store returned fewer bytes than the object's size. "
                    "Read the object again."
                )

    def copy_into(self, staged: Staged, known: Checksums | None) -> Generator[None]:
        for block in self.blocks(0, self.record.size):
            staged.write(block)
            yield

    def close(self) -> None:
        """Do nothing: this object holds no resource."""


def _entries(store: ObjectStore, query: Query) -> Iterator[tuple[str, ObjectMeta | None]]:
    """Yield the names of a listing in order from its first name on, each with its object. None = the name is
    a common prefix. If the listing covers a single directory level, only that level is requested, which is
    cheap for the remote store. Otherwise all objects are listed in order of their names."""
    prefix = query.prefix.encode()
    floor = max(floor_of(query), prefix)
    directory = query.prefix.rpartition("/")[0] or None
    entries: Iterable[tuple[str, ObjectMeta | None]]
    if query.delimiter == "/" and not query.match_glob:
        objects, directories = list_level(store, directory)
        level: dict[str, ObjectMeta | None] = {f"{name}/": None for name in directories}
        level.update((meta["path"], meta) for meta in objects)
        entries = sorted(level.items(), key=lambda entry: entry[0].encode())
    else:
        # The remote store lists only names after the offset. Choose an offset before the first name of the
        # page, so that this name is included.
        before = floor.decode("utf-8", "ignore")[:-1].rstrip("/")
        offset = before if before and before.isprintable() and "//" not in before else None
        entries = ((meta["path"], meta) for meta in list_all(store, directory, offset))
    for name, meta in entries:
        is_match = name.startswith(query.prefix)
        if not is_match and name.encode() > prefix:
            return
        beyond = name.encode() >= floor or (meta is None and floor.startswith(name.encode()))
        if beyond and is_match:
            yield name, meta


_OWN_PREFIX = "trainshed-"
_MD5, _CRC32C, _COMPONENTS, _UPLOAD = (
    f"{_OWN_PREFIX}{key}" for key in ("md5", "crc32c", "components", "upload")
)
_METADATA_BYTES = 1800


class Version(Struct, frozen=True):
    """A version of an object in the remote store."""

    record: ObjectRecord
    etag: str
    #: Identifies the version in the remote store's preconditions.
    exact: UpdateVersion
    #: The token of the upload that wrote the version; None = another program wrote it.
    token: str | None


def version_of(meta: ObjectMeta, attributes: Mapping[Any, str]) -> Version:
    etag, version = meta["e_tag"] or "", meta["version"] or ""
    texts = {str(key): value for key, value in attributes.items()}
    moment = written_ns(meta)
    record = ObjectRecord(
        file=FileIdentity(0, meta["size"], moment),
        generation=_generation(moment, etag),
        metageneration=1,
        created_ns=moment,
        updated_ns=moment,
        md5=texts.get(_MD5, ""),
        crc32c=texts.get(_CRC32C, ""),
        fields={ours: texts[theirs] for ours, theirs in HEADERS.items() if texts.get(theirs)},
        metadata={
            key: value
            for key, value in texts.items()
            if key not in HEADERS.values() and not key.startswith(_OWN_PREFIX)
        },
        components=int(texts.get(_COMPONENTS, "0")),
    )
    exact = {key: value for key, value in (("e_tag", etag), ("version", version)) if value}
    return Version(record, etag, cast("UpdateVersion", exact), texts.get(_UPLOAD))


def written_ns(meta: ObjectMeta) -> int:
    return int(meta["last_modified"].timestamp() * 1_000_000) * 1000


def _generation(moment: int, etag: str) -> int:
    """Return a number that increases with the time of writing in seconds, and differs between tags. It
    depends only on data that the remote store reports both for a single object and in a listing. A listing
    contains neither version numbers nor fractions of a second."""
    digest = hashlib.blake2b(etag.encode(), digest_size=8).digest()
    seconds = moment // 1_000_000_000
    return seconds * 1_000_000 + int.from_bytes(digest, "big") % 1_000_000


def check_name(name: str) -> str:
    """Return the name if remote stores accept it. Raises `InvalidRequest` otherwise."""
    validate_object_name(name)
    segments = name.split("/")
    if not all(segments) or {".", ".."}.intersection(segments) or not name.isprintable():
        raise InvalidRequest(
            f"Invalid object name: {name!r}: the bucket is in a remote store, whose names have no empty part "
            "between slashes, no '.' or '..' and no control characters. Choose another name."
        )
    return name


def attributes_of(draft: Draft, sums: Checksums, components: int, token: str) -> Attributes:
    """Return the metadata of an object for the remote store. `token`: identifies the upload that writes the
    object. Raises `InvalidRequest`."""
    kept = {theirs: draft.fields[ours] for ours, theirs in HEADERS.items() if ours in draft.fields}
    unknown = [key for key in draft.fields if key not in HEADERS and key != "storageClass"]
    for key, value in draft.metadata.items():
        plain = f"{key}{value}"
        if not plain.isascii() or not plain.isprintable() or key != key.lower():
            unknown.append(f"metadata.{key}")
        kept[key] = value
    if unknown or sum(len(key) + len(value) for key, value in kept.items()) > _METADATA_BYTES:
        raise InvalidRequest(
            "The bucket is in a remote store, which does not support these properties: "
            f"{', '.join(unknown) or 'too many bytes of metadata'}. Use lower-case metadata keys, ASCII "
            f"values, and at most {_METADATA_BYTES} bytes in total."
        )
    own = {_CRC32C: sums.crc32c, _UPLOAD: token}
    own |= {_COMPONENTS: str(components)} if components else {_MD5: sums.md5}
    return cast("Attributes", {**kept, **own})
