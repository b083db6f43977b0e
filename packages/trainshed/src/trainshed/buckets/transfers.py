"""Makes objects of other objects: compose, copy and move.

Sources are opened as snapshots. A program that writes to a source through `/gcs` while it is read is
noticed by its changed identity, and the transfer fails rather than mixes contents. All functions block for a
step at a time (`Steps`): a sparse file of terabytes costs a program nothing.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TypeAlias

from msgspec.structs import replace

from trainshed.buckets.content import Checksums
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.errors import InvalidRequest, PreconditionFailed, Unavailable, held
from trainshed.buckets.port import ALWAYS, Conditions, Draft, ObjectRecord, ObjectRef

MAX_COMPONENTS = 32
Steps: TypeAlias = Generator[ObjectRecord | None]
"""Yields None after each step, and at last the record of what was made. Closed early, it makes nothing."""


def compose(
    store: ObjectStore, target: ObjectRef, sources: Sequence[ObjectRef], draft: Draft
) -> Steps:
    """Join up to 32 objects into one; as at the public service, it has no MD5."""
    if not 1 <= len(sources) <= MAX_COMPONENTS:
        raise InvalidRequest(
            f"The number of source components provided ({len(sources)}) is not within 1 to "
            f"{MAX_COMPONENTS}. Compose in several steps."
        )
    components = 0
    staged = store.stage()
    try:
        for source in sources:
            with closing(store.at(source.bucket).open_object(source, hash_limit=0)) as opened:
                yield from opened.copy_into(staged, None)
            components += max(1, opened.record.components)
        yield store.at(target.bucket).commit(target, staged, draft, components=components)
    finally:
        staged.discard()


def copy(
    store: ObjectStore,
    source: ObjectRef,
    target: ObjectRef,
    redraft: Callable[[ObjectRecord], Draft],
) -> Steps:
    """Copy an object; `redraft` makes the copy's properties from the source's."""
    with closing(store.at(source.bucket).open_object(source, hash_limit=0)) as opened:
        record, staged = opened.record, store.stage()
        try:
            known = Checksums(record.md5, record.crc32c) if record.crc32c else None
            yield from opened.copy_into(staged, known)
            yield store.at(target.bucket).commit(
                target, staged, redraft(record), components=record.components
            )
        finally:
            staged.discard()


def move(
    store: ObjectStore,
    source: ObjectRef,
    target: ObjectRef,
    redraft: Callable[[ObjectRecord], Draft],
) -> Steps:
    """Rename an object within its bucket: it is copied first, then removed if it is still the same.

    A crash in between leaves both names, never neither.
    """
    if source.name == target.name:
        raise InvalidRequest("The source and the destination of a move are the same object.")
    at = store.at(source.bucket)
    record = at.read_record(source, hash_limit=0)
    if record.holds:
        raise held(source.bucket, source.name, record.holds)
    if record.deleted_ns:
        raise InvalidRequest(
            "Only the live generation of an object is moved. Copy the noncurrent one."
        )
    generation = record.generation
    pinned = replace(source, generation=generation, conditions=ALWAYS)
    with closing(copy(store, pinned, target, redraft)) as steps:
        while (copied := next(steps)) is None:
            yield None
    try:
        # By a condition: a generation that is named would be gone for good also in a bucket with versioning.
        same = Conditions(generation_match=generation)
        at.delete(ObjectRef(source.bucket, source.name, conditions=same))
    except PreconditionFailed as error:
        raise Unavailable("The source changed while it was moved. Try again.") from error
    yield copied
