"""Adapts the bucket store to the protocols of other packages: packages, job directories, bucket names, access
checks, summaries and copies."""

import hashlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

from trainshed.access.job_tokens import JobClaims
from trainshed.access.principals import member_of
from trainshed.api.calls.services import ContentDigest
from trainshed.buckets.admission import admit
from trainshed.buckets.callers import Caller
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.disk.tree import encode_segment
from trainshed.buckets.errors import BucketsError, Forbidden, InvalidRequest, NotFound, no_such_bucket
from trainshed.buckets.names import parse_gs_uri
from trainshed.buckets.port import ObjectRecord, ObjectRef
from trainshed.core import errors
from trainshed.core.patterns import fixed_part, matches
from trainshed.core.units import Bytes, Nanos
from trainshed.engines.port import EngineUnavailable
from trainshed.summaries.directories import LocalDirectory, LogDirectory, ShownDirectory
from trainshed.summaries.reading import MARK, Directory, EventFile


class BucketAdapter:
    """Adapts buckets to `runtimes.port.PackageSource`, `api.calls.services.BucketProbe`, and two methods of
    `controller.carrier.Ports`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def open(self, uri: str) -> BinaryIO:
        """Open the object's content. Raises FileNotFoundError if the object does not exist, OSError if it
        cannot be read."""
        with _reading(uri):
            return self._store.content(*parse_gs_uri(uri))

    def fingerprint(self, uri: str) -> str:
        """Return a text that changes whenever the object changes. Raises FileNotFoundError, OSError as `open`
        does."""
        with _reading(uri):
            return str(self._record(*parse_gs_uri(uri)).generation)

    def visible_buckets(self, project: str) -> tuple[tuple[str, str], ...]:
        """Return the buckets that a project's programs see as /gcs/NAME: the directory of each, by name.
        Raises EngineUnavailable if they cannot be read; the job then waits."""
        try:
            return self._store.catalog.visible_buckets(project)
        except OSError as failure:
            raise EngineUnavailable(
                f"the directory of the buckets cannot be read ({failure}); restore it, or restart the "
                "service to create an empty one"
            ) from failure

    def write_probe(self, uri: str, project: str, account: str) -> None:
        """Raise ValueError, with the reason, if a program cannot write below the URI."""
        try:
            bucket, prefix = parse_gs_uri(uri)
            program = Caller(account, program=JobClaims(0, 0, "", project, account))
            admit(program, "storage.objects.create", self._store.catalog.access(bucket))
            self._store.write_probe(bucket, prefix)
        except BucketsError as failure:
            raise ValueError(str(failure)) from None

    def make_directory(self, uri: str) -> None:
        """Create the directory of a gs:// URI. Raises FailedPrecondition if that is not possible."""
        try:
            self._store.make_directory(*parse_gs_uri(uri))
        except BucketsError as failure:
            raise errors.FailedPrecondition(str(failure)) from failure

    def last_written(self, uri: str) -> Nanos | None:
        """Return the time of the last write below the URI; 0 = no object exists, None = unknown."""
        try:
            # Add a final slash, because `model-old/` is not below `model`.
            bucket, prefix = parse_gs_uri(f"{uri.rstrip('/')}/")
            return Nanos(self._store.bucket_store(bucket).last_written(bucket, prefix))
        except NotFound:
            return Nanos(0)  # The bucket does not exist, so it contains no objects.
        except BucketsError:
            return None

    def ensure(self, name: str, location: str, project: str) -> None:
        with _storing(f"The bucket gs://{name} of the project {project} cannot be created"):
            self._store.catalog.ensure(name, location, project)

    def forget(self, accounts: Iterable[str]) -> None:
        """Remove service accounts from the policies of all buckets. Raises Unavailable."""
        with _storing("The policies of buckets cannot be changed"):
            self._store.catalog.remove_members(set(map(member_of, accounts)))

    def bucket_location(self, name: str) -> str | None:
        """Return a bucket's location. Return None if the name is invalid or the bucket does not exist."""
        try:
            return self._store.catalog.get(name).location
        except BucketsError:
            return None

    def is_closed(self, name: str, project: str, account: str | None = None) -> bool:
        return self._store.catalog.is_closed(name, project, account)

    def is_unmounted(self, name: str) -> bool:
        return self._store.catalog.is_unmounted(name)

    def digest(self, uri: str, limit: Bytes) -> ContentDigest:
        hashed, size = hashlib.sha256(), 0
        try:
            bucket, name = parse_gs_uri(uri)
            if self._store.catalog.is_remote(bucket):
                return ContentDigest(unknown="is in a remote store")
            with self._store.content(bucket, name) as content:
                while block := content.read(_BLOCK):
                    hashed.update(block)
                    size += len(block)
                    if size > limit:
                        return ContentDigest(size=Bytes(size), unknown="is too large to be read now")
        except (NotFound, InvalidRequest):
            return ContentDigest(unknown="does not exist yet")
        except (BucketsError, OSError) as failure:
            return ContentDigest(unknown=f"cannot be read ({failure})")
        return ContentDigest(hashed.hexdigest(), Bytes(size))

    def has_object(self, uri: str) -> bool:
        try:
            bucket, name = parse_gs_uri(uri)
            if (begins := fixed_part(name)) == name:
                self._record(bucket, name)
                return True
            objects = self._store.all_of(bucket, begins)
            return any(matches(name, present) for present, _ in objects)
        except BucketsError:
            return False

    def _record(self, bucket: str, name: str) -> ObjectRecord:
        return self._store.bucket_store(bucket).read_record(ObjectRef(bucket, name), hash_limit=0)


@contextmanager
def _storing(what: str) -> Generator[None]:
    try:
        yield
    except OSError as failure:
        raise errors.Unavailable(
            f"{what}: {failure.strerror}. Free some space, or mount the disk writable, and try again."
        ) from failure


@contextmanager
def _reading(uri: str) -> Generator[None]:
    try:
        yield
    except (NotFound, InvalidRequest) as failure:
        raise FileNotFoundError(f"{uri} cannot be read: {failure}") from None
    except Forbidden as failure:
        raise PermissionError(f"{uri} cannot be read: {failure}") from None
    except BucketsError as failure:
        raise OSError(f"{uri} cannot be read: {failure}") from None


_BLOCK: Final = 1 << 20
_MAX_REMOTE_SIZE: Final = 256 << 20
"""Maximum size in bytes of a remote object that is read. The whole object is fetched again after each change.
"""


def find_summaries(store: ObjectStore, uri: str, project: str, account: str) -> Directory | None:
    """Return the directory of a URI. Return None if programs of the project that run as the account may not
    read it."""
    try:
        bucket, name = _readable(store, uri, project, account)
    except BucketsError:
        return None
    if store.catalog.is_remote(bucket):
        return _RemoteDirectory(store, bucket, f"{name}/" if name else "")
    return LocalDirectory(store.catalog.directory(bucket), path_below(name))


def _readable(store: ObjectStore, uri: str, project: str, account: str) -> tuple[str, str]:
    """Return the bucket and the directory of a URI. Raises InvalidRequest, and NotFound for missing and for
    unreadable buckets."""
    bucket, name = parse_gs_uri(uri)
    if not store.catalog.exists(bucket) or store.catalog.is_closed(bucket, project, account):
        raise no_such_bucket(bucket)
    return bucket, name.rstrip("/")


def find_log_directory(store: ObjectStore, wanted: LogDirectory) -> ShownDirectory | None:
    """Return the location of a directory on disk, or None if it contains no event file. Raises
    FailedPrecondition for a remote bucket."""
    try:
        bucket, name = _readable(store, wanted.uri, wanted.project, wanted.account)
    except BucketsError:
        return None
    if store.catalog.is_remote(bucket):
        raise errors.FailedPrecondition(
            f"The bucket of {wanted.uri} is in a remote store, but TensorBoard only reads files on this "
            f"disk. Run it where the bucket is readable: tensorboard --logdir {wanted.uri}"
        )
    base, below = store.catalog.directory(bucket), path_below(name)
    directory = LocalDirectory(base, below)
    try:
        if next(directory.files(), None) is None:
            return None
        return ShownDirectory(wanted.label, base, below, directory.identity())
    except OSError:
        return None


def path_below(name: str) -> tuple[str, ...]:
    """Return the encoded names of the directories that lead from the root of a bucket to the directory
    `name`."""
    return tuple(map(encode_segment, name.split("/"))) if name else ()


class _RemoteDirectory:
    """A directory in a bucket of a remote store, in the form of `summaries.reading.Directory`."""

    def __init__(self, store: ObjectStore, bucket: str, prefix: str) -> None:
        self._store = store
        self._bucket = bucket
        self._prefix = prefix

    def files(self) -> Iterator[EventFile]:
        try:
            for name, record in self._store.all_of(self._bucket, self._prefix):
                if MARK in name.rpartition("/")[2] and record.size <= _MAX_REMOTE_SIZE:
                    version = str(record.generation)
                    written = record.updated_ns / 1e9
                    yield EventFile(name.removeprefix(self._prefix), version, written)
        except BucketsError as failure:
            raise OSError(str(failure)) from failure

    def open(self, file: EventFile) -> BinaryIO:
        try:
            return self._store.content(self._bucket, self._prefix + file.path)
        except BucketsError as failure:
            raise OSError(str(failure)) from failure
