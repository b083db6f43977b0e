"""Runs a small process that keeps forked shims ready, so that no replica waits for an interpreter's start.

The service starts it before it has threads, sockets or a database. If it dies, another is started, and
running shims do not notice. It holds no state that matters.

Requests come over a stream socket pair: JSON lines, each with a file handle.
- {"slot": PATH, "plan": LAUNCH DOCUMENT}: become a replica's shim; the handle is its connection to the
  service.
- {"probe": PATH, "levels": LEVELS}: find a sandbox level that works (`supervisor/isolation_probe.py`). The
  answer on the handle is one line: {"level": the first one that works, "refused": {LEVEL: reason}}, or
  {"failed": the error of the probe}.
- {"autopsy": true, ...}: open a shell in the files of a failed replica (`supervisor/autopsy_shell.py`).
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
from trainshed.replica.supervisor import autopsy_shell, isolation_probe, start
from trainshed.replica.system import kernel, unix_sockets

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
                    autopsy_shell.open_autopsy(line, connection)
                else:
                    message = json.loads(line)
                    answer = isolation_probe.probe(message["probe"], message["levels"])
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
