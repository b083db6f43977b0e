"""`trainshed up`: starts a service with its options, and runs it."""

import asyncio
import atexit
import contextlib
import errno
import gc
import json
import os
import shutil
import signal
import sqlite3
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli.text.colours import plain
from trainshed.core.units import Nanos
from trainshed.httpd.hosts import is_loopback
from trainshed.serve.settings import load, speaks_tls
from trainshed.telemetry.lines import configure

if TYPE_CHECKING:
    from trainshed.serve.emulation import Emulation
    from trainshed.serve.settings import Settings

_MAX_LISTED = 10
"""Maximum number of adopted jobs that the terminal lists."""

_SETTINGS = {
    "host": "Address to listen on. Default: 127.0.0.1.",
    "port": "Port of the REST APIs; 0 = any free port. Default: 8080.",
    "grpc-port": "gRPC port without TLS, on loopback. Default: the REST port + 2.",
    "grpc-tls-port": "gRPC port with TLS. Default: the REST port + 3.",
    "tls-cert": "Certificate (PEM). Default: a certificate of the service's own authority.",
    "tls-key": "Key of the certificate (PEM).",
    "data": "Data directory. Default: ~/.trainshed.",
    "engine": "Engine that runs replicas. Default: local.",
    "nodes": "Virtual nodes of the local engine. Default: 1.",
    "capacity": "relaxed: run any job on this machine; strict: respect node sizes.",
    "node-cpus": "CPUs of each node. Default: its share of the machine.",
    "node-memory": "Memory of each node in GiB. Default: its share of the machine.",
    "node-accelerators": "Accelerators of each node: TYPE=COUNT,... Default: its GPUs.",
    "isolation": "Isolation level: own-user, root, user or session. Default: the strongest.",
    "max-replicas": "Maximum number of running replicas. Default: 256.",
    "log-level": "Minimum level of log lines: debug, info, warning or error.",
}
"""Help of options whose values have the same form as environment variables."""


def _add_settings(function: Callable[..., None]) -> Callable[..., None]:
    for name, text in reversed(_SETTINGS.items()):
        function = click.option(f"--{name}", metavar="VALUE", help=text)(function)
    return function


@click.command(name="up", short_help="Start the service.")
@_add_settings
@click.option(
    "--tls",
    is_flag=True,
    default=None,
    help="Use TLS on all ports. Programs on this machine may still use plain HTTP.",
)
@click.option("--insecure", is_flag=True, default=None, help="Accept plain HTTP from other machines too.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file with the settings of the service. Default: no file.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log every request. Same as --log-level info.")
@click.option("--ready-fd", type=int, hidden=True)
@click.option(
    "--detach",
    is_flag=True,
    help="Return when the service is ready. The service then logs to up.log in the data directory.",
)
@click.option(
    "--stop-jobs-on-exit",
    is_flag=True,
    help="Cancel all jobs when the service stops. Default: programs of jobs continue to run.",
)
@click.option("--stop-with-parent", is_flag=True, hidden=True)
@click.option("--emulate", is_flag=True, hidden=True)
@click.option("--plan", type=click.Path(path_type=Path), hidden=True)
@click.option("--capture", type=click.Path(path_type=Path), hidden=True)
def command(
    *,
    ready_fd: int | None,
    stop_jobs_on_exit: bool,
    stop_with_parent: bool,
    emulate: bool,
    plan: Path | None,
    capture: Path | None,
    verbose: bool,
    detach: bool,
    config: Path | None,
    **overrides: Any,
) -> None:
    """Start the service in the foreground, or in the background with --detach.

    The service stops within seconds on SIGTERM and Ctrl-C. Its jobs continue, and the next start adopts them,
    unless you specify --stop-jobs-on-exit. Every setting can also be in the TOML file of --config, or in an
    environment variable such as TRAINSHED_PORT.
    """
    if sys.platform != "linux":
        raise click.ClickException(
            "The service requires Linux. On other systems, run it in a container or a virtual machine "
            "(docs/server.md), and sign in to it with: trainshed login URL"
        )
    if stop_with_parent:
        from trainshed.replica.system import kernel

        # Stop even if the parent process is killed, so that no forgotten service remains.
        kernel.die_with_parent(signal.SIGTERM)
    if verbose and overrides.get("log_level") is None:
        overrides["log_level"] = "info"
    settings = load(config, overrides, to_serve=True)
    # Only the owner may read the service's files, which include jobs' variables and logs. Programs have their
    # own umask.
    os.umask(0o077)
    try:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        close_directory(settings.data)
    except OSError as failure:
        raise click.ClickException(
            f"The data directory {settings.data} cannot be created: {failure.strerror}. Choose another one "
            "with --data or $TRAINSHED_DATA."
        ) from None
    if ready_fd is None and (running := _running(settings.data)):
        click.echo(running)
        return
    if detach:
        from trainshed.cli.processes import start

        start([word for word in sys.argv[1:] if word != "--detach"], settings.data)
        output = settings.data / "up.log"
        click.echo(f"{output.read_text().rstrip()}\nFurther output: {output}")
        return
    configure(settings.log_format, settings.log_level, plain)

    def announce(document: dict[str, Any]) -> None:
        if emulate:
            # Delete the emulator's temporary directory here too, because a parent process that is killed does
            # not delete it.
            atexit.register(shutil.rmtree, settings.data, ignore_errors=True)
        _print_addresses(settings, document)
        if ready_fd is not None:
            with os.fdopen(ready_fd, "w") as parent:
                parent.write(json.dumps(document) + "\n")

    try:
        emulation = None
        if emulate:
            from trainshed.serve.emulation import Emulation

            emulation = Emulation(plan, capture)
        _serve(settings, announce, emulation, stop_jobs=stop_jobs_on_exit)
    except Exception as failure:
        # Handle exceptions of any type, because a full disk causes errors of the store, the engine and the
        # file system.
        if _is_disk_full(failure):
            raise click.ClickException(
                f"The disk of the data directory {settings.data} is full, so the service cannot store "
                "anything. Free some space and start it again. Running programs wait for space and lose "
                "nothing."
            ) from None
        from trainshed.core.errors import FailedPrecondition, Unavailable
        from trainshed.engines.port import LevelUnavailable

        if isinstance(failure, (LevelUnavailable, FailedPrecondition, Unavailable)):
            raise click.ClickException(str(failure)) from None
        raise


def close_directory(data: Path) -> None:
    """Remove the access of other users to the data directory. Files of programs in it, such as buckets,
    belong to the user of the service. Raises ClickException for a directory with other purposes, such as
    `/tmp`."""
    mode = stat.S_IMODE(data.stat().st_mode)
    if not mode & 0o077:
        return
    if mode & stat.S_ISVTX or data.resolve() == Path("/"):
        raise click.ClickException(
            f"The directory {data} is shared by all users of this machine (mode {mode:o}), and the service "
            f"would close it to them. Use a separate directory, such as --data {data / 'trainshed'}."
        )
    try:
        data.chmod(0o700)
    except OSError as failure:
        why = f"and its mode cannot be changed: {failure.strerror}. Run chmod 700 {data} as its owner."
    else:
        why = "and is now closed to them (mode 700)."
    click.echo(f"The data directory {data} was open to other users (mode {mode:o}), {why}", err=True)


def _running(data: Path) -> str | None:
    """Return a message about the running service of a data directory, or None if no service runs."""
    from trainshed.cli.connection import data_option, local

    try:
        endpoint = local(data)
    except click.ClickException:
        return None
    option = data_option(data)
    return (
        f"A service already runs at {endpoint.rest} (process {endpoint.pid}, data in {data}), with the "
        f"settings of its start.\nStop it and its jobs: trainshed down{option}\nStart another service: "
        "trainshed up --data DIRECTORY --port 0"
    )


def _serve(
    settings: "Settings",
    announce: Callable[[dict[str, Any]], None],
    emulation: "Emulation | None",
    *,
    stop_jobs: bool,
) -> None:
    # Disable garbage collection, because it would delay the start: modules and objects of the start are not
    # garbage. `Service` enables garbage collection when it is ready.
    gc.disable()
    last_sign = _last_written(settings.data)
    import uvloop

    from trainshed.serve import delegation
    from trainshed.serve.bootstrap import Bootstrap
    from trainshed.serve.data_directory import close_to_others
    from trainshed.serve.service import Service

    delegation.prepare()

    if mended := close_to_others(settings.data):
        click.echo(f"NOTE: {mended}", err=True)

    async def serve(bootstrap: Bootstrap) -> None:
        await Service(bootstrap, announce, emulation, last_sign=last_sign, stop_jobs=stop_jobs).run()

    with contextlib.ExitStack() as cleanup, asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(serve(Bootstrap(settings, cleanup)))


def _print_addresses(settings: "Settings", document: Mapping[str, Any]) -> None:
    """Print the addresses of the service and notes for the operator."""
    from trainshed.cli.connection import data_option, known_login
    from trainshed.cli.text.moments import counted
    from trainshed.cli.text.tables import first_few
    from trainshed.serve.service import print_line

    option = data_option(settings.data)
    pages = "".join(f"Open it in a browser: {link}\n" for link in document["links"])
    if document["has_pages"] and not pages:
        pages = f"To open it in a browser, print a link: trainshed console{option}\n"
    print_line(
        f"Trainshed serves {document['rest']} (process {os.getpid()}, data in "
        f'{settings.data}).\n{pages}Point clients at it:    eval "$(trainshed env{option})"\nStop it and '
        f"its jobs:   trainshed down{option}"
    )
    if not settings.port:
        port = document["rest"].rpartition(":")[2]
        print_line(
            f"The next start chooses another port. To keep this one: trainshed up{option} --port {port}"
        )
    if login := known_login():
        print_line(
            f"You are signed in at {login['url']}, which your commands use. To sign out: trainshed login "
            "--forget"
        )
    if taken_over := document["taken_over"]:
        names = first_few(taken_over, _MAX_LISTED)
        print_line(f"Adopted {counted(len(taken_over), 'job')} ({names}).")
    if is_loopback(settings.host):
        return
    print_line(f"Add a user: trainshed tokens create EMAIL --role roles/aiplatform.user{option}")
    if not speaks_tls(settings):
        print_line(
            f"NOTE: without TLS, tokens and the input of shells reach {settings.host} unencrypted. Use a "
            "proxy with TLS, or the option --tls."
        )


def _last_written(data: Path) -> Nanos:
    """Return the time of the last write to the database in a data directory, in nanoseconds since the epoch;
    0 = never. The last service may have run for somewhat longer."""
    times: list[int] = []
    for name in ("trainshed.db", "trainshed.db-wal"):
        with contextlib.suppress(OSError):
            times.append((data / name).stat().st_mtime_ns)
    return max(times, default=0)


def _is_disk_full(failure: BaseException) -> bool:
    cause: BaseException | None = failure
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        code = getattr(cause, "sqlite_errorcode", 0)
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE):
            return True
        cause = cause.__cause__
    return False
