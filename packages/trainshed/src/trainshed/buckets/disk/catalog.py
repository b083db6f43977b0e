"""Stores the list of buckets and their properties.

A bucket is a directory below the store's root. Its properties are in a small file in the hidden part of the
store. A directory without such a file, which an operator may create, is a bucket with default properties.
"""

import base64
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from trainshed.buckets.admission import (
    PUBLIC,
    BucketAccess,
    is_public,
    is_readable,
    is_visible,
    without_members,
)
from trainshed.buckets.disk.generations import Generations
from trainshed.buckets.disk.records import lock_directory
from trainshed.buckets.disk.tree import DIRECTORY_FLAGS, DIRECTORY_MODE, Walk
from trainshed.buckets.errors import Conflict, InvalidRequest, NotFound, PreconditionFailed, no_such_bucket
from trainshed.buckets.names import validate_bucket_name
from trainshed.buckets.port import ALWAYS, Conditions
from trainshed.buckets.settings import merge_settings, prevents_public_access, protections, reject_unsupported
from trainshed.buckets.setup import PLAIN, BucketRules
from trainshed.core.names import DEFAULT_BUCKET
from trainshed.replica.system import durable

DEFAULT_LOCATION = "US"
_REMOTE_BUCKET = "bucket, whose objects are in a remote store"


class BucketRecord(Struct, frozen=True):
    name: str
    location: str
    #: Creation time in ns since the epoch. `updated_ns` has the same unit.
    created_ns: int
    updated_ns: int
    metageneration: int = 1
    #: The bucket's editable properties, by their names in the public API.
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    #: The bindings of the bucket's IAM policy.
    policy: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    #: The project that created the bucket; None = the service's own project.
    project: str | None = None

    @property
    def etag(self) -> str:
        """A tag that changes with each change of the bucket's properties or policy."""
        return base64.b64encode(str(self.metageneration).encode()).decode()


def state_directory(root: Path) -> Path:
    """Return the hidden directory for all data other than objects (records, uploads, locks). It is next to
    the root and on the same file system. A program with the root as `/gcs` cannot reach it."""
    return root.with_name(f"{root.name}.state")


class BucketCatalog:
    """Creates, finds, changes and deletes buckets. Blocking. Thread-safe and process-safe."""

    def __init__(self, root: Path, now: Callable[[], int], rules: BucketRules = PLAIN) -> None:
        self._root = root
        self._now = now
        self.rules = rules
        #: The settings tables of individual buckets, by bucket name.
        self.tables = {table.name: table for table in rules.tables}
        self._records = state_directory(root) / "buckets"
        self._trash = state_directory(root) / "tmp"
        self.generations = Generations(state_directory(root))
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._records.mkdir(parents=True, exist_ok=True)
        self._trash.mkdir(parents=True, exist_ok=True)
        for table in rules.tables:
            if table.is_remote and not self._record(table.name).exists():
                record = BucketRecord(table.name, DEFAULT_LOCATION, now(), now())
                durable.write(str(self._record(table.name)), msgspec.json.encode(record), is_shared=True)

    def directory(self, bucket: str) -> Path:
        """Return the visible tree of a bucket, which is bind-mounted at `/gcs/BUCKET`."""
        return self._root / validate_bucket_name(bucket)

    def is_remote(self, bucket: str) -> bool:
        """Whether the bucket is configured to be in a remote store."""
        table = self.tables.get(bucket)
        return table is not None and table.is_remote

    def exists(self, bucket: str) -> bool:
        """Whether the bucket exists. Raises `InvalidRequest` for an invalid name."""
        path = self.directory(bucket)
        return self.is_remote(bucket) or (path.is_dir() and not path.is_symlink())

    def names(self, prefix: str = "") -> list[str]:
        """Return all buckets whose names start with `prefix`, sorted."""
        names = {table.name for table in self.rules.tables if table.is_remote}
        for path in self._root.iterdir():
            # Skip files and directories in the root whose names are not valid bucket names.
            with suppress(InvalidRequest):
                if self.exists(path.name):
                    names.add(path.name)
        return sorted(name for name in names if name.startswith(prefix))

    def access(self, bucket: str) -> BucketAccess | None:
        """Return the project and access rules of the bucket, or None if it does not exist."""
        try:
            return self._access(self.get(bucket))
        except (InvalidRequest, NotFound):
            return None

    def _access(self, record: BucketRecord) -> BucketAccess:
        table = self.tables.get(record.name)
        shared = table is not None and table.shared
        policy = record.policy
        if policy and prevents_public_access(record.settings):
            policy = [without_members(binding, PUBLIC) for binding in policy]
        return BucketAccess(record.name, self.project_of(record), shared, policy)

    def visible_buckets(self, project: str) -> tuple[tuple[str, str], ...]:
        """Return (name, directory) of every bucket that programs of a project see as `/gcs/NAME`, sorted.
        These are the local buckets that all programs of the project may read and write."""
        visible: list[tuple[str, str]] = []
        for name in self.names():
            with suppress(NotFound):  # Omit a bucket that another request has deleted.
                record = self.get(name)
                if not self._is_unmounted(record) and is_visible(project, self._access(record)):
                    visible.append((name, str(self.directory(name))))
        return tuple(visible)

    def is_unmounted(self, bucket: str) -> bool:
        """Whether the bucket exists but is not visible as `/gcs/BUCKET`. Such a bucket is remote, or protects
        objects from deletion, which a directory cannot enforce."""
        with suppress(NotFound):
            return self._is_unmounted(self.get(bucket))
        return False

    def _is_unmounted(self, record: BucketRecord) -> bool:
        return self.is_remote(record.name) or bool(protections(record.settings))

    def is_closed(self, bucket: str, project: str, account: str | None = None) -> bool:
        """Whether the bucket exists but programs of a project cannot read it as this service account; None =
        as any of the project's accounts."""
        access = self.access(bucket)
        return access is not None and not is_readable(project, access, account)

    def project_of(self, record: BucketRecord) -> str:
        table = self.tables.get(record.name)
        project = table.project if table is not None else None
        if record.name == DEFAULT_BUCKET:
            # Ignore the stored project of the default bucket, because the service's project may have changed
            # since the bucket was created.
            project = project or self.rules.project
        return project or record.project or self.rules.project

    @contextmanager
    def open_directory(self, bucket: str) -> Generator[int]:
        """Open the bucket's directory, yield its descriptor, and close it afterwards. Raises `NotFound`."""
        try:
            base = os.open(self.directory(bucket), DIRECTORY_FLAGS)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise no_such_bucket(bucket) from error
        try:
            yield base
        finally:
            os.close(base)

    def get(self, bucket: str) -> BucketRecord:
        """Return the bucket's properties. Raises `NotFound`."""
        if not self.exists(bucket):
            raise no_such_bucket(bucket)
        try:
            encoded = self._record(bucket).read_bytes()
        except FileNotFoundError:
            created = self.directory(bucket).stat().st_mtime_ns
            return BucketRecord(bucket, DEFAULT_LOCATION, created, created)
        record = msgspec.json.decode(encoded, type=BucketRecord)
        table = self.tables.get(bucket)
        if table is not None and table.is_remote and table.region:
            return replace(record, location=table.region.upper())
        return record

    def create(
        self,
        bucket: str,
        location: str = DEFAULT_LOCATION,
        settings: Mapping[str, Any] | None = None,
        project: str | None = None,
    ) -> BucketRecord:
        """Create a bucket durably. `project`: None = the service's own project. Raises `Conflict` if the
        bucket exists, `InvalidRequest`, and `NotSupported` for unsupported settings."""
        path = self.directory(bucket)
        now = self._now()
        kept = merge_settings({}, settings or {})
        where = (location or DEFAULT_LOCATION).upper()
        owner = project or self.rules.project
        record = BucketRecord(bucket, where, now, now, 1, kept, project=owner)
        with lock_directory(self._records):
            if path.exists() or self.is_remote(bucket):
                raise _conflict_error(bucket, owner, self.access(bucket))
            durable.write(str(self._record(bucket)), msgspec.json.encode(record), is_shared=True)
            # Create the directory under another name, and rename it when its mode is set. Otherwise the
            # bucket would exist for a moment with the mode that `mkdir` sets.
            made = self._trash / f"bucket-{os.urandom(8).hex()}"
            made.mkdir()
            made.chmod(DIRECTORY_MODE)
            made.rename(path)
            durable.sync_directory(str(self._root))
        return record

    def ensure(
        self, bucket: str, location: str = DEFAULT_LOCATION, project: str | None = None
    ) -> BucketRecord:
        """Return the bucket, and create it if it does not exist."""
        try:
            return self.create(bucket, location, project=project)
        except Conflict:
            return self.get(bucket)

    def patch(
        self, bucket: str, changes: Mapping[str, Any], conditions: Conditions = ALWAYS, *, whole: bool = False
    ) -> BucketRecord:
        """Merge `changes` into the editable properties of a bucket. A value of None removes a property.
        `labels` are merged by key. `whole`: also remove all properties that are not in `changes`. Raises
        `NotFound`, `InvalidRequest`, `NotSupported`."""
        with lock_directory(self._records):
            record = self.get(bucket)
            conditions.check(0, record.metageneration)
            settings = merge_settings({} if whole else record.settings, changes)
            if self.is_remote(bucket):
                reject_unsupported(protections(settings), _REMOTE_BUCKET)
            return self._save(replace(record, settings=settings))

    def set_policy(self, bucket: str, bindings: list[dict[str, Any]], etag: str = "") -> BucketRecord:
        """Store the bindings of the bucket's IAM policy, which `admission` applies. `etag`: the expected tag
        of the bucket; "" = any. Raises `PreconditionFailed` if the tag differs, or if the bucket prevents
        public access and a binding is public."""
        with lock_directory(self._records):
            record = self.get(bucket)
            if etag not in ("", record.etag):
                raise PreconditionFailed(
                    f"The policy of {bucket} has changed since you read it. Read it again, repeat your "
                    "change, and send it with the new etag."
                )
            if prevents_public_access(record.settings) and any(map(is_public, bindings)):
                raise PreconditionFailed(
                    "The member bindings allUsers and allAuthenticatedUsers are not allowed since public "
                    "access prevention is enforced. Remove them, or set publicAccessPrevention to inherited."
                )
            return self._save(replace(record, policy=bindings))

    def remove_members(self, members: Set[str]) -> None:
        """Remove members from the policies of all buckets."""
        for bucket in self.names():
            with lock_directory(self._records), suppress(NotFound):
                record = self.get(bucket)
                bindings = (without_members(binding, members) for binding in record.policy)
                policy = [binding for binding in bindings if binding["members"]]
                if policy != record.policy:
                    self._save(replace(record, policy=policy))

    def delete(self, bucket: str, conditions: Conditions = ALWAYS) -> None:
        """Delete an empty bucket. Raises `NotFound`, and `Conflict` if the bucket contains objects."""
        path = self.directory(bucket)
        if self.is_remote(bucket):
            raise InvalidRequest(
                f"The bucket {bucket} is in a remote store and part of the service's configuration. Remove "
                "its [[buckets]] table from the settings. The bucket's content remains in the store."
            )
        with lock_directory(self._records):
            conditions.check(0, self.get(bucket).metageneration)
            self._require_empty(bucket, path)
            trash = self._trash / f"bucket-{os.urandom(8).hex()}"
            try:
                path.rename(trash)
            except FileNotFoundError as error:
                raise no_such_bucket(bucket) from error
            try:
                # A writer may have created an object before the rename. Check again, because no writer can
                # create one now.
                self._require_empty(bucket, trash)
            except Conflict:
                trash.rename(path)
                raise
            self._record(bucket).unlink(missing_ok=True)
            self.generations.forget(bucket)
            durable.sync_directory(str(self._root))
            shutil.rmtree(trash, ignore_errors=True)

    def _save(self, record: BucketRecord) -> BucketRecord:
        changed = replace(record, metageneration=record.metageneration + 1, updated_ns=self._now())
        durable.write(str(self._record(record.name)), msgspec.json.encode(changed), is_shared=True)
        return changed

    def _record(self, bucket: str) -> Path:
        return self._records / f"{bucket}.json"

    def _require_empty(self, bucket: str, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if next(iter(Walk(fd, "", b"")), None) is not None:
                raise Conflict("The bucket you tried to delete is not empty.")
        finally:
            os.close(fd)
        # Check noncurrent generations after the tree, because a deleted object becomes noncurrent before it
        # disappears from the tree.
        if next(self.generations.all_of(bucket), None) is not None:
            raise Conflict(
                "The bucket you tried to delete is not empty. You must delete all object versions in the "
                "bucket: list them with versions=true."
            )


def _conflict_error(bucket: str, project: str, access: BucketAccess | None) -> Conflict:
    if access is not None and access.project != project:
        return Conflict(
            "The requested bucket name is not available. Bucket names are shared by all projects. "
            f"Select a different name and try again. (bucket: {bucket})"
        )
    return Conflict(
        "Your previous request to create the named bucket succeeded and you already "
        f"own it. (bucket: {bucket})"
    )
