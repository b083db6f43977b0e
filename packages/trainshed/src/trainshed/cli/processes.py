"""Starts a service process on this machine and waits until the service is ready. Also stops a service process
and waits for its exit. Waits for kernel events, without polling."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path

import click

from trainshed.cli.connection import Endpoint, local, with_defaults

_START_TIMEOUT = 120
"""Maximum seconds until a new service must be ready."""

_STOP_TIMEOUT = 60

_TAIL_LINES = 15
"""Number of last lines of a service's output that an error contains."""


def start(words: Sequence[str], data: Path) -> "subprocess.Popen[bytes]":
    """Start a service and wait until it is ready. The service continues after this command ends.

    `words`: the words of a `trainshed` command line. `data`: the data directory. Raises click.ClickException
    with the last lines of the service's output if the service does not become ready.
    """
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    output = data / "up.log"
    reading, writing = os.pipe()
    command = [sys.executable, "-P", "-m", "trainshed", *words]
    try:
        with output.open("ab" if _runs(data) else "wb") as log:
            before = log.tell()
            process = subprocess.Popen(
                [*command, "--ready-fd", str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                # The service has its own session, so Ctrl-C reaches only this command. This command then
                # decides whether to stop the service.
                start_new_session=True,
            )
    finally:
        os.close(writing)
    try:
        with os.fdopen(reading, "rb") as ready:
            line = _first_line(ready.fileno())
        try:
            json.loads(line)
        except ValueError:
            raise click.ClickException(
                f"The service did not start. The end of {output}:\n{_tail(output, before)}"
            ) from None
    except BaseException:
        # Stop the service on every error and on Ctrl-C, because the user does not know about the service yet.
        process.terminate()
        raise
    return process


def _first_line(descriptor: int) -> bytes:
    """Return the line that a service prints when it is ready; b"" if it exits or does not become ready in
    time."""
    message = b""
    while not message.endswith(b"\n"):
        readable, _, _ = select.select([descriptor], [], [], _START_TIMEOUT)
        part = os.read(descriptor, 65536) if readable else b""
        if not part:
            return b""
        message += part
    return message


def _runs(data: Path) -> bool:
    """Return whether a service with this data directory already runs. Such a service writes to the same
    output file, so the file must not be truncated."""
    try:
        return bool(local(data).pid)
    except click.ClickException:
        return False


def _tail(file: Path, before: int) -> str:
    """Return the last lines of a service's output, without its first `before` bytes."""
    with file.open("rb") as output:
        output.seek(before)
        lines = output.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n".join(f"  {line}" for line in lines) or (
        f"  (nothing, as on a full disk; to see the cause: trainshed up --data {file.parent})"
    )


_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_COMMAND = (
    *("up", "--host", "127.0.0.1", "--port", "0", "--grpc-port", "0", "--grpc-tls-port", "0"),
    *("--engine", "local", "--stop-jobs-on-exit", "--stop-with-parent"),
)


@contextlib.contextmanager
def own_service(data: Path | None, *arguments: str) -> Generator[Endpoint]:
    """Run a service on a free port of this machine. At the end, cancel its jobs and stop it.

    Within the context, SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, so that the service is
    stopped. If this process is killed by SIGKILL, the service also stops, but its directory remains. Raises
    click.ClickException if the service does not start or does not stop.

    Args:
        data: the data directory, which is kept; None = a temporary directory, which is deleted
        arguments: further arguments of `trainshed up`
    """
    before = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler)
    is_temporary = data is None
    directory = data.absolute() if data else Path(tempfile.mkdtemp(prefix="trainshed-run-"))
    words = (*_COMMAND, "--data", str(directory))
    try:
        service = start((*words, *arguments), directory)
        try:
            yield with_defaults(local(directory))
        finally:
            # Ignore further signals until the service has exited, because its programs run and its directory
            # is in use until then.
            for number in _STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            try:
                status = _stop(service, directory)
            except click.ClickException:
                is_temporary = False  # Keep the directory: the service still uses it.
                raise
            if status < 0:
                # The jobs of the killed service continue. Start another service that adopts and cancels them.
                _stop(start(words, directory), directory)
                raise click.ClickException(
                    f"The service was killed by signal {-status}, and its jobs were cancelled. The machine "
                    "may have run out of memory: see the kernel's log."
                )
    finally:
        if is_temporary:
            shutil.rmtree(directory, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(service: "subprocess.Popen[bytes]", data: Path) -> int:
    """Stop a service, wait for its exit, and return its exit status, which is negative after a signal. Raises
    click.ClickException if it does not exit within 60 s."""
    service.send_signal(signal.SIGTERM)
    try:
        return service.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise click.ClickException(
            f"The service (process {service.pid}) did not stop within {_STOP_TIMEOUT} s. Try again: "
            f"trainshed down --data {data}"
        ) from None
