"""Runs a small process that keeps forked shims ready, so that no replica waits for an interpreter's start.

The service starts it before it has threads, sockets or a database. If it dies, another is started, and
running shims do not notice. It holds no state that matters.

Requests come over a stream socket pair: JSON lines, each with a file handle.
- {"slot": PATH, "plan": LAUNCH DOCUMENT}: become a replica's shim; the handle is its connection to the
  service.
- {"probe": PATH, "levels": LEVELS}: answer on the handle with one line {"level": the first one that works,
  "refused": {LEVEL: why not}}, or {"failed": the error of the probe}.
- {"autopsy": true, ...}: open a shell in the files of a failed replica (`open_autopsy`).
- {"pool": NUMBER, "level": LEVEL}: from now on keep so many idle shims ready.
If the zygote dies, the handles of its requests are closed, which the other end sees.
"""

import errno
import gc
import json
import os
import re
import select
import signal
import socket
from collections.abc import Sequence
from typing import NoReturn

from trainshed.replica import protocol
from trainshed.replica.sandbox import call_filter, levels, socket_calls, users
from trainshed.replica.supervisor import main_process, program, shells, start
from trainshed.replica.system import cgroups, kernel, loop, processes, unix_sockets

_QUIET_MS = 120
"""Milliseconds without a request before an idle shim is forked: by then the programs that were requested have
most likely been started, sixteen of them too, and until then they are to have the processors."""
_MOST_HANDLES = 1 << 10
"""More than a zygote has open."""


def run(handle: int) -> NoReturn:
    """Be the zygote until the other end of `handle` closes. Does not return."""
    # Away from the standard handles, which become /dev/null.
    connection = socket.fromfd(handle, socket.AF_UNIX, socket.SOCK_STREAM)
    kernel.close_inherited(connection.fileno())
    # One for all shims: the kernel gives each session as much of the processors as the service's (autogroup).
    os.setsid()
    os.chdir("/")
    kernel.name_process("ts-zygote")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The kernel reaps our children, also those of a killed shim: the machine's first process may be slow, and
    # until then a dying namespace waits for its dead.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    kernel.adopt_orphans()
    # Computed here, not again in each fork.
    call_filter.prepare()
    protocol.process_start(os.getpid())
    gc.collect()
    gc.freeze()
    Zygote(connection).serve()
    os._exit(0)


class Zygote:
    """Serves one connection and keeps the pool of idle shims."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._receiver = unix_sockets.Receiver(connection)
        #: A connection to each idle shim, which ends when this is closed; oldest first.
        self._idle: list[socket.socket] = []
        #: How many idle shims are wanted.
        self._size = 0
        #: The sandbox level that they are forked for.
        self._level = ""

    def serve(self) -> None:
        """Serve requests until the other end is closed."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        while True:
            # Idle shims' main processes are made as well, so that they need only a plan.
            while len(self._idle) < self._size and not poll.poll(_QUIET_MS):
                try:
                    self._idle.append(self._forked(self._level))
                except OSError:
                    break  # No memory for processes that only wait; after the next request there may be.
            poll.poll()
            requests = self._receiver.receive()
            if not requests:
                return
            for line, handle in requests:
                if line.startswith(b'{"pool"'):
                    message = json.loads(line)
                    self._size, self._level = message["pool"], message["level"]
                elif line.startswith(b'{"slot"'):
                    self._hand_on(line, handle)
                else:
                    self._fork(line, handle)
                os.close(handle)

    def _hand_on(self, line: bytes, handle: int) -> None:
        """Pass an order to an idle shim, or to a new fork."""
        is_idle = True
        while is_idle:
            is_idle = bool(self._idle)
            level = self._level or protocol.ordered(line)[1].isolation.level
            shim = self._idle.pop(0) if is_idle else self._forked(level, is_expected=True)
            with shim:
                try:
                    unix_sockets.send(shim, line + b"\n", handle)
                except OSError:
                    continue  # It was killed.
                return

    def _forked(self, level: str, *, is_expected: bool = False) -> socket.socket:
        """Fork a shim that waits for its order, and return the connection to it. Raises OSError.
        `is_expected`: an order is pending, so that the shim reports why it cannot carry it out."""
        ours, theirs = socket.socketpair()
        try:
            child = levels.fork(level)
        except OSError:
            if not is_expected:
                raise
            child = os.fork()
        if child == 0:
            try:
                self._leave_zygote(theirs.fileno())
                start.await_order(theirs, level, is_expected=is_expected)
            finally:
                os._exit(0)
        theirs.close()
        return ours

    def _fork(self, line: bytes, handle: int) -> None:
        """Fork a process that carries out another request, so that further ones do not wait for it."""
        if os.fork() == 0:
            try:
                self._leave_zygote(handle)
                connection = socket.socket(fileno=handle)
                if line.startswith(b'{"autopsy"'):
                    open_autopsy(line, connection)
                else:
                    message = json.loads(line)
                    answer = probe(message["probe"], message["levels"])
                    connection.sendall(protocol.encode(answer))
            finally:
                os._exit(0)

    def _leave_zygote(self, kept: int) -> None:
        """In a child: close all handles but `kept`. An idle shim would not end with the zygote if another
        process had the zygote's end of its socket."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.closerange(3, kept)
        os.closerange(kept + 1, _MOST_HANDLES)
        kernel.name_process("ts-shim")


_PROBE_USERS = 0x7FFF0000
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_WORKS = "works"


def probe(slot: str, wanted: Sequence[str]) -> protocol.Message:
    """Find out which levels work here, by starting a program at each in `slot`, an empty directory. Returns
    the answer to the request. A level that fails because the machine is short of something, probably for a
    while, ends it: a weaker one is never chosen for lack of a file handle."""
    refused: dict[str, str] = {}
    for level in wanted:
        cause, passes = _cause(level, slot)
        if passes:
            return {"failed": "isolation cannot be probed: %s (at level %s)" % (cause, level)}
        if cause is None:
            return {"level": level, "refused": refused}
        refused[level] = cause
    return {"level": "", "refused": refused}


def _cause(level: str, slot: str) -> "tuple[str | None, bool]":
    """Return why no program can be started at this level, None = one can, and whether that may pass."""
    if level == protocol.LEVEL_SESSION:
        return None, False
    if level in (protocol.LEVEL_OWN, protocol.LEVEL_ROOT) and os.geteuid() != 0:
        return "the service does not run as root", False
    answer, say = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(say, _attempt(level, slot, say).encode("utf-8", "replace"))
        finally:
            os._exit(0)
    os.close(say)
    with open(answer, encoding="utf-8") as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    if not text:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        # A filter of system calls kills by SIGSYS, always. A lack of memory kills by others, and may pass.
        return "the attempt was killed (signal %d)" % number, number != signal.SIGSYS
    error = re.search(r"\[Errno (\d+)\]", text)
    passes = int(error.group(1)) in _PASSING if error else "MemoryError" in text
    return None if text == _WORKS else text, passes


def _attempt(level: str, slot: str, say: int) -> str:
    """Start a program that writes a file and reports that; return why that failed, "" = success."""

    def write(main: program.Program) -> None:
        main.take_rights()
        with open("written", "w", encoding="utf-8") as file:
            file.write("x")
        os.write(say, _WORKS.encode())

    hosts = os.path.join(slot, "hosts")
    plan = protocol.LaunchDocument(
        incarnation=1,
        program=protocol.Program(argv=[], environ={}),
        isolation=protocol.Isolation(
            level=level,
            hostname="probe",
            hosts=hosts,
            buckets=[("probe", slot)],
            hidden=[slot],
            users=(_PROBE_USERS, users.COUNT) if level == protocol.LEVEL_OWN else (),
        ),
        limits=protocol.Limits(),
        network=protocol.Network(),
        observation=protocol.Observation(logs=slot),
    )
    try:
        os.makedirs(slot, exist_ok=True)
        with open(hosts, "w", encoding="utf-8") as file:
            file.write("127.0.0.1 localhost\n")
        enclosed = start.enclose(level, write)
        if isinstance(enclosed.main, OSError):
            raise enclosed.main
        _have_become(enclosed.main, protocol.encode({"slot": slot, "plan": plan.to_message()}))
    except (OSError, MemoryError) as error:
        return str(error) or repr(error)
    return ""


def _have_become(main: main_process.MainProcess, order: bytes) -> int:
    """Give a main process its order, and wait until it has become its program. Returns the handle for its
    socket calls; -1 = none. Raises OSError."""
    for line in (order.rstrip(b"\n"), b"claimed", b"go"):
        main.say(line)
    lines, handles = b"", list[int]()
    while (received := unix_sockets.receive_beside(main.control))[0]:
        lines += received[0]
        handles += received[1]
    for line in lines.splitlines():
        if line.startswith(b"failed "):
            raise OSError(line.partition(b" ")[2].decode("utf-8", "replace"))
    return handles[0] if lines.startswith(b"asked\n") else -1


def open_autopsy(order: bytes, connection: socket.socket) -> None:
    """Carry out an order, which the main process gets as well: JSON, {"autopsy": true, "slot": the directory
    with the files, "plan": a `LaunchDocument` without a program, "shell": an order for a shell}, which the
    main process becomes. Answers on `connection` as the shim of a live replica does (`shells`). Returns when
    the shell is over."""
    slot, plan = protocol.ordered(order)
    shell = json.loads(order)["shell"]
    groups = cgroups.ControlGroups(plan.limits)
    try:
        enclosed = start.enclose(
            plan.isolation.level, lambda program: shells.become(shell, connection, program)
        )
        os.chdir(slot)
        if isinstance(enclosed.main, OSError):
            raise enclosed.main
        groups.create()
        handle, network = _have_become(enclosed.main, order), plan.network
        port, kept = network.cluster_port, network.kept_ports
        calls = socket_calls.SocketCalls(handle, network.address, port, {}, kept)
        _attend(enclosed.main.process, connection, calls)
    except OSError as error:
        shells.refuse(connection, "its view cannot be made: %s" % error)
    finally:
        processes.end_descendants()
        cgroups.remove(groups.directories())


def _attend(shell: int, connection: socket.socket, calls: socket_calls.SocketCalls) -> None:
    """Make the socket calls of a shell, and report its end; hang it up if the other end is closed."""
    children, events = kernel.child_signals(), loop.Loop()

    def wake() -> None:
        os.read(children, 512)

    def answer() -> None:
        if not calls.answer():
            events.drop(calls.fileno())

    def hang_up() -> None:
        events.drop(connection.fileno())
        for number in (signal.SIGHUP, signal.SIGCONT):
            processes.send(shell, number)
        events.after(shells.GRACE, lambda: processes.send(shell, signal.SIGKILL))

    events.add(children, wake)
    if calls.fileno() >= 0:
        events.add(calls.fileno(), answer)
    # The closed other end is reported nevertheless.
    events.add(connection.fileno(), hang_up, 0)
    while True:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == shell:
            shells.tell_end(connection, status)
            return
        events.turn(0 if child else None)
