"""Opens shells in a replica: forked beside its program with the program's rights, each handed to the service
that asked for it.

This runs in the guardian, so that a shell has the view, the users and the control groups of the program, and
ends with it. If the guardian is at rest, it runs in a process of its own that has joined them (`resting`). A
shell never keeps a replica alive, and how it ends does not count as the program's end.

An order (`protocol`) comes with the connection of its sender, who gets one line in answer: `shell`, with the
handle of the terminal's other side (or of a stream, if no terminal is wanted), or `refused` (cause). When the
shell is over, `ended` (status, as a shell reports it) follows. Closing the connection ends its shell.
"""

import fcntl
import json
import os
import select
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable

from trainshed.replica import protocol
from trainshed.replica.supervisor import program
from trainshed.replica.system import kernel, processes, unix_sockets

MOST = 8
"""Number of shells that may be open in one replica at a time."""
TOO_MANY = "%d shells are open in it already; close one" % MOST
NO_PROCESS = "no more process can be made in it: %s"
_GRACE = 2.0
"""Seconds for a shell to end after SIGHUP before it is killed."""

# Runs before bash's first prompt, because the files that bash reads at its start set a prompt as well.
_PROMPT = r"""PS1='\[\e[2m\]%s\[\e[0m\] \w\$ '; unset PROMPT_COMMAND"""


class Shells:
    """The shells of one replica. `poll`: the guardian's, to which connections are added. `take_leave`: called
    in each forked child before anything else that a shell needs."""

    def __init__(
        self,
        main: program.Program,
        poll: select.poll,
        take_leave: Callable[[], None],
    ) -> None:
        self._main = main
        self._poll = poll
        self._take_leave = take_leave
        self._connections: dict[int, socket.socket] = {}
        self._doomed: dict[int, float] = {}
        self._begun = False

    @property
    def are_over(self) -> bool:
        """Whether at least one shell was asked for, and none is open any more."""
        return self._begun and not self._connections

    def open(self, order: bytes, handle: int) -> None:
        """Fork a shell, or refuse it on its connection. `handle`: the connection, owned by this object from
        here on."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, handle)
        connection.setblocking(True)
        self._begun = True
        if len(self._connections) >= MOST:
            refuse(connection, TOO_MANY)
            connection.close()
            return
        try:
            child = os.fork()
        except OSError as error:
            refuse(connection, NO_PROCESS % error)
            connection.close()
            return
        if child == 0:
            _be_shell(json.loads(order.decode("utf-8")), connection, self._main, self._take_leave)
        self._connections[child] = connection
        # Even without events asked for, poll reports that the peer closed it.
        self._poll.register(connection, 0)

    def reaped(self, child: int, status: int) -> None:
        """Report the end of a shell to its connection. A `child` that is no shell of ours is ignored."""
        connection = self._connections.pop(child, None)
        self._doomed.pop(child, None)
        if connection is None:
            return
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        _say(connection, {"e": "ended", "status": code})
        self._let_go(connection)

    def closed(self, handle: int) -> bool:
        """Hang up the shell whose connection, with this handle, was closed by the peer. False if the handle
        is none of ours."""
        for child, connection in self._connections.items():
            if connection.fileno() == handle:
                # Otherwise poll would report it again and again.
                self._poll.unregister(connection)
                self._doomed[child] = time.monotonic() + _GRACE
                for number in (signal.SIGHUP, signal.SIGCONT):
                    processes.send(child, number)
                return True
        return False

    def pause(self) -> int | None:
        """Return the milliseconds until `tick` has something to do; None = nothing to do."""
        if not self._doomed:
            return None
        return max(0, int((min(self._doomed.values()) - time.monotonic()) * 1000) + 1)

    def tick(self) -> None:
        """Kill the shells that were hung up and did not end in time."""
        now = time.monotonic()
        for child, until in list(self._doomed.items()):
            if until <= now:
                del self._doomed[child]
                processes.send(child, signal.SIGKILL)

    def _let_go(self, connection: socket.socket) -> None:
        try:
            self._poll.unregister(connection)
        except KeyError:
            pass  # It was closed from the other side before.
        connection.close()


def _be_shell(
    order: protocol.Message,
    connection: socket.socket,
    main: program.Program,
    take_leave: Callable[[], None],
) -> None:
    """Become, in a child, the shell that was asked for. Does not return."""
    code = program.EXIT_NOT_EXECUTABLE
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        take_leave()
        kernel.die_with_parent(signal.SIGKILL)
        os.setsid()
        try:
            handle = _streams(order, connection, main.user)
        except OSError as error:
            refuse(connection, "no terminal can be made in it: %s" % error)
            os._exit(code)
        main.beside(_argv(order, main.environ), _environ(order, main.environ), handle).become()
    except program.NotRun as refusal:
        code = refusal.code
    finally:
        os._exit(code)


def _streams(
    order: protocol.Message, connection: socket.socket, owner: tuple[int, int] | None
) -> int:
    """Make the shell's streams and send their other side over the connection; returns the shell's own handle.
    Raises OSError."""
    if not order.get("tty", True):
        theirs, ours = socket.socketpair()
        unix_sockets.send(connection, protocol.encode({"e": "shell"}), theirs.fileno())
        theirs.close()
        return ours.detach()
    # Made here, inside the program's view and as its user, so that its owner and its path are right.
    master, slave = os.openpty()
    if owner is not None:
        os.fchown(slave, *owner)
    _resize(slave, order["rows"], order["cols"])
    unix_sockets.send(connection, protocol.encode({"e": "shell"}), master)
    os.close(master)
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    return slave


def _resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _argv(order: protocol.Message, environ: dict[str, str]) -> list[str]:
    name = "bash" if program.is_on_path("bash", environ) else "sh"
    command = order.get("command", "")
    # No login shell, because a system's profile would replace the program's PATH.
    return [name, "-c", command] if command else [name]


def _environ(order: protocol.Message, environ: dict[str, str]) -> dict[str, str]:
    if not order.get("tty", True):
        return environ
    label = order.get("label") or "replica"
    return dict(
        environ,
        TERM=order.get("term") or "xterm-256color",
        PS1="%s $ " % label,
        PROMPT_COMMAND=_PROMPT % label,
    )


def refuse(connection: socket.socket, cause: str) -> None:
    """Send the reason why there is no shell."""
    _say(connection, {"e": "refused", "cause": cause})


def _say(connection: socket.socket, message: protocol.Message) -> None:
    try:
        connection.sendall(protocol.encode(message))
    except OSError:
        return  # The peer is gone.
