"""`trainshed jobs shell`: opens a shell in a running replica, in this terminal or with input from a pipe."""

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

from trainshed.cli.client import Client, Refused, Unreachable
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.references import find_job, job_path, takes_job
from trainshed.cli.text.colours import plain
from trainshed.wire.trainshed_v1.jobs import ShellTicket
from trainshed.wire.trainshed_v1.record import read

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

_NO_STATUS = 255
"""Exit status if the shell's own is not known; the same as ssh's."""
_PATIENCE = 60.0
"""Seconds to wait for the service to open the shell."""
_LEAVE = b"~."
"""Hangs up when typed at the beginning of a line."""


@click.command()
@takes_job
@click.argument("replica", required=False)
@click.option(
    "-c", "--command", "line", metavar="LINE", help="Run this command line instead of a shell."
)
@takes_endpoint
def command(endpoint: Endpoint, job: str, replica: str | None, line: str | None) -> None:
    """Open a shell beside the program of a running replica: in its own view of the machine, with its
    environment, its rights and its limits. REPLICA is workerpool0-0, worker-replica-1 and the like; the
    primary if it is left out.

    Input may come from a pipe (echo nvidia-smi | trainshed jobs shell JOB). The exit status is the shell's
    own. A line that begins with ~. hangs up.
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
    """Run a shell until it is over, and return its exit status. `which`: the replica, as the request for a
    ticket takes it. `line`: a command line to run instead of a shell. `files`: handles of its input and its
    output; None = this process's own. Raises Refused, Unreachable."""
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
    with _connected(client, ticket.path, order) as (connection, opened):
        if is_terminal and not line:
            click.echo(
                f"{plain(opened['title'])}. Leave with exit, or hang up with Enter ~ .", err=True
            )
        with _raw(sys.stdin.fileno()) if is_terminal else contextlib.nullcontext():
            return _Session(connection, files, is_terminal=is_terminal).run()


class _Session:
    """Copies bytes from a file to the shell, and from the shell to another."""

    def __init__(
        self, connection: "ClientConnection", files: tuple[int, int], *, is_terminal: bool
    ) -> None:
        self._input, self._output = files
        self._connection = connection
        self._is_terminal = is_terminal
        self._status = _NO_STATUS
        self._error = "The connection broke off."

    def run(self) -> int:
        """Copy until the shell is over, and return its exit status."""
        if self._is_terminal:
            signal.signal(signal.SIGWINCH, self._resized)
        _beside(self._type)
        self._hear()
        if self._error:
            ending = "\r\n" if self._is_terminal else "\n"
            sys.stderr.write(f"{plain(self._error)}{ending}")
        return self._status

    def _resized(self, number: int, frame: object) -> None:
        size = _size()
        order = json.dumps({"resize": [size.lines, size.columns]})
        # Not in this thread: it may have been interrupted while it has the connection's lock.
        _beside(partial(self._connection.send, order))

    def _hear(self) -> None:
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
            self._error = ""  # Nobody reads standard output any more.
        except _connection_closed():
            pass  # The service is gone; `_error` says so already.

    def _type(self) -> None:
        typed = b"\n"
        while data := os.read(self._input, 1 << 15):
            typed = (typed + data)[-len(_LEAVE) - 1 :]
            if self._is_terminal and typed.replace(b"\r", b"\n") == b"\n" + _LEAVE:
                self._error = "Hung up."
                self._connection.close()
                return
            self._connection.send(data)
        self._connection.send(json.dumps({"end": True}))


@contextlib.contextmanager
def _connected(
    client: Client, path: str, order: Mapping[str, Any]
) -> Generator[tuple["ClientConnection", Any]]:
    """Open a WebSocket to the service; yield it with the answer to `order`. Raises Refused, Unreachable."""
    # Imported here, since it is slow to import and no other command needs it.
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
                proxy=None,  # As all other commands.
                open_timeout=_PATIENCE,
                max_size=None,
            )
            connection = stack.enter_context(opening)
            connection.send(json.dumps(order))
            opened = json.loads(connection.recv(_PATIENCE))
        except (OSError, WebSocketException) as failure:
            raise Unreachable(f"The shell at {address} does not answer: {failure}.") from None
        if "error" in opened:
            raise Refused(0, plain(opened["error"]))
        yield connection, opened


def _beside(work: Callable[[], None]) -> None:
    """Do something in a thread until a connection is closed, or this process ends."""

    def until_closed() -> None:
        with contextlib.suppress(OSError, _connection_closed()):
            work()

    threading.Thread(target=until_closed, daemon=True).start()


def _connection_closed() -> type[Exception]:
    from websockets.exceptions import ConnectionClosed

    return ConnectionClosed


@contextlib.contextmanager
def _raw(handle: int) -> Generator[None]:
    """Set the terminal to raw mode, so that every key goes to the shell, and restore its mode at the end."""
    import termios
    import tty

    before = termios.tcgetattr(handle)
    tty.setraw(handle)
    try:
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def _size() -> os.terminal_size:
    """Return the current size of this terminal. Environment variables are ignored, as they may be out of
    date."""
    try:
        return os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return os.terminal_size((80, 24))


@click.command(epilog="Example: trainshed jobs forward JOB 6006")
@takes_job
@click.argument("port", metavar="[LOCAL:]PORT")
@click.option("--replica", default="", help="Replica in which it listens. Default: the primary.")
@takes_endpoint
def forward(endpoint: Endpoint, job: str, port: str, replica: str) -> None:
    """Carry connections to a port of this machine (127.0.0.1, the same port or LOCAL) to a port of a running
    replica, until Ctrl-C.

    A page that the job offers can stand in place of PORT, by its name, with a LOCAL in front.
    """
    local, _, wanted = port.rpartition(":")
    if not wanted or not (local or wanted).isdecimal():
        way = f"8888:{wanted or 'PORT'}"
        raise click.UsageError(
            f"Say at which port of this machine, and which of the replica: {way}."
        )
    client = endpoint.client()
    path = job_path(find_job(client, job, endpoint.project)["uid"], ":shell")
    which = {"replica": replica, "port": wanted}
    task = read(client.post(path, which), ShellTicket).task
    try:
        listener = socket.create_server(("127.0.0.1", int(local or wanted)))
    except (OSError, OverflowError) as failure:
        raise click.ClickException(
            f"Port {local or wanted} of this machine cannot be listened at ({failure}); name another one: "
            f"LOCAL:{wanted}."
        ) from None
    here = listener.getsockname()[1]
    click.echo(f"127.0.0.1:{here} leads to {wanted} of {task}. Ctrl-C ends it.", err=True)
    with listener:
        while True:
            connection, _ = listener.accept()
            carrying = partial(_carry, endpoint.client(), path, which, connection)
            threading.Thread(target=carrying, daemon=True).start()


def _carry(client: Client, path: str, which: Mapping[str, Any], connection: socket.socket) -> None:
    """Carry one connection to a port of a replica, and say on stderr if it is not had."""
    with connection:
        try:
            ticket = read(client.post(path, which), ShellTicket)
            with _connected(client, ticket.path, {"token": ticket.token}) as (far, _):
                _beside(partial(_send_on, connection, far))
                for message in far:
                    if isinstance(message, bytes):
                        connection.sendall(message)
        except (Refused, Unreachable) as failure:
            click.echo(plain(str(failure)), err=True)
        except (OSError, _connection_closed()):
            pass  # One of its ends is gone.
        finally:
            # While `_send_on` waits for more from it, closing it alone does not tell the other end.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _send_on(connection: socket.socket, far: "ClientConnection") -> None:
    while data := connection.recv(1 << 15):
        far.send(data)
    far.send(json.dumps({"end": True}))


@click.command()
@takes_job
@click.argument("replica", required=False)
@click.option(
    "--attempt", type=click.IntRange(min=1), help="Attempt of the replica. Default: the newest."
)
@click.option(
    "-c", "--command", "line", metavar="LINE", help="Run this command line instead of a shell."
)
@click.option(
    "--copy",
    "target",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path, file_okay=False),
    help="Copy the program's directory, by tar here and there, into this new one.",
)
@takes_endpoint
def autopsy(
    endpoint: Endpoint,
    *,
    job: str,
    replica: str | None,
    attempt: int | None,
    line: str | None,
    target: Path | None,
) -> None:
    """Open a shell in the file system that a failed replica left, in the view that its program had, with its
    environment but for secrets. Without REPLICA: the first one that failed, of the newest attempt.

    What failed replicas leave is kept for a day (setting autopsy_ttl).
    """
    if target and line:
        raise click.UsageError("Give only one of --copy and --command.")
    client = endpoint.client()
    uid = find_job(client, job, endpoint.project)["uid"]
    which = {"replica": replica or "", "autopsy": True, **({"attempt": attempt} if attempt else {})}
    if target is None:
        raise SystemExit(_run_shell(client, uid, which, line))
    raise SystemExit(_copy(client, uid, which, target))


def _copy(client: Client, uid: str, which: Mapping[str, Any], target: Path) -> int:
    """Copy the program's directory. A program made what it holds: tar keeps names with `..`, absolute names
    and links inside of `target`."""
    try:
        target.mkdir(mode=0o700, parents=True)
        # As root, too, without bits that would give its users rights here.
        words = ("tar", "-x", "--no-same-owner", "--no-same-permissions", "-C", target)
        unpacking = subprocess.Popen(words, stdin=subprocess.PIPE, umask=0o077)
    except OSError as failure:
        raise click.ClickException(
            f"Nothing was copied: {failure}. Name a directory that is not there yet; tar has to be installed."
        ) from None
    assert unpacking.stdin is not None
    with unpacking, unpacking.stdin as packed, Path(os.devnull).open() as nothing:
        files = nothing.fileno(), packed.fileno()
        status = _run_shell(client, uid, which, "tar -c .", files=files)
    for left_out in _without_ways_out(target):
        click.echo(f"{left_out}  was left out: it leads out of the copy, or is no file", err=True)
    return status or unpacking.returncode


def _without_ways_out(root: Path) -> list[str]:
    """Remove symbolic links that lead out of a copy, by which its reader would open other files (path
    traversal), and what is neither a file, a directory nor a link. Return their paths."""
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
