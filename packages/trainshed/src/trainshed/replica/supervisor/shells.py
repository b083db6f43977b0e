"""Opens shells in a replica, with the rights of its program, and passes their terminals to the service.

The shim forks a shell, which enters the program's view, users and control groups. A shell never keeps a
replica alive, and its exit status does not affect that of the program.

A client sends an order (`protocol`) and receives one line on its connection. The line is `shell`, with the
file descriptor of the terminal's master (or of a stream without a terminal), or `refused` (cause). After the
shell's exit, the client receives `ended` (status, in a shell's form). Closing the connection ends the shell.

The response to an order for a port is also `shell`, with the file descriptor of a connection to the port. A
child opens this connection with the program's rights.
"""

import fcntl
import os
import signal
import socket
import struct
import termios
from collections.abc import Callable

from trainshed.replica import protocol
from trainshed.replica.supervisor import main_process, program
from trainshed.replica.system import kernel, loop, processes, unix_sockets

MAX_SHELLS = 8
"""Maximum number of open shells in one replica."""
TOO_MANY = "%d shells are open in the replica already. Close one of them, then try again" % MAX_SHELLS
NO_PROCESS = "no process can be started in the replica: %s"
_CONNECT_TIMEOUT = 5.0
GRACE = 2.0
"""Seconds for a shell to exit after SIGHUP before it is killed."""

# Runs before bash's first prompt, because bash's startup files also set the prompt.
_PROMPT = r"""PS1='\[\e[2m\]%s\[\e[0m\] \w\$ '; unset PROMPT_COMMAND"""


class Shells:
    """The shells of one replica. `made`, `handles`: the main process's message about its view, and the file
    descriptors of that message (`main_process`). `handle_calls`: called with the file descriptor for each
    shell's socket calls."""

    def __init__(
        self,
        plan: protocol.LaunchDocument,
        main: program.Program,
        made: protocol.Message,
        handles: list[int],
        *,
        events: loop.Loop,
        handle_calls: Callable[[int], None],
    ) -> None:
        if made["home"] is not None:
            main.environ.setdefault("HOME", made["home"])
        if made["user"] is not None:
            user, group = made["user"]
            main.user = user, group
        self._plan = plan
        self._main = main
        self._loop = events
        self._inside = handles
        self._owner = handles[-1] if made["owned"] else None
        self._handle_calls = handle_calls
        self._connections: dict[int, socket.socket] = {}

    def open(self, order: protocol.Message, connection: socket.socket) -> None:
        """Fork a shell for an order, or reject the order on its connection. The `Shells` object then owns the
        connection."""
        connection.setblocking(True)
        is_port = order["o"] == "port"
        if len(self._connections) >= MAX_SHELLS and not is_port:
            refuse(connection, TOO_MANY)
            connection.close()
            return
        try:
            ours, theirs = socket.socketpair()
            child = os.fork()
        except OSError as error:
            refuse(connection, NO_PROCESS % error)
            connection.close()
            return
        if child == 0:
            self._carry_out(order, connection, theirs)
        theirs.close()
        self._loop.add(ours.fileno(), lambda: self._receive(ours))
        if is_port:
            # The child responds to an order for a port, and its exit is not reported.
            connection.close()
        else:
            self._connections[child] = connection
            # Even without requested events, poll reports that the peer closed the connection.
            self._loop.add(connection.fileno(), lambda: self._hang_up(child), 0)

    def _receive(self, shell: socket.socket) -> None:
        """Receive the file descriptors that the fork of a shell sends before it executes the shell."""
        try:
            data, handles = unix_sockets.receive_available(shell)
        except ConnectionResetError:
            data, handles = b"", []
        for handle in handles:
            self._handle_calls(handle)
        if not data:
            self._loop.drop(shell.fileno())
            shell.close()

    def on_exit(self, child: int, status: int) -> None:
        """Report the exit of a shell to its connection. Other children are ignored."""
        connection = self._connections.pop(child, None)
        if connection is None:
            return
        report_exit(connection, status)
        self._loop.drop(connection.fileno())
        connection.close()

    def kill(self) -> set[int]:
        """Kill all shells and their descendants, because the program has ended; return their process IDs."""
        ended = {process for child in self._connections for process in processes.descendants(child)}
        ended.update(self._connections)
        for process in ended:
            processes.send(process, signal.SIGKILL)
        for connection in self._connections.values():
            self._loop.drop(connection.fileno())
            connection.close()
        self._connections = {}
        return ended

    def _hang_up(self, child: int) -> None:
        """Send SIGHUP to a shell after its peer closed the connection. Kill the shell after a timeout."""
        # Stop watching the connection. Otherwise poll would report the closed connection repeatedly.
        self._loop.drop(self._connections[child].fileno())
        for number in (signal.SIGHUP, signal.SIGCONT):
            processes.send(child, number)
        self._loop.after(GRACE, lambda: self._kill(child))

    def _kill(self, child: int) -> None:
        if child in self._connections:
            processes.send(child, signal.SIGKILL)

    def _carry_out(self, order: protocol.Message, connection: socket.socket, shim: socket.socket) -> None:
        """Carry out an order in a forked child. Does not return."""
        code = program.EXIT_NOT_EXECUTABLE
        try:
            kernel.become_helper(os.getppid())
            kept = {0, 1, 2, connection.fileno(), shim.fileno(), *self._inside}
            kernel.close_all(handle for handle in kernel.open_handles() if handle not in kept)
            namespaces = [handle for handle in self._inside if handle != self._owner]
            main_process.enter(self._plan, self._main.groups, namespaces, self._owner, shim)
            carry_out = _pass_port if order["o"] == "port" else become
            carry_out(order, connection, self._main)
        except program.NotRun as refusal:
            code = refusal.code
        except OSError as error:
            refuse(connection, "the shell cannot enter the replica: %s" % error)
        finally:
            os._exit(code)


def become(order: protocol.Message, connection: socket.socket, main: program.Program) -> None:
    """Become the requested shell. Raises NotRun, OSError."""
    os.setsid()
    try:
        handle = _streams(order, connection, main.user)
    except OSError as error:
        refuse(connection, "no terminal can be created in it: %s" % error)
        return
    name = "bash" if program.is_on_path("bash", main.environ) else "sh"
    command = order.get("command", "")
    environ = main.environ
    if order.get("tty", True):
        label = order.get("label") or "replica"
        term = order.get("term") or "xterm-256color"
        prompt = _PROMPT % label
        environ = {**environ, "TERM": term, "PS1": "%s $ " % label, "PROMPT_COMMAND": prompt}
    shell = program.Program(
        # Not a login shell, because the system's profile would replace the program's PATH.
        argv=[name, "-c", command] if command else [name],
        environ=environ,
        directory=main.directory,
        output=handle,
        errors=handle,
        groups=main.groups,
        streams=handle,
    )
    shell.user = main.user
    shell.become()


def _pass_port(order: protocol.Message, connection: socket.socket, main: program.Program) -> None:
    """Connect to a port of the loopback address, or to a Unix socket in the program's directory. Send the
    connection's file descriptor. Raises OSError."""
    port = order["port"]
    addresses = [(socket.AF_INET, ("127.0.0.1", port)), (socket.AF_INET6, ("::1", port))]
    main.switch_user()
    for family, address in addresses if isinstance(port, int) else [(socket.AF_UNIX, port)]:
        program_socket = socket.socket(family, socket.SOCK_STREAM)
        program_socket.settimeout(_CONNECT_TIMEOUT)
        try:
            program_socket.connect(address)
            answer = protocol.encode({"e": "shell"})
            unix_sockets.send(connection, answer, program_socket.fileno())
            return
        except OSError:
            continue
    refuse(connection, "no process of the replica listens at %s yet" % port)


def _streams(order: protocol.Message, connection: socket.socket, owner: tuple[int, int] | None) -> int:
    """Create the shell's streams. Send the file descriptor of their other side over the connection, and
    return the shell's own file descriptor. Raises OSError."""
    if not order.get("tty", True):
        theirs, ours = socket.socketpair()
        unix_sockets.send(connection, protocol.encode({"e": "shell"}), theirs.fileno())
        theirs.close()
        return ours.detach()
    # Created in the program's view and as its user, so that the terminal has the right owner and path.
    master, slave = os.openpty()
    if owner is not None:
        os.fchown(slave, *owner)
    size = struct.pack("HHHH", order["rows"], order["cols"], 0, 0)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
    unix_sockets.send(connection, protocol.encode({"e": "shell"}), master)
    os.close(master)
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    return slave


def refuse(connection: socket.socket, cause: str) -> None:
    _send(connection, {"e": "refused", "cause": cause})


def report_exit(connection: socket.socket, status: int) -> None:
    """Report the exit of a shell. `status`: from `os.waitpid`."""
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    _send(connection, {"e": "ended", "status": code})


def _send(connection: socket.socket, message: protocol.Message) -> None:
    try:
        connection.sendall(protocol.encode(message))
    except OSError:
        return  # The peer has disconnected and needs no message.
