"""`trainshed restore FROM`: restores a backup into an empty data directory. All files are checked first. If a
check or a copy fails, nothing is restored."""

import hashlib
import os
import shutil
import signal
from pathlib import Path

import click

from trainshed.cli.connection import data_option
from trainshed.cli.text.moments import counted, local_moment
from trainshed.replica.system import durable
from trainshed.serve.backup.manifest import FILE, UNFINISHED, BackupUnusable, Contents, Entry, decode, fill
from trainshed.serve.settings import load
from trainshed.store.port import StoreUnreadable
from trainshed.store.sqlite.connections import DATABASE_FILE
from trainshed.store.sqlite.copying import check_database

_BLOCK = 1 << 20
_MAX_LISTED = 10
"""Maximum number of jobs that are listed."""


def restore(source: Path, data: Path) -> Contents:
    """Restore the backup in a directory. Blocks. Raises BackupUnusable, OSError, and FileExistsError if
    `data` is not empty."""
    is_new = not data.exists()
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(data.iterdir()):
        raise FileExistsError(f"{data} is not empty. Restore into a new directory, or empty this one.")
    place = data / UNFINISHED
    place.mkdir(mode=0o700)
    try:
        contents = _fill(source, place)
        os.sync()
        # Move the database last: a data directory with the database then also contains all other files.
        for path in sorted(place.iterdir(), key=lambda path: path.name == DATABASE_FILE):
            path.rename(data / path.name)
        durable.sync_directory(str(data))
        place.rmdir()
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        if is_new and not any(data.iterdir()):
            data.rmdir()
        raise
    return contents


def _fill(source: Path, place: Path) -> Contents:
    try:
        contents = decode((source / FILE).read_bytes())
    except FileNotFoundError:
        raise BackupUnusable(
            f"{source} has no file {FILE}, so it is not a complete backup. Use another backup."
        ) from None
    for entry in contents.entries:
        if entry.sha256:
            try:
                _copy(source, place, entry)
            except FileNotFoundError:
                raise BackupUnusable(f"The file {entry.path} is missing. Use another backup.") from None
        else:
            (place / entry.path).mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        check_database(place / DATABASE_FILE)
    except StoreUnreadable as failure:
        raise BackupUnusable(
            f"This version cannot use the backup's database ({failure}). Restore the backup with version "
            f"{contents.version}."
        ) from failure
    for entry in contents.entries:
        (place / entry.path).chmod(entry.mode)
        if entry.sha256:
            os.utime(place / entry.path, ns=(entry.mtime, entry.mtime))
    return contents


def _copy(source: Path, place: Path, entry: Entry) -> None:
    """Copy a file, and check the copy. Raises BackupUnusable if its checksum is wrong."""
    path = place / entry.path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(source / entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file, path.open("x+b") as target:
        fill(target, iter(lambda: file.read(_BLOCK), b""))
        target.seek(0)
        if hashlib.file_digest(target, "sha256").hexdigest() != entry.sha256:
            raise BackupUnusable(f"The checksum of {entry.path} is wrong. Use another backup.")


@click.command(name="restore", short_help="Restore a backup into an empty data directory.")
@click.argument("source", metavar="FROM")
@click.option("--data", type=click.Path(path_type=Path), help="Data directory. Default: ~/.trainshed.")
def command(*, source: str, data: Path | None) -> None:
    """Restore the backup in the directory FROM into an empty or new data directory.

    Every file is checked against the backup's list first. Jobs that ran at the time of the backup start again
    together with the service, as after the loss of their machine. Other services are not changed, including
    the source of the backup.
    """
    settings = load(None, {"data": data})
    os.umask(0o077)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not Path(source).is_dir():
        raise click.ClickException(f"The directory {source} does not exist.")
    try:
        contents = restore(Path(source), settings.data)
    except BackupUnusable as failure:
        raise click.ClickException(f"The backup cannot be used. {failure}") from None
    except OSError as failure:
        raise click.ClickException(f"Nothing was restored: {failure}") from None
    click.echo(
        f"Restored {counted(contents.jobs, 'job')} and {counted(contents.objects, 'object')} as of "
        f"{local_moment(contents.created)} (version {contents.version}) from a backup of {contents.data}."
    )
    if running := contents.running:
        click.echo(f"{len(running)} of the jobs were unfinished, and will run again:")
        for job in running[:_MAX_LISTED]:
            click.echo(f"  {job.uid}  {job.name}  {job.state}")
        if len(running) > _MAX_LISTED:
            click.echo(f"  and {len(running) - _MAX_LISTED} more")
    for cause in contents.left_out:
        click.echo(f"NOT IN THE BACKUP: {cause}")
    saved = settings.data / "settings.toml"
    config = f" --config {saved}" if saved.exists() else ""
    click.echo(f"To start the service: trainshed up{data_option(settings.data)}{config}")
