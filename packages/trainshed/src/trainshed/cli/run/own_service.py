"""`trainshed run --local`: a service of one command's own, which ends with it."""

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import click

from trainshed.cli import processes
from trainshed.cli.connection import Endpoint, answering

_ARGUMENTS = (
    *("--host", "127.0.0.1", "--grpc-port", "0", "--grpc-tls-port", "0", "--engine", "local"),
    *("--stop-jobs-on-exit", "--stop-with-parent"),
)


@contextlib.contextmanager
def own_service(data: Path | None) -> Generator[Endpoint]:
    """Start a service on a free port of this machine; in the end it cancels its jobs, and stops. `data`: its
    data directory, which stays; None = one in a temporary directory, which is removed.

    Ctrl-C, SIGTERM and SIGHUP end it as well; so does SIGKILL of this process, on Linux, which leaves the
    directory. Raises click.ClickException if it does not start, SystemExit with status 130 after Ctrl-C.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    temporary = None if data else Path(tempfile.mkdtemp(prefix="trainshed-run-"))
    directory = data or temporary
    assert directory is not None
    try:
        service = processes.start(directory.absolute(), _ARGUMENTS)
        try:
            yield answering(service.endpoint)
        except KeyboardInterrupt:
            click.echo("Cancelling the job: its program has the service's grace to end.", err=True)
            raise SystemExit(130) from None
        finally:
            # Until the service has ended, its programs run and its directory is in use.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            service.stop()
    finally:
        if temporary is not None:
            shutil.rmtree(temporary)
