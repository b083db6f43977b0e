"""Runs a small process that keeps forked shims ready, so that no replica waits for an interpreter's start.

The service starts it before it has threads, sockets or a database. If it dies, another is started, and
running shims do not notice. It holds no state that matters.

Requests come over a stream socket pair: JSON lines, each with a file handle.
- {"slot": PATH, "plan": LAUNCH DOCUMENT}: become a replica's shim; the handle is its connection to the
  service.
- {"probe": PATH, "levels": LEVELS}: answer on the handle with one line {"level": the first one that works,
  "refused": {LEVEL: why not}}, or {"failed": why it is not known}.
- {"autopsy": true, ...}: open a shell over what a failed replica left (`open_autopsy`).
- {"sweep": PATH}: delete what is in that directory, and close the handle when that is done.
- {"pool": NUMBER, "level": LEVEL}: from now on keep so many idle shims ready.
- {"ping": true}: close the handle, because all earlier requests have been taken up.
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
from trainshed.replica.supervisor import memory_limit, start
from trainshed.replica.system import cgroups, kernel, loop, processes, trees, unix_sockets

_QUIET_MS = 40
"""Milliseconds without a request before an idle shim is forked: by then the programs that were requested have
most likely been started, and until then they are to have the processors."""


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
            handles = [handle for _, handle in requests]
            for line, handle in requests:
                if line.startswith(b'{"pool"'):
                    message = json.loads(line)
                    self._size, self._level = message["pool"], message["level"]
                elif line.startswith(b'{"ping"'):
                    pass  # Closing its handle is the answer.
                elif not (line.startswith(b'{"slot"') and self._hand_on(line, handle)):
                    self._fork(line, handle, handles)
                os.close(handle)
                handles.remove(handle)

    def _fill_pool(self, poll: select.poll) -> None:
        """Bring the pool to its size, until a request can be read."""
        while len(self._idle) < self._size:
            if poll.poll(_QUIET_MS):
                return
            self._add_idle()
        poll.poll()

    def _add_idle(self) -> None:
        """Fork an idle shim, whose guardian is made as well, so that they need only a plan."""
        ours, theirs = socket.socketpair()
        try:
            child = os.fork()
        except OSError:
            self._size = 0  # No memory for processes that only wait.
            return
        if child == 0:
            try:
                ours.close()
                self._leave_zygote([])
                start.await_order(theirs, self._level)
            finally:
                os._exit(0)
        theirs.close()
        self._idle.append(ours)

    def _hand_on(self, line: bytes, handle: int) -> bool:
        """Pass a request on to an idle shim; return false if there is none."""
        while self._idle:
            with self._idle.pop(0) as connection:
                try:
                    unix_sockets.send(connection, line + b"\n", handle)
                except OSError:
                    continue  # The idle shim was killed.
                return True
        return False

    def _fork(self, line: bytes, handle: int, handles: list[int]) -> None:
        """Fork a process that carries out one request. `handles`: those of all requests just received."""
        if os.fork() == 0:
            try:
                self._leave_zygote([other for other in handles if other != handle])
                _become(line, handle)
            finally:
                os._exit(0)

    def _leave_zygote(self, close: list[int]) -> None:
        """In a child: close the zygote's own handles, and those in `close`. An idle shim would not end with
        the zygote if another process had the zygote's end of its socket."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setsid()
        kernel.close_all(close + self._receiver.handles())
        for connection in self._idle:
            connection.close()
        self._connection.close()
        kernel.name_process("ts-shim")


def _become(line: bytes, handle: int) -> None:
    """Carry out one request, in a process of its own, so that other requests do not wait for it."""
    connection = socket.socket(fileno=handle)
    if line.startswith(b'{"slot"'):
        start.run_incarnation(line, connection)
        return
    if line.startswith(b'{"autopsy"'):
        open_autopsy(line, connection)
        return
    message = json.loads(line)
    if "probe" in message:
        try:
            level, refused = levels.probe(message["probe"], message["levels"])
        except levels.ProbeFailed as failure:
            connection.sendall(protocol.encode({"failed": str(failure)}))
        else:
            connection.sendall(protocol.encode({"level": level, "refused": refused}))
    else:
        trees.sweep(message["sweep"])


def open_autopsy(order: bytes, connection: socket.socket) -> None:
    """Carry out an order, which the guardian gets as well: JSON, {"autopsy": true, "slot": the directory with
    the files, "plan": a `LaunchDocument` without a program, "shell": an order for a shell}. Answers on
    `connection` as the shim of a live replica does (`shells`). Returns when the shell is over."""
    slot, plan = start.ordered(order)
    os.chdir(slot)
    sandbox = Sandbox(plan, json.loads(order.decode("utf-8"))["shell"], connection)
    try:
        sandbox.run(order)
    except OSError as error:
        sandbox.refuse("its view cannot be made: %s" % error)


class Sandbox:
    """Makes the view, has the guardian open the shell, and cleans up after both."""

    def __init__(
        self,
        plan: protocol.LaunchDocument,
        shell: protocol.Message,
        connection: socket.socket,
    ) -> None:
        self._plan = plan
        self._shell = shell
        self._connection: socket.socket | None = connection
        self._groups = cgroups.ControlGroups(plan.limits)
        self._loop = loop.Loop()
        self._inbox = b""
        self._ended = False

    def refuse(self, cause: str) -> None:
        """Send the reason why there is no shell, unless the connection was handed to the guardian."""
        if self._connection is not None:
            try:
                self._connection.sendall(protocol.encode({"e": "refused", "cause": cause}))
            except OSError:
                return  # The peer is gone.

    def run(self, order: bytes) -> None:
        """Serve the shell until it is over. Raises OSError."""
        plan = self._plan
        child = start.GuardianHandle(plan.isolation.level)
        watched: memory_limit.MemoryLimit | None = None
        try:
            self._groups.create()
            watched = memory_limit.MemoryLimit(
                groups=self._groups,
                limit=plan.limits.memory_limit,
                polled=plan.limits.memory_polling,
                guardian=child.process,
                events=self._loop,
                has_ended=lambda: self._ended,
            )
            child.announce(order)
            with open(os.devnull) as no_lock:
                child.grant(no_lock.fileno())
            child.control.sendall(b"go\n")
            self._loop.add(child.control.fileno(), lambda: self._hear(child.control))
            watched.listen()
            watched.program_started()
            while not self._ended:
                self._loop.turn(None)
        finally:
            os.kill(child.process, signal.SIGKILL)
            os.waitpid(child.process, 0)
            if plan.isolation.level == protocol.LEVEL_SESSION:
                processes.end_descendants()
            if watched is not None:
                watched.close()
            cgroups.remove(self._groups.directories())

    def _hear(self, control: socket.socket) -> None:
        try:
            data = control.recv(4096)
        except ConnectionResetError:
            data = b""
        self._inbox += data
        *lines, self._inbox = self._inbox.split(b"\n")
        for line in lines:
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            if word == "started" and self._connection is not None:
                text = b"shell " + protocol.encode(self._shell)
                unix_sockets.send(control, text, self._connection.fileno())
                self._connection.close()
                self._connection = None
            elif word in ("failed", "full"):
                self.refuse("its view cannot be made: %s" % rest)
                self._ended = True
        if not data:
            self._ended = True
