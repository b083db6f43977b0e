"""Creates objects from other objects: compose, copy and move.

Sources are opened as snapshots. If a program writes to a source through `/gcs` during the read, the identity
of the source's file changes. The transfer then fails instead of mixing contents. Functions yield after each
blocking step (`Steps`), because a transfer may take long: a program can cheaply create a sparse file of
terabytes.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TypeAlias

from msgspec.structs import replace

from trainshed.buckets.content import Checksums
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.errors import InvalidRequest, PreconditionFailed, Unavailable, hold_error
from trainshed.buckets.port import ALWAYS, Conditions, Draft, ObjectRecord, ObjectRef

MAX_COMPONENTS = 32
Steps: TypeAlias = Generator[ObjectRecord | None]
"""Yields None after each step, and finally the record of the new object. If the generator is closed before
that, no object is created."""


def compose(store: ObjectStore, target: ObjectRef, sources: Sequence[ObjectRef], draft: Draft) -> Steps:
    """Join up to 32 objects. As on the public service, the result has no MD5."""
    if not 1 <= len(sources) <= MAX_COMPONENTS:
        raise InvalidRequest(
            f"The number of source components provided ({len(sources)}) is not within 1 to "
            f"{MAX_COMPONENTS}. Compose in several steps."
        )
    components = 0
    staged = store.stage()
    try:
        for source in sources:
            with closing(store.bucket_store(source.bucket).open_object(source, hash_limit=0)) as opened:
                yield from opened.copy_into(staged, None)
            components += max(1, opened.record.components)
        yield store.bucket_store(target.bucket).commit(target, staged, draft, components=components)
    finally:
        staged.discard()


def copy(
    store: ObjectStore, source: ObjectRef, target: ObjectRef, redraft: Callable[[ObjectRecord], Draft]
) -> Steps:
    """Copy an object. `redraft`: returns the properties of the copy, from the record of the source."""
    with closing(store.bucket_store(source.bucket).open_object(source, hash_limit=0)) as opened:
        record, staged = opened.record, store.stage()
        try:
            known = Checksums(record.md5, record.crc32c) if record.crc32c else None
            yield from opened.copy_into(staged, known)
            yield store.bucket_store(target.bucket).commit(
                target, staged, redraft(record), components=record.components
            )
        finally:
            staged.discard()


def move(
    store: ObjectStore, source: ObjectRef, target: ObjectRef, redraft: Callable[[ObjectRecord], Draft]
) -> Steps:
    """Rename an object within its bucket: copy it, and then delete the source if it has not changed. After a
    crash between the two steps, both names exist."""
    if source.name == target.name:
        raise InvalidRequest(
            "The source and the destination of a move are the same object. Choose another name."
        )
    at = store.bucket_store(source.bucket)
    record = at.read_record(source, hash_limit=0)
    if record.holds:
        raise hold_error(source.bucket, source.name, record.holds)
    if record.deleted_ns:
        raise InvalidRequest("Only the live generation of an object can be moved. Copy the noncurrent one.")
    generation = record.generation
    pinned = replace(source, generation=generation, conditions=ALWAYS)
    with closing(copy(store, pinned, target, redraft)) as steps:
        while (copied := next(steps)) is None:
            yield None
    try:
        # Delete with a condition instead of a generation: deleting a specific generation is permanent even in
        # a bucket with versioning.
        same = Conditions(generation_match=generation)
        at.delete(ObjectRef(source.bucket, source.name, conditions=same))
    except PreconditionFailed as error:
        raise Unavailable("The source changed during the move. Try again.") from error
    yield copied
