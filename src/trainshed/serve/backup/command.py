"""`trainshed backup DIR|-`: all that a service must not lose, as of now, while jobs run."""

import os
import signal
import sys
from pathlib import Path

import click

from trainshed.cli.moments import local_moment
from trainshed.serve import clock
from trainshed.serve.settings import SettingsError, load

_STDOUT = "-"


@click.command(name="backup", short_help="Copy what a service must not lose, while jobs run.")
@click.argument("target", metavar="DIR|-")
@click.option("--data", type=click.Path(path_type=Path), help="Data directory [~/.trainshed].")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A TOML file of settings, which is taken along.",
)
def command(target: str, data: Path | None, config: Path | None) -> None:
    """Write a backup into DIR, which must be empty or new, or as a tar stream to standard output (-).

    The service may run: jobs, logs and objects are as of one moment. The backup holds keys and tokens and is readable by you
    alone. Not in it: objects in stores elsewhere, runtimes, what failed replicas left, working directories of replicas that
    run. A backup that was interrupted is refused by `trainshed restore`.
    """
    from trainshed.serve.backup.sinks import DirectorySink, TarSink
    from trainshed.serve.backup.taking import take
    from trainshed.store.port import StoreUnreadable

    try:
        settings = load(config, {"data": data})
    except SettingsError as failure:
        raise click.ClickException(str(failure)) from None
    place = settings.data.resolve()
    _require_ours(place)
    os.umask(0o077)
    # So that a half of a backup is removed when this is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if target == _STDOUT:
        if sys.stdout.isatty():
            raise click.UsageError(
                "The archive would go to the terminal. Send it to a file or a pipe."
            )
        sink = TarSink(sys.stdout.buffer)
    else:
        _require_empty(Path(target).resolve(), place)
        sink = DirectorySink(Path(target))
    try:
        contents = take(place, sink, now=clock.now(), config=config)
    except BaseException as failure:
        sink.abandon()
        if isinstance(failure, StoreUnreadable | OSError):
            raise click.ClickException(f"No backup was made: {failure}.") from None
        raise
    running = f", {len(contents.running)} of them not over" if contents.running else ""
    click.echo(
        f"Backed up {place} as of {local_moment(contents.created)}: {contents.jobs} jobs{running}, "
        f"{contents.objects} objects.",
        err=True,
    )
    for cause in contents.left_out:
        click.echo(f"LEFT OUT: {cause}", err=True)


def _require_ours(data: Path) -> None:
    if not (data / "trainshed.db").exists():
        raise click.ClickException(
            f"{data} is no data directory of a service: it has no trainshed.db. Name one with --data."
        )
    owner = data.stat().st_uid
    if owner != os.geteuid():
        raise click.ClickException(
            f"{data} belongs to the user with number {owner}. Take the backup as that user: files that another one makes "
            "there would keep the service out."
        )


def _require_empty(target: Path, data: Path) -> None:
    if target.is_relative_to(data):
        raise click.ClickException(
            f"{target} lies in the data directory itself. Choose another place."
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise click.ClickException(
            f"{target} is not an empty directory. Choose a new one for each backup."
        )
