"""`trainshed restore FROM`: a backup into an empty data directory."""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainshed.cli.moments import local_moment
from trainshed.cli.spelling import data_option, typed
from trainshed.serve.settings import SettingsError, load

if TYPE_CHECKING:
    from trainshed.serve.backup.manifest import Contents

_SHOWN = 10


@click.command(name="restore", short_help="Put a backup into an empty data directory.")
@click.argument("source", metavar="FROM")
@click.option("--data", type=click.Path(path_type=Path), help="Data directory [~/.trainshed].")
def command(source: str, data: Path | None) -> None:
    """Restore a backup from a directory, a tar file, or standard input (-) into a data directory that is empty or new.

    Every file is compared with the backup's list before any of it counts. Jobs that ran at the moment of the backup start
    again when the service does, as after the loss of their machine. Services whose data is elsewhere are not touched, the
    one that the backup was taken from included.
    """
    from trainshed.serve.backup.manifest import BackupUnusable
    from trainshed.serve.backup.restoring import restore

    try:
        settings = load(None, {"data": data})
    except SettingsError as failure:
        raise click.ClickException(str(failure)) from None
    os.umask(0o077)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if source != "-" and not Path(source).exists():
        raise click.ClickException(f"{source} is not there.")
    try:
        contents = restore(sys.stdin.buffer if source == "-" else Path(source), settings.data)
    except BackupUnusable as failure:
        raise click.ClickException(f"The backup cannot be used. {failure}") from None
    except OSError as failure:
        raise click.ClickException(f"Nothing was restored: {failure}") from None
    _tell(contents, settings.data, (settings.data / "settings.toml").exists())


def _tell(contents: "Contents", data: Path, has_settings: bool) -> None:
    click.echo(
        f"Restored {contents.jobs} jobs and {contents.objects} objects as of {local_moment(contents.created)} "
        f"(version {contents.version}) from a backup of {contents.data}."
    )
    if running := contents.running:
        click.echo(f"{len(running)} of the jobs ran or waited then, and will again:")
        for job in running[:_SHOWN]:
            click.echo(f"  {job.uid}  {job.name}  {job.state}")
        if len(running) > _SHOWN:
            click.echo(f"  and {len(running) - _SHOWN} more")
    for cause in contents.left_out:
        click.echo(f"NOT IN THE BACKUP: {cause}")
    config = f" --config {data / 'settings.toml'}" if has_settings else ""
    click.echo(f"Start it: {typed()} up{data_option(data)}{config}")
