"""In-memory buckets and split plans over them, for tests of the step that splits datasets."""

from collections.abc import Iterator
from typing import Any

from trainshed.core.datasets.plans import SplitPlan, SplitRule
from trainshed.core.datasets.records import DataFiles, DatasetKind, DatasetName
from trainshed.core.patterns import matches
from trainshed.datasets.port import Written
from trainshed.datasets.step import write_splits
from trainshed.datasets.storage import Storage, StoredObject

NAME = DatasetName("p", "us-central1", "7")
OUT = "gs://b/out/dataset-7-tables-now"


class Memory(Storage):
    """In-memory buckets. Blocks have a few bytes, so that reads cross every block border."""

    def __init__(self, objects: dict[str, bytes], block: int = 7) -> None:
        self.objects = dict(objects)
        self.block = block

    def list_objects(self, pattern: str) -> list[StoredObject]:
        uris = sorted(uri for uri in self.objects if matches(pattern, uri))
        return [StoredObject(uri, len(self.objects[uri]), "1") for uri in uris]

    def read(self, uri: str) -> bytes | None:
        return self.objects.get(uri)

    def blocks(self, source: StoredObject) -> Iterator[bytes]:
        content = self.objects[source.uri]
        for at in range(0, len(content), self.block):
            yield content[at : at + self.block]

    def write(self, uri: str, content: bytes, content_type: str) -> None:
        self.objects[uri] = content

    def copy(self, source: StoredObject, target: str) -> bool:
        if source.uri not in self.objects:
            return False
        self.objects[target] = self.objects[source.uri]
        return True

    def delete(self, uri: str) -> None:
        self.objects.pop(uri, None)


def table_plan(*uris: str, rule: SplitRule | None = None) -> SplitPlan:
    files = (DataFiles(uris or ("gs://b/in/*.csv",)),)
    return SplitPlan(NAME, DatasetKind.TABULAR, files, rule or SplitRule(), OUT)


def item_plan(kind: DatasetKind, *files: DataFiles, rule: SplitRule | None = None) -> SplitPlan:
    return SplitPlan(NAME, kind, files, rule or SplitRule(), OUT)


def write_files(plan: SplitPlan, buckets: Memory, **options: Any) -> Written:
    return write_splits(plan, buckets, lambda text: None, **options)


def shards(buckets: Memory, split: str) -> list[bytes]:
    """Return the contents of the files of a split, in order."""
    uris = sorted(uri for uri in buckets.objects if uri.startswith(f"{OUT}/{split}-"))
    return [buckets.objects[uri] for uri in uris]
