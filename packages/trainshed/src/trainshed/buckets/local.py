"""Gives other parts of the service synchronous access to the buckets, without HTTP.

It reads the files that the bucket process serves (rename makes every read a whole object) and makes buckets;
it never writes objects. ``runtimes`` fetches packages through it, and the validation of a job's ``jobDir``
probes through it (spec/submit#job-directory).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from msgspec.structs import replace

from trainshed.buckets.admission import readable, shown
from trainshed.buckets.disk.objects import ObjectStore, OpenObject
from trainshed.buckets.disk.tree import MARK, is_absent, open_directory, place_of
from trainshed.buckets.errors import Forbidden, NotFound
from trainshed.buckets.names import validate_object_name
from trainshed.buckets.port import Draft, ObjectRecord, ObjectRef, Query
from trainshed.buckets.settings import promises
from trainshed.buckets.setup import PLAIN, BucketRules


class LocalStore:
    """The buckets of a service. Blocking; safe to use from several threads and beside the bucket process."""

    def __init__(
        self,
        root: Path,
        *,
        now: Callable[[], int] = time.time_ns,
        rules: BucketRules = PLAIN,
    ) -> None:
        self._store = ObjectStore(root, now=now, rules=rules)
        self.catalog = self._store.catalog

    def shown(self, project: str) -> tuple[tuple[str, str], ...]:
        """Returns (name, directory) of every bucket that programs of a project see as ``/gcs/NAME``, sorted:
        those that all of them may read and write, and that are on this disk."""
        held = ((name, self.catalog.holding(name)) for name in self.catalog.names())
        return tuple(
            (name, str(self.catalog.directory(name)))
            for name, holding in held
            if holding is not None and not self.is_unmounted(name) and shown(project, holding)
        )

    def is_closed(self, bucket: str, project: str) -> bool:
        """Whether a bucket exists but programs of a project may read nothing in it, under any service
        account."""
        holding = self.catalog.holding(bucket)
        return holding is not None and not readable(project, holding)

    def is_remote(self, bucket: str) -> bool:
        """Whether the bucket's objects are in a remote store, so that it is no directory."""
        return self.catalog.rules.is_remote(bucket)

    def is_unmounted(self, bucket: str) -> bool:
        """Whether there is such a bucket and programs do not see it as ``/gcs/BUCKET``: it is remote, or it
        promises to keep objects, which a directory cannot."""
        with suppress(NotFound):
            return self.is_remote(bucket) or bool(promises(self.catalog.get(bucket).settings))
        return False

    def open(self, bucket: str, name: str) -> BinaryIO:
        """Returns the object's content, open for reading. Raises ``NotFound``. A remote object is fetched
        first."""
        opened = self._store.at(bucket).open_object(ObjectRef(bucket, name), hash_limit=0)
        if isinstance(opened, OpenObject):
            return os.fdopen(opened.fd, "rb")
        file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 the caller closes it
        try:
            for block in opened.blocks(0, opened.record.size):
                file.write(block)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file

    def exists(self, bucket: str, name: str) -> bool:
        """Whether the object exists; False also if its bucket does not."""
        try:
            self._store.at(bucket).read_record(ObjectRef(bucket, name), hash_limit=0)
        except NotFound:
            return False
        return True

    def fingerprint(self, bucket: str, name: str) -> str:
        """Returns a text that changes whenever the object does. Raises ``NotFound``. It reads no content."""
        record = self._store.at(bucket).read_record(ObjectRef(bucket, name), hash_limit=0)
        return str(record.generation)

    def objects(self, bucket: str, prefix: str = "") -> Iterator[tuple[str, ObjectRecord]]:
        """Yields (name, record) of all objects with a prefix, on this disk or remote, in the order of their
        UTF-8 bytes."""
        query = Query(prefix=prefix)
        while True:
            page = self._store.at(bucket).list(bucket, query)
            yield from page.objects
            if not page.next_page_token:
                return
            query = replace(query, page_token=page.next_page_token)

    def last_written(self, bucket: str, prefix: str = "") -> int:
        """Returns when an object with the prefix was last written (ns); 0 if there is none. It looks at each
        of them."""
        return self._store.at(bucket).last_written(bucket, prefix)

    def write_probe(self, bucket: str, prefix: str = "") -> None:
        """Raise unless objects below ``prefix`` can be written now; leaves nothing behind.

        Creates and removes a hidden file in the deepest directory of the prefix that exists. Raises
        ``NotFound`` (no such bucket), ``InvalidRequest`` (illegal prefix), ``Forbidden``.
        """
        name = validate_object_name(f"{prefix.rstrip('/')}/x".lstrip("/"))
        if self.is_remote(bucket):
            self._probe_elsewhere(bucket, name)
            return
        try:
            with self.catalog.opened(bucket) as base:
                _probe(base, place_of(name).dirs)
        except OSError as error:
            raise Forbidden(
                f"gs://{bucket}/{prefix} cannot be written: {error.strerror}. "
                "Check the permissions and the free space of the bucket's directory."
            ) from error

    def _probe_elsewhere(self, bucket: str, beside: str) -> None:
        probe = ObjectRef(bucket, f"{beside[:-1]}{MARK}probe-{os.urandom(6).hex()}")
        store, staged = self._store.at(bucket), self._store.stage()
        try:
            store.commit(probe, staged, Draft())
            store.delete(probe)
        finally:
            staged.discard()


def _probe(base: int, dirs: tuple[str, ...]) -> None:
    """Create and remove a hidden file in the deepest of the directories that exists."""
    leaf = f"{MARK}probe-{os.urandom(6).hex()}"
    for depth in range(len(dirs), -1, -1):
        try:
            parent = open_directory(base, dirs[:depth])
        except OSError as error:
            if not is_absent(error):
                raise
            continue
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(leaf, flags, 0o600, dir_fd=parent))
            os.unlink(leaf, dir_fd=parent)
        finally:
            os.close(parent)
        return
