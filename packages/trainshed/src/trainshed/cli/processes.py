"""Starts a service process on this machine and waits until it is ready; ends one and waits for its end.

All waiting is for events of the kernel; nothing polls.
"""

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

from trainshed.cli.connection import Endpoint, answering, local

_READY_SECONDS = 120
"""Seconds that a service may take to become ready."""

_STOP_SECONDS = 60

_TAIL_LINES = 15
"""Last lines of a service's output that an error shows."""


def start(words: Sequence[str], data: Path) -> "subprocess.Popen[bytes]":
    """Start a service by the words of a command line of `trainshed`, with its data in `data`, and wait until
    it is ready. It outlives this command.

    Raises click.ClickException with the end of the service's output if it does not become ready.
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
                # Ctrl-C is for this command only, which then decides what happens to the service.
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
        # Also on Ctrl-C: the user does not know yet that a service runs.
        process.terminate()
        raise
    return process


def _first_line(descriptor: int) -> bytes:
    """Return the line that the service writes when it is ready; b"" if it ended or took too long."""
    message = b""
    while not message.endswith(b"\n"):
        readable, _, _ = select.select([descriptor], [], [], _READY_SECONDS)
        part = os.read(descriptor, 65536) if readable else b""
        if not part:
            return b""
        message += part
    return message


def _runs(data: Path) -> bool:
    """Whether a service runs already, which then writes to the same file."""
    try:
        return bool(local(data).pid)
    except click.ClickException:
        return False


def _tail(file: Path, before: int) -> str:
    """Return the last lines of what a service wrote to its file from a byte on."""
    with file.open("rb") as output:
        output.seek(before)
        lines = output.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n".join(f"  {line}" for line in lines) or (
        f"  (nothing, as on a full disk: `trainshed up --data {file.parent}` says why)"
    )


_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_COMMAND = (
    *("up", "--host", "127.0.0.1", "--port", "0", "--grpc-port", "0", "--grpc-tls-port", "0"),
    *("--engine", "local", "--stop-jobs-on-exit", "--stop-with-parent"),
)


@contextlib.contextmanager
def own_service(data: Path | None, *arguments: str) -> Generator[Endpoint]:
    """Start a service on a free port of this machine; in the end it cancels its jobs, and stops. `data`: its
    data directory, which stays; None = a temporary one, which is removed once the service has ended.
    `arguments`: more arguments of `trainshed up`.

    Meanwhile SIGTERM and SIGHUP are KeyboardInterrupt as Ctrl-C is, so that they end it as well; so does
    SIGKILL of this process, which leaves the directory. Raises click.ClickException if it does not start or
    does not end.
    """
    before = {number: signal.getsignal(number) for number in _ENDS}
    for number in _ENDS:
        signal.signal(number, signal.default_int_handler)
    is_temporary = data is None
    directory = data.absolute() if data else Path(tempfile.mkdtemp(prefix="trainshed-run-"))
    words = (*_COMMAND, "--data", str(directory))
    try:
        service = start((*words, *arguments), directory)
        try:
            yield answering(local(directory))
        finally:
            # Until the service has ended, its programs run and its directory is in use.
            for number in _ENDS:
                signal.signal(number, signal.SIG_IGN)
            try:
                status = _stop(service, directory)
            except click.ClickException:
                is_temporary = False  # It is in use.
                raise
            if status < 0:
                # Its jobs run on, until another service takes them over and cancels them.
                _stop(start(words, directory), directory)
                raise click.ClickException(
                    f"The service was killed by signal {-status}, and its jobs were cancelled. "
                    "Perhaps memory was short: see the kernel's log."
                )
    finally:
        if is_temporary:
            shutil.rmtree(directory, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(service: "subprocess.Popen[bytes]", data: Path) -> int:
    """End a service and wait until it has ended; its status, negative after a signal. Raises
    click.ClickException if it does not end within 60 s."""
    service.send_signal(signal.SIGTERM)
    try:
        return service.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        raise click.ClickException(
            f"The service (process {service.pid}) was asked to end and has not yet; try again:"
            f" trainshed down --data {data}"
        ) from None
