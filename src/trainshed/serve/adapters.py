"""Fits the bucket store's door to what other rooms ask of it: packages, job directories, bucket names."""

from typing import BinaryIO

from trainshed.buckets.errors import BucketsError
from trainshed.buckets.local import LocalStore
from trainshed.buckets.paths import parse_gs_uri


class BucketDoor:
    """One adapter for three small protocols: `runtimes.port.PackageSource`, `controller.carrier.JobDirProbe`
    and `api.services.BucketProbe`."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def open(self, uri: str) -> BinaryIO:
        """The object's content. Raises FileNotFoundError with the URI."""
        try:
            return self._store.open(*parse_gs_uri(uri))
        except BucketsError as failure:
            raise FileNotFoundError(f"{uri} cannot be read: {failure}") from None

    def fingerprint(self, uri: str) -> str:
        """Changes whenever the object does. Raises FileNotFoundError with the URI."""
        try:
            return self._store.fingerprint(*parse_gs_uri(uri))
        except BucketsError as failure:
            raise FileNotFoundError(f"{uri} cannot be read: {failure}") from None

    def write_probe(self, uri: str) -> None:
        """Raises ValueError saying why nothing can be written below the URI."""
        try:
            self._store.write_probe(*parse_gs_uri(uri))
        except BucketsError as failure:
            raise ValueError(str(failure)) from None

    def bucket_location(self, name: str) -> str | None:
        """Where a bucket is; None if there is no such bucket (an illegal name is the name of none)."""
        try:
            return self._store.bucket(name).location
        except BucketsError:
            return None
