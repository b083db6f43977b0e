"""Helpers that write and read objects of a bucket store in the same way as its callers."""

from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.port import Conditions, Draft, ObjectRecord, ObjectRef

BUCKET = "bucket"


def put(
    store: ObjectStore,
    name: str,
    content: bytes = b"x",
    conditions: Conditions = Conditions(),  # noqa: B008 it is frozen
    draft: Draft = Draft(),  # noqa: B008 likewise
) -> ObjectRecord:
    staged = store.stage()
    try:
        staged.write(content)
        return store.commit(ObjectRef(BUCKET, name, conditions=conditions), staged, draft)
    finally:
        staged.discard()


def get(store: ObjectStore, name: str, generation: int | None = None) -> bytes:
    opened = store.open_object(ObjectRef(BUCKET, name, generation))
    try:
        return b"".join(opened.blocks(0, opened.record.size))
    finally:
        opened.close()
