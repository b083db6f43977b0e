"""`trainshed backup DIR`: creates a backup of a data directory, whether or not its service runs.

The database is copied first, in one read transaction. The time of the transaction is the time of the backup.
All files that the database refers to were written before its commit: the last lines of a job before its end,
the files of a model before the model. The files are copied after the database, so none is missing. Objects
that were written later do no harm.

Only logs of attempts in the database are copied. Otherwise a later attempt of a restored job would append to
the log of another attempt.

The file of generations is copied after the objects, so that no generation is used twice.
"""

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Final

import click
import msgspec

from trainshed.access import sealing
from trainshed.access.job_tokens import KEY_FILE
from trainshed.buckets.disk.catalog import state_directory
from trainshed.buckets.disk.files import key_of
from trainshed.buckets.disk.generations import TABLE as GENERATIONS
from trainshed.buckets.disk.generations import Generations
from trainshed.buckets.disk.objects import ObjectStore, OpenObject
from trainshed.buckets.disk.records import FILE as RECORDS
from trainshed.buckets.disk.records import RecordTable
from trainshed.buckets.disk.tree import DIRECTORY_MODE
from trainshed.buckets.errors import BucketsError, NotFound
from trainshed.buckets.port import FileIdentity, ObjectRecord, ObjectRef
from trainshed.cli.connection import local, require_local_service
from trainshed.cli.output import show_progress
from trainshed.cli.text.moments import counted, local_moment
from trainshed.core.units import Nanos
from trainshed.replica.system import durable
from trainshed.serve import clock
from trainshed.serve.backup.manifest import FILE, FORMAT, Contents, Entry, RunningJob, fill
from trainshed.serve.settings import load
from trainshed.store.points import POINTS
from trainshed.store.port import StoreUnreadable
from trainshed.store.sqlite.connections import DATABASE_FILE
from trainshed.store.sqlite.copying import StoredWork, check_database, copy_database, works_in

_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
_BLOCK = 1 << 20
_MAX_ATTEMPTS = 3
_KEYS: Final = (KEY_FILE, "owner.token")
_TEMPORARY: Final = ".backup-"


def _private(path: Path) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, _FILE_MODE), "wb")


class Backup:
    """Creates a backup of the data directory `data` in an empty or new directory that only its owner can
    read. `temporary`: a directory on the same disk as `data`."""

    def __init__(self, data: Path, into: Path, temporary: Path) -> None:
        self._data = data
        self._into = into
        self._temporary = temporary
        self._entries: list[Entry] = []
        self._left_out: list[str] = []
        self._objects = 0

    def write(self, now: Nanos, config: Path | None) -> Contents:
        """Write the whole backup, the manifest last. Blocks during the copy.

        `now`: the current time in nanoseconds since the epoch. `config`: a file of settings to include.
        Raises OSError, and StoreUnreadable if the database is damaged.
        """
        # Read the keys before and after the database is copied. For each sealed value in the copy, at least
        # one of the two reads contains its key.
        sealing_keys = _lines(self._data / sealing.FILE)
        copy = self._temporary / DATABASE_FILE
        copy_database(self._data / DATABASE_FILE, copy)
        schema = check_database(copy)
        works = list(works_in(copy))
        self._copy_file(copy, DATABASE_FILE)
        self._copy_sealing_keys(sealing_keys)
        for path in [*_KEYS, *_files(self._data, "tls")]:
            self._copy_file(self._data / path, path)
        if config is not None:
            self._copy_file(config.resolve(), "settings.toml")
        for work in works:
            self._copy_logs(work)
        for path in _files(self._data, POINTS):
            self._copy_file(self._data / path, path)
        self._copy_buckets()
        from importlib.metadata import version  # Slow to import, so imported only here.

        contents = Contents(
            format=FORMAT,
            version=version("trainshed"),
            schema=schema,
            created=now,
            data=str(self._data),
            jobs=len(works),
            objects=self._objects,
            running=tuple(RunningJob(w.uid, w.name, w.state) for w in works if w.is_live),
            left_out=tuple(self._left_out),
            entries=tuple(self._entries),
        )
        # All other files must be on disk before the manifest, which completes the backup.
        os.sync()
        unfinished = self._into / f"{FILE}.new"
        with _private(unfinished) as file:
            file.write(msgspec.json.encode(contents))
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self._into / FILE)
        durable.sync_directory(str(self._into))
        return contents

    def _copy_sealing_keys(self, before: list[bytes]) -> None:
        now = _lines(self._data / sealing.FILE)
        keys = [*now, *(key for key in before if key not in now)]
        if keys:
            path = self._temporary / sealing.FILE
            path.write_bytes(b"".join(key + b"\n" for key in keys))
            self._copy_file(path, sealing.FILE)

    def _copy_logs(self, work: StoredWork) -> None:
        job = f"logs/{work.uid}"
        for attempt in _names(self._data / job):
            later = work.attempt is not None and attempt.isdecimal() and int(attempt) > work.attempt
            if not later:
                for path in _files(self._data, f"{job}/{attempt}"):
                    self._copy_file(self._data / path, path)

    def _copy_file(self, source: Path, path: str) -> None:
        """Copy a file up to its current length, because other processes may append to it. Ignore a missing
        file."""
        try:
            fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # The file never existed, or its job was deleted in the meantime.
        try:
            status = os.fstat(fd)
            if not self._copy_bytes(path, fd, status.st_mode, status.st_size, status.st_mtime_ns):
                raise OSError(f"{source} was truncated during the copy. Create the backup again")
        finally:
            os.close(fd)

    def _copy_bytes(self, path: str, fd: int, mode: int, size: int, mtime: int) -> bool:
        """Copy the first `size` bytes of an open file. If it has fewer bytes, return False and add no
        entry."""
        target = self._into / path
        target.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        with _private(target) as file:
            digest, written = fill(file, show_progress(path, size, _blocks(fd, size)))
        if written != size:
            target.unlink()
            return False
        os.utime(target, ns=(mtime, mtime))
        self._entries.append(Entry(path, mode & 0o777, size, mtime, digest))
        return True

    # --- buckets ---

    def _copy_buckets(self) -> None:
        root = self._data / "buckets"
        if not root.is_dir():
            return
        state = state_directory(root)
        with closing(ObjectStore(root)) as store:
            self._add_directory("buckets", 0o700)
            with (
                closing(RecordTable(self._temporary / RECORDS)) as table,
                closing(Generations(self._temporary)) as kept,
            ):
                for bucket in store.catalog.names():
                    self._copy_bucket(store, table, bucket)
                    self._copy_noncurrent(store, kept, bucket)
                if table.count() != self._objects:
                    raise OSError(
                        "The metadata of the objects in buckets could not be written. Free some space and "
                        "try again"
                    )
        for name in (RECORDS, GENERATIONS):
            self._copy_file(self._temporary / name, f"{state.name}/{name}")
        for path in (*_files(state, "buckets"), "generation"):
            self._copy_file(state / path, f"{state.name}/{path}")

    def _copy_bucket(self, store: ObjectStore, table: RecordTable, bucket: str) -> None:
        self._add_directory(f"buckets/{bucket}", DIRECTORY_MODE)
        files: set[str] = set()
        directories: set[str] = set()
        try:
            for entry in store.walk(bucket):
                parents = ["/".join(entry.dirs[:depth]) for depth in range(1, len(entry.dirs) + 1)]
                if files.intersection(parents):
                    # Omit this object. Its directory has replaced an object that is already in the backup, so
                    # the contents of the directory are newer than the backup.
                    continue
                path = "/".join((*entry.dirs, entry.leaf))
                for parent in parents:
                    if parent not in directories:
                        directories.add(parent)
                        self._add_directory(f"buckets/{bucket}/{parent}", DIRECTORY_MODE)
                record = self._copy_object(store, bucket, entry.name, f"buckets/{bucket}/{path}")
                if record is not None:
                    files.add(path)
                    self._objects += 1
                    table.put(key_of(bucket, entry.name), msgspec.json.encode(record))
        except NotFound:
            return  # The bucket was deleted in the meantime, or is in a remote store.

    def _copy_noncurrent(self, store: ObjectStore, kept: Generations, bucket: str) -> None:
        """Copy the noncurrent generations of a bucket with versioning."""
        state = state_directory(store.root)
        for name, record in store.generations.all_of(bucket):
            content = store.generations.content(bucket, name, record.generation)
            self._copy_file(content, f"{state.name}/{content.relative_to(state)}")
            kept.note(bucket, name, record)

    def _copy_object(self, store: ObjectStore, bucket: str, name: str, path: str) -> ObjectRecord | None:
        """Copy an object and return its record. Return None if it was deleted in the meantime or cannot be
        copied."""
        for _ in range(_MAX_ATTEMPTS):
            try:
                opened = store.open_object(ObjectRef(bucket, name), hash_limit=0)
            except NotFound:
                return None
            except BucketsError as failure:
                self._left_out.append(str(failure))
                return None
            try:
                if self._copy_content(opened, path):
                    return opened.record
            finally:
                opened.close()
        self._left_out.append(f"A program was rewriting gs://{bucket}/{name}.")
        return None

    def _copy_content(self, opened: OpenObject, path: str) -> bool:
        """Copy an open object. Return False if a program has rewritten it in the meantime. Appending to it
        does no harm."""
        record, mode = opened.record, os.fstat(opened.fd).st_mode
        if not self._copy_bytes(path, opened.fd, mode, record.size, record.file.mtime_ns):
            return False
        if record.crc32c and FileIdentity.of(os.fstat(opened.fd)) != record.file:
            self._entries.pop()
            return False
        return True

    def _add_directory(self, path: str, mode: int) -> None:
        self._entries.append(Entry(path, mode))


def _blocks(fd: int, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of an open file, or all its bytes if it has fewer."""
    start = 0
    while start < size and (block := os.pread(fd, min(_BLOCK, size - start), start)):
        start += len(block)
        yield block


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split()
    except FileNotFoundError:
        return []


def _names(directory: Path) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _files(top: Path, directory: str) -> Iterator[str]:
    """Yield the regular files below a directory of `top`, in order, as paths relative to `top`. Yield none if
    the directory does not exist."""
    for name in _names(top / directory):
        path = top / directory / name
        if path.is_dir() and not path.is_symlink():
            yield from _files(top, f"{directory}/{name}")
        elif path.is_file() and not path.is_symlink():
            yield f"{directory}/{name}"


@click.command(name="backup", short_help="Back up a data directory while jobs run.")
@click.argument("target", metavar="DIR")
@click.option("--data", type=click.Path(path_type=Path), help="Data directory. Default: ~/.trainshed.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="TOML file of settings to include in the backup.",
)
@click.option("--url", metavar="URL", help="Address of the service, which must be on this machine.")
def command(*, target: str, data: Path | None, config: Path | None, url: str | None) -> None:
    """Write a backup into DIR, which must be empty or new.

    The service may run: the backup shows jobs, logs and objects at one point in time. It contains keys and
    tokens, and only you can read it. It does not contain objects in remote stores, runtimes, files of failed
    replicas, or working directories of running replicas. trainshed restore refuses an interrupted backup.
    """

    settings = load(config, {"data": data})
    place = settings.data.resolve()
    if url:
        require_local_service(local(settings.data), url, "backup")
    _require_own_directory(place)
    os.umask(0o077)
    # SIGTERM then raises KeyboardInterrupt, so that an unfinished backup is removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    into = Path(target)
    _require_empty(into.resolve(), place)
    is_new = not into.exists()
    into.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    into.chmod(_DIRECTORY_MODE)
    # Hold a lock on the data directory, so that only one backup runs at a time. All temporary directories in
    # it are then remains of killed backups, and can be removed.
    lock = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    for left in place.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(left, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=place) as temporary:
            contents = Backup(place, into, Path(temporary)).write(clock.now(), config)
    except BaseException as failure:
        for path in into.iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
        if is_new:
            into.rmdir()
        if isinstance(failure, StoreUnreadable | OSError):
            raise click.ClickException(f"No backup was created: {failure}.") from None
        raise
    running = f", {len(contents.running)} of them unfinished" if contents.running else ""
    click.echo(
        f"Backed up {place} as of {local_moment(contents.created)}: "
        f"{counted(contents.jobs, 'job')}{running}, {counted(contents.objects, 'object')}.",
        err=True,
    )
    for cause in contents.left_out:
        click.echo(f"LEFT OUT: {cause}", err=True)


def _require_own_directory(data: Path) -> None:
    if not (data / "trainshed.db").exists():
        raise click.ClickException(
            f"{data} is not a data directory of a service: it has no trainshed.db. Choose one with --data."
        )
    owner = data.stat().st_uid
    if owner != os.geteuid():
        raise click.ClickException(
            f"{data} belongs to the user with the UID {owner}. Create the backup as that user: files of "
            "other users would prevent the service from starting."
        )


def _require_empty(target: Path, data: Path) -> None:
    if target.is_relative_to(data):
        raise click.ClickException(f"{target} is in the data directory. Choose another directory.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise click.ClickException(f"{target} is not an empty directory. Choose a new one for each backup.")
