"""Where the summaries of trials lie: below a directory of a bucket on this disk, or among the objects of a store elsewhere."""

from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

from trainshed.buckets.errors import BucketsError
from trainshed.buckets.layout import encode_segment
from trainshed.buckets.local import LocalStore
from trainshed.buckets.paths import parse_gs_uri
from trainshed.summaries.directories import LocalDirectory
from trainshed.summaries.following import MARK, Directory, EventFile

_LARGEST: Final = 256 << 20
"""Bytes of an object elsewhere that is fetched: it comes as a whole each time that it has changed."""


class BucketSummaries:
    """`controller.trial_summaries.SummaryPlaces` over the buckets."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def directory(self, uri: str, project: str) -> Directory | None:
        """See the protocol."""
        try:
            bucket, name = parse_gs_uri(uri)
            if not self._store.bucket_exists(bucket) or self._store.is_closed(bucket, project):
                return None
            name = name.rstrip("/")
            if self._store.is_remote(bucket):
                return _Elsewhere(self._store, bucket, f"{name}/" if name else "")
            segments = name.split("/") if name else []
            below = (part for segment in segments for part in encode_segment(segment))
            return LocalDirectory(self._store.directory(bucket), tuple(below))
        except BucketsError:
            return None


class _Elsewhere:
    """`summaries.following.Directory` of a bucket in a store elsewhere. Nobody says when something changes there."""

    def __init__(self, store: LocalStore, bucket: str, prefix: str) -> None:
        self._store = store
        self._bucket = bucket
        self._prefix = prefix

    def files(self, met: Callable[[int], None]) -> Iterator[EventFile]:
        try:
            for name, record in self._store.objects(self._bucket, self._prefix):
                if MARK in name.rpartition("/")[2] and record.size <= _LARGEST:
                    version = str(record.generation)
                    yield EventFile(name.removeprefix(self._prefix), version, version)
        except BucketsError as failure:
            raise OSError(str(failure)) from failure

    def open(self, file: EventFile) -> BinaryIO:
        try:
            return self._store.open(self._bucket, self._prefix + file.path)
        except BucketsError as failure:
            raise OSError(str(failure)) from failure
