"""`trainshed jobs shell`: opens a shell in a running replica, in this terminal or with piped input. Also
contains `jobs forward` (ports), and `jobs autopsy` (files of failed replicas)."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli.client import Client, RequestError, Unreachable
from trainshed.cli.connection import Endpoint, endpoint_options
from trainshed.cli.jobs.references import find_job, job_argument, job_path
from trainshed.cli.text.colours import plain
from trainshed.wire.trainshed_v1.jobs import ShellTicket
from trainshed.wire.trainshed_v1.record import read

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

_NO_STATUS = 255
"""Exit status if the exit status of the shell is unknown. It is the same as for ssh."""
_OPEN_TIMEOUT = 60.0
"""Maximum seconds until the service opens the shell."""
_ESCAPE = b"~."
"""Typed at the beginning of a line, it closes the connection."""


@click.command()
@job_argument
@click.argument("replica", required=False)
@click.option("-c", "--command", "line", metavar="LINE", help="Run this command line instead of a shell.")
@endpoint_options
def command(endpoint: Endpoint, job: str, replica: str | None, line: str | None) -> None:
    """Open a shell in a running replica, with the environment, rights and limits of its program. REPLICA is
    such as workerpool0-0 or worker-replica-1. Default: the primary.

    Input may come from a pipe (echo nvidia-smi | trainshed jobs shell JOB). The exit status is that of the
    shell. A line that begins with ~. closes the connection.
    """
    client = endpoint.client()
    uid = find_job(client, job, endpoint.project)["uid"]
    raise SystemExit(_run_shell(client, uid, {"replica": replica or ""}, line))


def _run_shell(
    client: Client,
    uid: str,
    which: Mapping[str, Any],
    line: str | None,
    *,
    files: tuple[int, int] | None = None,
) -> int:
    """Run a shell until it ends, and return its exit status. Raises RequestError, Unreachable.

    Args:
        which: the replica, as the JSON body of the ticket request
        line: a command line to run instead of a shell
        files: file descriptors for input and output; None = those of this process
    """
    ticket = read(client.post(job_path(uid, ":shell"), which), ShellTicket)
    files = files or (sys.stdin.fileno(), sys.stdout.fileno())
    is_terminal = all(map(os.isatty, files))
    size = _size()
    order = {
        "token": ticket.token,
        "terminal": is_terminal,
        "rows": size.lines,
        "columns": size.columns,
        "term": os.environ.get("TERM", "xterm-256color"),
        "command": line or "",
        "label": ticket.job.rpartition("/")[2],
    }
    with _connect(client, ticket.path, order) as (connection, opened):
        if is_terminal and not line:
            click.echo(
                f"{plain(opened['title'])}. To leave: exit. To close the connection: Enter ~ .", err=True
            )
        with _raw_mode(sys.stdin.fileno()) if is_terminal else contextlib.nullcontext():
            return _Session(connection, files, is_terminal=is_terminal).run()


class _Session:
    """Copies bytes from the input file to the shell, and from the shell to the output file."""

    def __init__(self, connection: "ClientConnection", files: tuple[int, int], *, is_terminal: bool) -> None:
        self._input, self._output = files
        self._connection = connection
        self._is_terminal = is_terminal
        self._status = _NO_STATUS
        self._error = "The connection broke off."

    def run(self) -> int:
        """Copy until the shell ends, and return its exit status."""
        if self._is_terminal:
            signal.signal(signal.SIGWINCH, self._on_resize)
        _run_in_thread(self._send_input)
        self._receive()
        if self._error:
            ending = "\r\n" if self._is_terminal else "\n"
            sys.stderr.write(f"{plain(self._error)}{ending}")
        return self._status

    def _on_resize(self, number: int, frame: object) -> None:
        size = _size()
        order = json.dumps({"resize": [size.lines, size.columns]})
        # Send the new size in another thread. The signal may have interrupted this thread while it held the
        # connection's lock.
        _run_in_thread(partial(self._connection.send, order))

    def _receive(self) -> None:
        try:
            for message in self._connection:
                if isinstance(message, bytes):
                    view = memoryview(message)
                    while view:
                        view = view[os.write(self._output, view) :]
                    continue
                order = json.loads(message)
                self._error = order.get("error", "")
                if "exit" in order:
                    ended = order["exit"] is None
                    self._error = "The replica has ended, and the shell with it." if ended else ""
                    self._status = _NO_STATUS if ended else order["exit"]
        except OSError:
            self._error = ""  # Print no error: the reader of standard output has exited.
        except _connection_closed():
            pass  # The service has closed the connection. `_error` contains the message.

    def _send_input(self) -> None:
        typed = b"\n"
        while data := os.read(self._input, 1 << 15):
            typed = (typed + data)[-len(_ESCAPE) - 1 :]
            if self._is_terminal and typed.replace(b"\r", b"\n") == b"\n" + _ESCAPE:
                self._error = "The connection was closed."
                self._connection.close()
                return
            self._connection.send(data)
        self._connection.send(json.dumps({"end": True}))


@contextlib.contextmanager
def _connect(
    client: Client, path: str, order: Mapping[str, Any]
) -> Generator[tuple["ClientConnection", Any]]:
    """Open a WebSocket, and yield it with the response to `order`. Raises RequestError, Unreachable."""
    # Imported here, because the import is slow and other commands do not need it.
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import connect

    address = f"ws{client.address.removeprefix('http')}{path}"
    trust = client.trust() if address.startswith("wss:") else None
    with contextlib.ExitStack() as stack:
        try:
            opening = connect(
                address,
                ssl=trust,
                compression=None,
                proxy=None,  # No proxy, as in all other commands.
                open_timeout=_OPEN_TIMEOUT,
                max_size=None,
            )
            connection = stack.enter_context(opening)
            connection.send(json.dumps(order))
            opened = json.loads(connection.recv(_OPEN_TIMEOUT))
        except (OSError, WebSocketException) as failure:
            raise Unreachable(
                f"The shell at {address} does not answer: {failure}. Check that the service is reachable, "
                "and try again."
            ) from None
        if "error" in opened:
            raise RequestError(0, plain(opened["error"]))
        yield connection, opened


def _run_in_thread(work: Callable[[], None]) -> None:
    """Call `work` in a thread. Ignore errors of a closed connection."""

    def until_closed() -> None:
        with contextlib.suppress(OSError, _connection_closed()):
            work()

    threading.Thread(target=until_closed, daemon=True).start()


def _connection_closed() -> type[Exception]:
    from websockets.exceptions import ConnectionClosed

    return ConnectionClosed


@contextlib.contextmanager
def _raw_mode(handle: int) -> Generator[None]:
    """Set the terminal to raw mode, so that the shell receives every key. Restore the mode at the end."""
    import termios
    import tty

    before = termios.tcgetattr(handle)
    tty.setraw(handle)
    try:
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def _size() -> os.terminal_size:
    """Return the current size of this terminal. Ignore environment variables, which may be outdated."""
    try:
        return os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return os.terminal_size((80, 24))


@click.command(epilog="Example: trainshed jobs forward JOB 6006")
@job_argument
@click.argument("port", metavar="[LOCAL:]PORT")
@click.option(
    "--replica",
    default="",
    help="Replica to which the port is forwarded, such as workerpool1-0. Default: the primary.",
)
@endpoint_options
def forward(endpoint: Endpoint, job: str, port: str, replica: str) -> None:
    """Forward a port of this machine (127.0.0.1, the same port or LOCAL) to a port of a running replica,
    until Ctrl-C. PORT can also be the name of a page that the job offers; then LOCAL is required."""
    local, _, wanted = port.rpartition(":")
    if not wanted or not (local or wanted).isdecimal():
        way = f"8888:{wanted or 'PORT'}"
        raise click.UsageError(
            f"{port} does not contain the number of a local port. Write LOCAL:PORT, such as {way}."
        )
    client = endpoint.client()
    path = job_path(find_job(client, job, endpoint.project)["uid"], ":shell")
    which = {"replica": replica, "port": wanted}
    task = read(client.post(path, which), ShellTicket).task
    try:
        listener = socket.create_server(("127.0.0.1", int(local or wanted)))
    except (OSError, OverflowError) as failure:
        raise click.ClickException(
            f"Port {local or wanted} of this machine is not available ({failure}). Choose another local "
            f"port: trainshed jobs forward {job} LOCAL:{wanted}"
        ) from None
    here = listener.getsockname()[1]
    click.echo(f"127.0.0.1:{here} forwards to {wanted} of {task}. Press Ctrl-C to stop.", err=True)
    with listener:
        while True:
            connection, _ = listener.accept()
            carrying = partial(_forward_connection, endpoint.client(), path, which, connection)
            threading.Thread(target=carrying, daemon=True).start()


def _forward_connection(
    client: Client, path: str, which: Mapping[str, Any], connection: socket.socket
) -> None:
    """Forward one connection to a port of a replica. Print an error to stderr if that fails."""
    with connection:
        try:
            ticket = read(client.post(path, which), ShellTicket)
            with _connect(client, ticket.path, {"token": ticket.token}) as (far, _):
                _run_in_thread(partial(_send_to_replica, connection, far))
                for message in far:
                    if isinstance(message, bytes):
                        connection.sendall(message)
        except (RequestError, Unreachable) as failure:
            click.echo(plain(str(failure)), err=True)
        except (OSError, _connection_closed()):
            pass  # Not an error: the program or the replica has closed its connection.
        finally:
            # `_send_to_replica` may still read from the connection in another thread. Closing the connection
            # here would then not notify the program that opened it. Therefore shut it down.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _send_to_replica(connection: socket.socket, far: "ClientConnection") -> None:
    while data := connection.recv(1 << 15):
        far.send(data)
    far.send(json.dumps({"end": True}))


@click.command()
@job_argument
@click.argument("replica", required=False)
@click.option(
    "--attempt",
    type=click.IntRange(min=1),
    help="Number of the attempt whose replica you want to inspect. Default: the newest.",
)
@click.option("-c", "--command", "line", metavar="LINE", help="Run this command line instead of a shell.")
@click.option(
    "--copy",
    "target",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path, file_okay=False),
    help="Copy the program's directory into this new directory, with tar.",
)
@endpoint_options
def autopsy(
    endpoint: Endpoint,
    *,
    job: str,
    replica: str | None,
    attempt: int | None,
    line: str | None,
    target: Path | None,
) -> None:
    """Open a shell in the file system of a failed replica, with the view and environment of its program,
    except for secrets. Default of REPLICA: the first failed replica of the newest attempt.

    The files of failed replicas are kept for a day (setting autopsy_ttl).
    """
    if target and line:
        raise click.UsageError("--copy and --command exclude each other. Use one of them.")
    client = endpoint.client()
    uid = find_job(client, job, endpoint.project)["uid"]
    which = {"replica": replica or "", "autopsy": True, **({"attempt": attempt} if attempt else {})}
    if target is None:
        raise SystemExit(_run_shell(client, uid, which, line))
    raise SystemExit(_copy(client, uid, which, target))


def _copy(client: Client, uid: str, which: Mapping[str, Any], target: Path) -> int:
    """Copy the program's directory to `target`, and return the exit status of tar. The contents are
    untrusted: tar writes nothing outside `target`, even if a name is absolute or contains `..`, or if a file
    is below a link."""
    try:
        target.mkdir(mode=0o700, parents=True)
        # For root too: drop the permission bits that would give the archive's users rights on this machine.
        words = ("tar", "-x", "--no-same-owner", "--no-same-permissions", "-C", target)
        unpacking = subprocess.Popen(words, stdin=subprocess.PIPE, umask=0o077)
    except OSError as failure:
        raise click.ClickException(
            f"Nothing was copied to {target}: {failure}. Pass a new directory to --copy. If the command tar "
            "is missing on this machine, install it."
        ) from None
    assert unpacking.stdin is not None
    with unpacking, unpacking.stdin as packed, Path(os.devnull).open() as nothing:
        files = nothing.fileno(), packed.fileno()
        status = _run_shell(client, uid, which, "tar -c .", files=files)
    for left_out in _remove_escapes(target):
        click.echo(
            f"{left_out}  was omitted: it is not a file, or it is a link that leads out of the copy", err=True
        )
    return status or unpacking.returncode


def _remove_escapes(root: Path) -> list[str]:
    """Remove special files, and links that lead out of a copy (path traversal). Return their paths."""
    top, removed = root.resolve(), list[str]()
    for directory, directories, files in os.walk(root):
        for path in (Path(directory, name) for name in (*directories, *files)):
            if path.is_symlink():
                stays = Path(os.path.realpath(path)).is_relative_to(top)
            else:
                stays = path.is_file() or path.is_dir()
            if not stays:
                path.unlink()
                removed.append(str(path.relative_to(root)))
    return removed
