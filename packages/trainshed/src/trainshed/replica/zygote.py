"""Runs a small process that keeps forked shims ready, so that no replica waits for an interpreter's start.

The service starts it before it has threads, sockets or a database. If it dies, another is started, and
running shims do not notice. It holds no state that matters.

Requests come over a stream socket pair: JSON lines, each with a file handle.
- {"slot": PATH, "plan": LAUNCH DOCUMENT}: become a replica's shim; the handle is its connection to the
  service.
- {"probe": PATH, "levels": LEVELS}: answer on the handle with one line {"level": the first one that works,
  "refused": {LEVEL: why not}}, or {"failed": why it is not known}.
- {"autopsy": true, ...}: open a shell over what a failed replica left (`open_autopsy`).
- {"pool": NUMBER, "level": LEVEL}: from now on keep so many idle shims ready.
If the zygote dies, the handles of its requests are closed, which the other end sees.
"""

import gc
import json
import os
import select
import signal
import socket
from typing import NoReturn

from trainshed.replica import protocol
from trainshed.replica.sandbox import call_filter, levels
from trainshed.replica.supervisor import main_process, memory_limit, shells, start
from trainshed.replica.system import cgroups, kernel, loop, processes, unix_sockets

_QUIET_MS = 40
"""Milliseconds without a request before an idle shim is forked: by then the programs that were requested have
most likely been started, and until then they are to have the processors."""
_MOST_HANDLES = 1 << 10
"""More than a zygote has open."""


def run(handle: int) -> NoReturn:
    """Be the zygote until the other end of `handle` closes. Does not return."""
    # Away from the standard handles, which become /dev/null.
    connection = socket.fromfd(handle, socket.AF_UNIX, socket.SOCK_STREAM)
    kernel.close_inherited(connection.fileno())
    os.setsid()
    os.chdir("/")
    kernel.name_process("ts-zygote")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The kernel reaps our children, since nobody here waits for them. It does so for what a killed shim
    # leaves, too: the machine's first process may take its time, and until then a dying namespace waits for
    # its dead.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    kernel.adopt_orphans()
    # What no fork has to find out anew.
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
            self._fill_pool(poll)
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

    def _fill_pool(self, poll: select.poll) -> None:
        """Bring the pool to its size, until a request can be read."""
        while len(self._idle) < self._size:
            if poll.poll(_QUIET_MS):
                return
            self._add_idle()
        poll.poll()

    def _add_idle(self) -> None:
        """Fork an idle shim, whose main process is made as well, so that they need only a plan."""
        try:
            self._idle.append(self._forked(self._level))
        except OSError:
            self._size = 0  # No memory for processes that only wait.

    def _hand_on(self, line: bytes, handle: int) -> None:
        """Pass an order on to an idle shim, or else to one that is forked for it."""
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
        """Fork a shim that waits for its order, and return the connection to it. `is_expected`: the order is
        there, so that the shim says what keeps it from being carried out. Raises OSError."""
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
        """Fork a process that carries out another request."""
        if os.fork() == 0:
            try:
                self._leave_zygote(handle)
                _become(line, handle)
            finally:
                os._exit(0)

    def _leave_zygote(self, kept: int) -> None:
        """In a child: close all handles but `kept`. An idle shim would not end with the zygote if another
        process had the zygote's end of its socket."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.closerange(3, kept)
        os.closerange(kept + 1, _MOST_HANDLES)
        kernel.name_process("ts-shim")


def _become(line: bytes, handle: int) -> None:
    """Carry out one request, in a process of its own, so that other requests do not wait for it."""
    connection = socket.socket(fileno=handle)
    if line.startswith(b'{"autopsy"'):
        open_autopsy(line, connection)
        return
    message = json.loads(line)
    try:
        level, refused = levels.probe(message["probe"], message["levels"])
    except levels.ProbeFailed as failure:
        connection.sendall(protocol.encode({"failed": str(failure)}))
    else:
        connection.sendall(protocol.encode({"level": level, "refused": refused}))


def open_autopsy(order: bytes, connection: socket.socket) -> None:
    """Carry out an order, which the main process gets as well: JSON, {"autopsy": true, "slot": the directory
    with the files, "plan": a `LaunchDocument` without a program, "shell": an order for a shell}. Answers on
    `connection` as the shim of a live replica does (`shells`). Returns when the shell is over."""
    slot, plan = protocol.ordered(order)
    enclosed = start.enclose(plan.isolation.level)
    os.chdir(slot)
    sandbox = Sandbox(slot, plan, json.loads(order.decode("utf-8"))["shell"], connection)
    try:
        if isinstance(enclosed.main, OSError):
            raise enclosed.main
        sandbox.run(order, enclosed.main)
    except OSError as error:
        sandbox.refuse("its view cannot be made: %s" % error)


class Sandbox:
    """Has the main process make the view, opens the shell in it, and cleans up after both."""

    def __init__(
        self,
        slot: str,
        plan: protocol.LaunchDocument,
        shell: protocol.Message,
        connection: socket.socket,
    ) -> None:
        self._slot = slot
        self._plan = plan
        self._shell = shell
        self._connection: socket.socket | None = connection
        self._groups = cgroups.ControlGroups(plan.limits)
        self._loop = loop.Loop()
        self._inbox = b""
        self._handles: list[int] = []
        self._shells: shells.Shells | None = None
        self._ended = False

    def refuse(self, cause: str) -> None:
        """Send the reason why there is no shell, unless the connection is the shell's already."""
        if self._connection is not None:
            shells.refuse(self._connection, cause)

    def run(self, order: bytes, main: main_process.MainProcess) -> None:
        """Serve the shell until it is over. Raises OSError."""
        plan = self._plan
        watched: memory_limit.MemoryLimit | None = None
        try:
            self._groups.create()
            watched = memory_limit.MemoryLimit(
                groups=self._groups,
                limit=plan.limits.memory_limit,
                shim=os.getpid(),
                events=self._loop,
                main=lambda: 0,
                has_ended=lambda: self._ended,
            )
            main.say(order)
            main.say(b"claimed")
            main.say(b"go")
            children = kernel.child_signals()
            self._loop.add(children, lambda: self._reap(children))
            self._loop.add(main.control.fileno(), lambda: self._hear(main.control))
            watched.program_started()
            while not self._ended:
                self._loop.turn(None)
        finally:
            processes.end_descendants()
            if watched is not None:
                watched.close()
            cgroups.remove(self._groups.directories())

    def _hear(self, control: socket.socket) -> None:
        try:
            data, handles = unix_sockets.receive_some(control)
        except ConnectionResetError:
            data, handles = b"", []
        self._handles += handles
        self._inbox += data
        *lines, self._inbox = self._inbox.split(b"\n")
        for line in lines:
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            if word == "made" and self._connection is not None:
                self._open_shell(json.loads(rest), self._connection)
                self._connection = None
            elif word in ("failed", "full"):
                self.refuse("its view cannot be made: %s" % rest)
                self._ended = True
        if not data:
            self._loop.drop(control.fileno())
            self._ended = self._ended or self._shells is None

    def _open_shell(self, made: protocol.Message, connection: socket.socket) -> None:
        program = main_process.program_of(self._slot, self._plan, self._groups, (-1, -1))
        self._shells = shells.inside(
            self._plan,
            program,
            self._groups,
            made,
            self._handles,
            events=self._loop,
            take_calls=os.close,
        )
        self._shells.open(self._shell, connection)

    def _reap(self, children: int) -> None:
        os.read(children, 512)
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if child == 0:
                break
            if self._shells is not None:
                self._shells.reaped(child, status)
        self._ended = self._ended or (self._shells is not None and self._shells.are_over)
