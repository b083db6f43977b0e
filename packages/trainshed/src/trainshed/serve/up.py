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

_NAMED = 10
"""Jobs taken over that the terminal shows by name."""

_SETTINGS = {
    "host": "Address to listen on. Default: 127.0.0.1.",
    "port": "Port of the REST APIs; 0 = any free one. Default: 8080.",
    "grpc-port": "gRPC port without TLS, on loopback. Default: the REST port + 2.",
    "grpc-tls-port": "gRPC port with TLS. Default: the REST port + 3.",
    "tls-cert": "Certificate (PEM). Default: one of the service's own authority.",
    "tls-key": "Key of the certificate (PEM).",
    "data": "Data directory. Default: ~/.trainshed.",
    "engine": "Engine that runs the replicas. Default: local.",
    "nodes": "Virtual nodes of the local engine. Default: 1.",
    "capacity": "relaxed: run any job on what is here; strict: respect node sizes.",
    "node-cpus": "CPUs of each node. Default: its share of the machine.",
    "node-memory": "Memory of each node in GiB. Default: its share of the machine.",
    "node-accelerators": "Accelerators of each node: TYPE=COUNT,... Default: its share.",
    "isolation": "Isolation level: own-user, root, user or session. Default: the strongest.",
    "max-replicas": "Replicas that run at once; more wait. Default: 256.",
    "log-level": "Least level to log: debug, info, warning or error.",
}
"""Help of the options whose values are read as those of environment variables are."""


def _takes_settings(function: Callable[..., None]) -> Callable[..., None]:
    for name, text in reversed(_SETTINGS.items()):
        function = click.option(f"--{name}", metavar="VALUE", help=text)(function)
    return function


@click.command(name="up", short_help="Start the service.")
@_takes_settings
@click.option(
    "--tls", is_flag=True, default=None, help="Speak TLS at all ports; plain HTTP on this machine."
)
@click.option(
    "--insecure", is_flag=True, default=None, help="Speak plain HTTP with other machines, too."
)
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), help="TOML file of settings."
)
@click.option("-v", "--verbose", is_flag=True, help="Log every request: --log-level info.")
@click.option("--ready-fd", type=int, hidden=True)
@click.option("--detach", is_flag=True, help="Return when it serves; its output goes into up.log.")
@click.option("--stop-jobs-on-exit", is_flag=True, help="Cancel all jobs when the service stops.")
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
    """Start the service here and keep it in the foreground, or in the background with --detach.

    Stops within seconds on SIGTERM and Ctrl-C; jobs run on and are taken over at the next start, unless
    --stop-jobs-on-exit is given. Every setting can also stand in the TOML file of --config or in an
    environment variable such as TRAINSHED_PORT.
    """
    if sys.platform != "linux":
        raise click.ClickException(
            "The service runs on Linux. On other systems start it in a container or a virtual machine "
            "(docs/server.md), and have the commands call it: trainshed login URL."
        )
    if stop_with_parent:
        from trainshed.replica.system import kernel

        # Also if it is killed, so that no service is left that nobody knows of.
        kernel.die_with_parent(signal.SIGTERM)
    if verbose and overrides.get("log_level") is None:
        overrides["log_level"] = "info"
    settings = load(config, overrides, to_serve=True)
    # The service's files, including jobs' variables and logs, are only for their owner; programs get their
    # own umask.
    os.umask(0o077)
    try:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        close_directory(settings.data)
    except OSError as failure:
        raise click.ClickException(
            f"The data directory {settings.data} cannot be made: {failure.strerror}. "
            "Choose another one with --data or $TRAINSHED_DATA."
        ) from None
    if ready_fd is None and (running := _running(settings.data)):
        click.echo(running)
        return
    if detach:
        from trainshed.cli.processes import start

        start([word for word in sys.argv[1:] if word != "--detach"], settings.data)
        output = settings.data / "up.log"
        click.echo(f"{output.read_text().rstrip()}\nWhat it says from now on: {output}")
        return
    configure(settings.log_format, settings.log_level, plain)

    def announce(document: dict[str, Any]) -> None:
        if emulate:
            # Whoever has started it does so too, if it is not killed before.
            atexit.register(shutil.rmtree, settings.data, ignore_errors=True)
        _say_addresses(settings, document)
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
        # Of any kind: a full disk shows in errors of the store, of the engine and of the file system.
        if _is_disk_full(failure):
            raise click.ClickException(
                f"The disk that holds the data directory {settings.data} is full, so nothing can be stored "
                "there. Make room on it and start again; programs that run wait for room as well and lose "
                "nothing."
            ) from None
        from trainshed.core.errors import FailedPrecondition, Unavailable
        from trainshed.engines.port import LevelUnavailable

        if isinstance(failure, (LevelUnavailable, FailedPrecondition, Unavailable)):
            raise click.ClickException(str(failure)) from None
        raise


def close_directory(data: Path) -> None:
    """Remove the rights of other users from the data directory. Files of programs in it, in buckets for
    example, belong to the user of the service. Raises ClickException for a directory that also serves other
    purposes, such as `/tmp`."""
    mode = stat.S_IMODE(data.stat().st_mode)
    if not mode & 0o077:
        return
    if mode & stat.S_ISVTX or data.resolve() == Path("/"):
        raise click.ClickException(
            f"The directory {data} is shared by all users of this machine (mode {mode:o}). The service would "
            f"close it to them. Use a directory of its own, such as --data {data / 'trainshed'}."
        )
    try:
        data.chmod(0o700)
    except OSError as failure:
        why = f"and cannot be closed: {failure.strerror}. Run chmod 700 {data} as its owner."
    else:
        why = "and is closed to them now (mode 700)."
    click.echo(
        f"The data directory {data} was open to other users (mode {mode:o}), {why}", err=True
    )


def _running(data: Path) -> str | None:
    """Return where the service of a data directory already runs, for people; None if none runs there."""
    from trainshed.cli.connection import data_option, local

    try:
        endpoint = local(data)
    except click.ClickException:
        return None
    option = data_option(data)
    return (
        f"A service already runs at {endpoint.rest} (process {endpoint.pid}, data in {data}). It keeps the "
        f"settings of its own start.\nStop it with its jobs: trainshed down{option}\n"
        "Start another service: trainshed up --data DIRECTORY --port 0"
    )


def _serve(
    settings: "Settings",
    announce: Callable[[dict[str, Any]], None],
    emulation: "Emulation | None",
    *,
    stop_jobs: bool,
) -> None:
    # Nothing that is loaded is garbage, and to search it again and again would take a part of the start.
    # `Service` turns the collector on again once it has begun its work.
    gc.disable()
    last_sign = _last_written(settings.data)
    import uvloop

    from trainshed.serve import delegation
    from trainshed.serve.bootstrap import Bootstrap, close_to_others
    from trainshed.serve.service import Service

    delegation.prepare()

    if mended := close_to_others(settings.data):
        click.echo(f"NOTE: {mended}", err=True)

    async def serve(bootstrap: Bootstrap) -> None:
        await Service(
            bootstrap, announce, emulation, last_sign=last_sign, stop_jobs=stop_jobs
        ).run()

    with (
        contextlib.ExitStack() as cleanup,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop,
    ):
        loop.run(serve(Bootstrap(settings, cleanup)))


def _say_addresses(settings: "Settings", document: Mapping[str, Any]) -> None:
    """Show on the terminal where the service can be reached, and what else an operator is told at the
    start."""
    from trainshed.cli.connection import data_option, known_login
    from trainshed.cli.text.moments import counted
    from trainshed.cli.text.tables import first_few
    from trainshed.serve.service import say

    option = data_option(settings.data)
    pages = "".join(f"Look at it in a browser: {link}\n" for link in document["links"])
    if document["has_pages"] and not pages:
        pages = f"Look at it in a browser: trainshed console{option} prints a link\n"
    say(
        f"Trainshed serves {document['rest']} (process {os.getpid()}, data in {settings.data}).\n{pages}"
        f'Point clients at it:    eval "$(trainshed env{option})"\n'
        f"Stop it with its jobs:  trainshed down{option}"
    )
    if not settings.port:
        port = document["rest"].rpartition(":")[2]
        say(f"The next start chooses another port. To keep it: trainshed up{option} --port {port}")
    if login := known_login():
        say(f"You are signed in at {login['url']}, where commands go: trainshed login --forget")
    if taken_over := document["taken_over"]:
        names = first_few(taken_over, _NAMED)
        say(f"Taken over: {counted(len(taken_over), 'job')} ({names}).")
    if is_loopback(settings.host):
        return
    say(f"Add a person: trainshed tokens create EMAIL --role roles/aiplatform.user{option}")
    if not speaks_tls(settings):
        say(
            f"NOTE: without TLS in front, tokens and what is typed into shells go to {settings.host} as"
            " they are; gRPC has a port with TLS."
        )


def _last_written(data: Path) -> Nanos:
    """Return when the last service of a data directory wrote to its database (ns since the epoch), 0 = there
    was none. It may have run somewhat longer than that."""
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
