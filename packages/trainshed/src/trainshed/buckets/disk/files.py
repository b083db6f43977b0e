"""Finds, installs and removes the files of objects, without knowledge of requests.

The module owns the locks that serialise the writers of one object. It also implements the rule for objects
with the names `a` and `a/b`: the file `a` moves to its shadow place (see `tree`), so that a directory `a` can
be created. The move holds the lock of `a`.
"""

import os
import stat as stat_module
import threading
from collections.abc import Callable

from trainshed.buckets.content import Staged
from trainshed.buckets.disk.records import RecordStore
from trainshed.buckets.disk.tree import (
    SHADOW_DIR,
    ObjectFile,
    Place,
    directory,
    find,
    is_absent,
    make_directories,
    make_directory,
    place_of,
    status_of,
)
from trainshed.buckets.errors import (
    Conflict,
    Forbidden,
    Unavailable,
    condition_failed,
    hold_error,
    no_such_object,
)
from trainshed.buckets.names import validate_object_name
from trainshed.buckets.port import FileIdentity, ObjectRecord, ObjectRef

_LOCKS = 256
_ATTEMPTS = 50


def key_of(bucket: str, name: str) -> str:
    return f"{bucket}/{name}"


class ObjectFiles:
    """The files of an object store. Blocking and thread-safe."""

    def __init__(self, records: RecordStore) -> None:
        self.records = records
        self._locks = [threading.RLock() for _ in range(_LOCKS)]

    def lock(self, place: Place) -> threading.RLock:
        """Return the lock of the path of an object's file. Never hold two of these locks: objects with the
        same hash share a lock, so a deadlock would be possible."""
        return self._locks[hash((place.dirs, place.leaf)) % _LOCKS]

    def find(self, base: int, bucket: str, name: str) -> ObjectFile:
        """Open an object's file. Raises `NotFound` with the message of the public service, and `Forbidden` if
        the service may not read the file."""
        try:
            return find(base, place_of(validate_object_name(name)))
        except FileNotFoundError as error:
            raise no_such_object(bucket, name) from error
        except PermissionError as error:
            raise Forbidden(
                f"The service cannot read the file of {bucket}/{name}, because a program removed the "
                "permission to read it. Restore the permission through /gcs."
            ) from error

    def closed_record(self, base: int, bucket: str, name: str) -> ObjectRecord:
        """Return the known properties of an object whose file the service may not open. Raises `NotFound`."""
        try:
            return self.records.of_closed(status_of(base, place_of(name)))
        except OSError as error:
            raise no_such_object(bucket, name) from error

    def load(self, file: ObjectFile, bucket: str, name: str) -> ObjectRecord:
        key, lock = key_of(bucket, name), self.lock(place_of(name))
        return self.records.load(file.fd, file.stat, key, lock)

    def check(self, base: int, ref: ObjectRef) -> None:
        """Raise `PreconditionFailed` unless the existing object, or its absence, meets the conditions of
        `ref`. Raise `Held` if a hold forbids to replace the object."""
        try:
            file = find(base, place_of(validate_object_name(ref.name)))
        except FileNotFoundError:
            ref.conditions.check(0, 0)
            return
        try:
            record = self.load(file, ref.bucket, ref.name)
        finally:
            os.close(file.fd)
        ref.conditions.check(record.generation, record.metageneration)
        if record.holds:
            raise hold_error(ref.bucket, ref.name, record.holds)

    def install(
        self,
        base: int,
        ref: ObjectRef,
        staged: Staged,
        record: ObjectRecord,
        keep: Callable[[ObjectFile], None] | None = None,
    ) -> None:
        """Move a staged file with its record to the path of the object, durably, if the existing object meets
        the conditions of `ref`. `keep`: called before the move with the file that will be replaced."""
        place = place_of(ref.name)
        for _ in range(_ATTEMPTS):
            try:
                parent = make_directories(base, place.dirs, lambda path: self._make_way(base, path))
            except OSError as error:
                if is_absent(error):
                    continue  # Retry: another request pruned or replaced the directory.
                raise
            try:
                with self.lock(place):
                    self.check(base, ref)
                    exclusive = ref.conditions.must_be_absent
                    if self._put(base, parent, place, staged, keep, exclusive=exclusive):
                        self.records.note(key_of(ref.bucket, ref.name), record)
                        return
            finally:
                os.close(parent)
        raise Unavailable(
            "The object was not written, because programs change its directory at the same time. Try again."
        )

    def remove(self, base: int, bucket: str, name: str) -> None:
        """Remove the file of an object, durably: at its usual path, and at its shadow place (its path while a
        directory has its name) if a file is there."""
        while True:
            try:
                file = find(base, place_of(name))
            except FileNotFoundError:
                self.records.drop(key_of(bucket, name))
                return
            os.close(file.fd)
            with directory(base, file.dirs) as parent:
                os.unlink(file.leaf, dir_fd=parent)
                os.fsync(parent)
            self.records.forget(FileIdentity.of(file.stat))

    def save(self, fd: int, key: str, record: ObjectRecord) -> None:
        """Save the changed record of an open file. The caller syncs the file."""
        self.records.attach(fd, record)
        self.records.note(key, record)

    def _put(
        self,
        base: int,
        parent: int,
        place: Place,
        staged: Staged,
        keep: Callable[[ObjectFile], None] | None,
        *,
        exclusive: bool,
    ) -> bool:
        """Try once to install the staged file. The caller holds the object's lock. Return False if the file's
        directory was deleted."""
        try:
            old = find(base, place)
        except FileNotFoundError:
            old = None
        if old is not None:
            try:
                if keep is not None:
                    keep(old)
            finally:
                os.close(old.fd)
        try:
            if self._rename(staged, parent, place.leaf, exclusive=exclusive):
                if old is not None and old.dirs != place.dirs:
                    # The new file is at the object's usual path, because no directory has its name any more.
                    # Delete the old file at the shadow place (`tree`).
                    self._drop(base, old)
            else:
                make_directory(parent, SHADOW_DIR)
                with directory(parent, (SHADOW_DIR,)) as shadow:
                    if not self._rename(staged, shadow, place.leaf, exclusive=exclusive):
                        path = "/".join((*place.dirs, SHADOW_DIR, place.leaf))
                        raise Conflict(
                            "The object was not written, because a program created a directory at the path "
                            f"of its file. Delete the directory in a job: rm -r '/gcs/BUCKET/{path}'"
                        )
        except FileNotFoundError:
            if not staged.path.exists():
                raise
            return False
        if old is not None:
            self.records.forget(FileIdentity.of(old.stat))
        return True

    @staticmethod
    def _rename(staged: Staged, parent: int, leaf: str, *, exclusive: bool) -> bool:
        """Move the file to `leaf`, durably. Return False if `leaf` is a directory."""
        try:
            if exclusive:
                os.link(staged.path, leaf, dst_dir_fd=parent, follow_symlinks=False)
                staged.path.unlink()
            else:
                os.rename(staged.path, leaf, dst_dir_fd=parent)
        except FileExistsError as error:
            status = os.stat(leaf, dir_fd=parent, follow_symlinks=False)
            if stat_module.S_ISDIR(status.st_mode):
                return False
            raise condition_failed() from error
        except IsADirectoryError:
            return False
        os.fsync(parent)
        return True

    def _make_way(self, base: int, path: tuple[str, ...]) -> None:
        """Move the file at `path` to its shadow place (see `tree`), so that a directory can be created at
        `path`."""
        dirs, leaf = path[:-1], path[-1]
        with self.lock(Place(dirs, leaf)), directory(base, dirs) as parent:
            try:
                status = os.stat(leaf, dir_fd=parent, follow_symlinks=False)
                if stat_module.S_ISDIR(status.st_mode):
                    return
                if not stat_module.S_ISREG(status.st_mode):
                    raise Conflict(
                        f"The entry '{'/'.join(path)}' of the bucket's directory is neither a file nor a "
                        "directory, so no object can be stored below it. Remove the entry through /gcs."
                    )
                make_directory(parent, SHADOW_DIR)
                with directory(parent, (SHADOW_DIR,)) as shadow:
                    os.rename(leaf, leaf, src_dir_fd=parent, dst_dir_fd=shadow)
                    os.fsync(shadow)
                os.fsync(parent)
            except FileNotFoundError:
                return  # Nothing to move: the file was deleted in the meantime.

    def _drop(self, base: int, file: ObjectFile) -> None:
        try:
            with directory(base, file.dirs) as parent:
                os.unlink(file.leaf, dir_fd=parent)
        except OSError as error:
            if not is_absent(error):
                raise
