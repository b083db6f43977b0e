"""Runs a small process that keeps forked shims ready, so that no replica waits for an interpreter's start.

The service starts the zygote before it has threads, sockets or a database. If the zygote dies, the service
starts another one; running shims are not affected. The zygote has no state worth keeping.

Requests arrive on a stream socket pair as JSON lines, each with a file descriptor.
- {"slot": PATH, "plan": LAUNCH DOCUMENT}: become a replica's shim; the file descriptor is its connection
  to the service.
- {"probe": PATH, "levels": LEVELS}: find a sandbox level that works (`supervisor/isolation_probe.py`). The
  response on the file descriptor is one line: {"level": the first level that works, "refused": {LEVEL: the
  reason}}, or {"failed": the error of the probe}.
- {"autopsy": true, ...}: open a shell in the files of a failed replica (`supervisor/autopsy_shell.py`).
- {"pool": NUMBER, "level": LEVEL}: keep this number of idle shims ready.
If the zygote dies, the kernel closes the file descriptors of its requests, which the service detects.
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
"""Milliseconds without a request before the zygote forks an idle shim. In this time, even sixteen requested
programs have usually started, so that the fork does not compete with them for processor time."""
_MAX_HANDLES = 1 << 10
"""Descriptors with this number or a higher one are never open in the zygote."""


def run(handle: int) -> NoReturn:
    """Run the zygote until the service closes its own socket of the pair. `handle`: file descriptor of the
    zygote's socket. Does not return."""
    # Use a copy, because the file descriptors 0 to 2 become /dev/null.
    connection = socket.fromfd(handle, socket.AF_UNIX, socket.SOCK_STREAM)
    kernel.close_inherited(connection.fileno())
    # All shims share one session. The kernel gives each session the same processor time (autogroup), so many
    # sessions would leave little for the service.
    os.setsid()
    os.chdir("/")
    kernel.name_process("ts-zygote")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # If SIGCHLD is ignored, the kernel reaps this process's children and those of killed shims. The machine's
    # process 1 may be slow to reap them, and a dying namespace exists until all its processes are reaped.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    kernel.adopt_orphans()
    # Compute these data once, because each fork would repeat the work.
    call_filter.prepare()
    protocol.process_start(os.getpid())
    gc.collect()
    gc.freeze()
    Zygote(connection).serve()
    os._exit(0)


class Zygote:
    """Serves the connection to one service and keeps the pool of idle shims."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._receiver = unix_sockets.Receiver(connection)
        #: Connections to the idle shims, oldest first. Closing a connection ends its shim.
        self._idle: list[socket.socket] = []
        #: Requested number of idle shims.
        self._size = 0
        #: Sandbox level of the idle shims.
        self._level = ""

    def serve(self) -> None:
        """Serve requests until the service closes the connection."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        while True:
            # Fork idle shims in advance: each already has its main process, and needs only a launch document.
            while len(self._idle) < self._size and not poll.poll(_QUIET_MS):
                try:
                    self._idle.append(self._fork_shim(self._level))
                except OSError:
                    # Memory is short: wait for the next request, and then try the fork again.
                    break
            poll.poll()
            requests = self._receiver.receive()
            if not requests:
                return
            for line, handle in requests:
                if line.startswith(b'{"pool"'):
                    message = json.loads(line)
                    self._size, self._level = message["pool"], message["level"]
                elif line.startswith(b'{"slot"'):
                    self._dispatch(line, handle)
                else:
                    self._fork_request(line, handle)
                os.close(handle)

    def _dispatch(self, line: bytes, handle: int) -> None:
        """Pass an order to an idle shim, or to a new one."""
        is_idle = True
        while is_idle:
            is_idle = bool(self._idle)
            level = self._level or protocol.parse_order(line)[1].isolation.level
            shim = self._idle.pop(0) if is_idle else self._fork_shim(level, is_expected=True)
            with shim:
                try:
                    unix_sockets.send(shim, line + b"\n", handle)
                except OSError:
                    continue  # The idle shim was killed: try the next shim.
                return

    def _fork_shim(self, level: str, *, is_expected: bool = False) -> socket.socket:
        """Fork a shim that waits for its order; return the connection to it. Raises OSError. `is_expected`:
        an order is pending. If the shim cannot carry out this order, it reports the reason."""
        ours, theirs = socket.socketpair()
        try:
            child = levels.fork(level)
        except OSError:
            if not is_expected:
                raise
            child = os.fork()
        if child == 0:
            try:
                self._close_handles(theirs.fileno())
                start.await_order(theirs, level, is_expected=is_expected)
            finally:
                os._exit(0)
        theirs.close()
        return ours

    def _fork_request(self, line: bytes, handle: int) -> None:
        """Fork a process that carries out a probe, or a shell in the files of a failed replica (autopsy), so
        that later requests do not wait for it."""
        if os.fork() == 0:
            try:
                self._close_handles(handle)
                connection = socket.socket(fileno=handle)
                if line.startswith(b'{"autopsy"'):
                    autopsy_shell.open_autopsy(line, connection)
                else:
                    message = json.loads(line)
                    answer = isolation_probe.probe(message["probe"], message["levels"])
                    connection.sendall(protocol.encode(answer))
            finally:
                os._exit(0)

    def _close_handles(self, kept: int) -> None:
        """Close all inherited file descriptors except `kept`, in a child. Otherwise the child would keep the
        zygote's connections to idle shims open, and these shims would survive the zygote."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.closerange(3, kept)
        os.closerange(kept + 1, _MAX_HANDLES)
        kernel.name_process("ts-shim")
