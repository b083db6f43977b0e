"""The processes of a reducer: one that only watches, and one for each processor that serves a port of its
own.

They end together: workers count on all ports that they were told of, so a reducer without one of its
processes is none.
"""

from __future__ import annotations

import json
import os
import resource
import select
import selectors
import signal
import socket
import ssl
import sys
import time
import traceback
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

from trainshed_reduction.native.library import Library
from trainshed_reduction.reducer.counters import Outlet, Overview
from trainshed_reduction.reducer.server import Server

_BACKLOG = 4096
_END_SECONDS = 5.0
"""For the processes to end by themselves."""
_TOGETHER = 1.0
"""Seconds within which a signal for all of them reaches the last."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Process(NamedTuple):
    number: int
    pid: int
    port: int
    reports: int
    """The read end of what it tells."""


def listen(address: "Tuple[str, int]", processes: int) -> List[socket.socket]:
    """The first at `address`, the others at free ports of the same host. Raises OSError."""
    listeners: List[socket.socket] = []
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        for number in range(processes):
            listener = socket.socket(family, socket.SOCK_STREAM)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, 0 if number else port))
            listener.listen(_BACKLOG)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


class Signals:
    """SIGTERM and SIGINT as a handle that becomes readable."""

    def __init__(self) -> None:
        self._woken_by, self._waker = socket.socketpair()
        self._woken_by.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for each in _SIGNALS:
            signal.signal(each, lambda _number, _frame: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def fileno(self) -> int:
        return self._woken_by.fileno()


def _outlet(handle: int) -> Outlet:
    """To the process that watches, a line of JSON for everything."""
    file = os.fdopen(handle, "w", encoding="utf-8")

    def tell(what: str, value: object) -> None:
        try:
            file.write(json.dumps([what, value]) + "\n")
            file.flush()
        except OSError:
            pass  # Nobody watches any more; the other pipe says so too.

    return tell


class Supervisor:
    """The processes of one reducer, watched by the first: `run` returns the exit status of the whole."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        *,
        token: bytes,
        tls: Optional[ssl.SSLContext],
        library: Library,
        overview: Overview,
        write: Callable[[str], None],
    ) -> None:
        self._listeners = listeners
        self._ports = [each.getsockname()[1] for each in listeners]
        self._token = token
        self._tls = tls
        self._library = library
        self._overview = overview
        #: Takes a line for a person.
        self._write = write
        self._selector = selectors.DefaultSelector()
        self._rest = [b""] * len(listeners)
        self._alive_read, self._alive_write = os.pipe()
        self._processes: List[_Process] = []

    def run(self) -> int:
        _allow_handles()
        # What comes before a process has somewhere to hear it waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for number in range(len(self._listeners)):
            self._processes.append(self._start(number))
        signals = Signals()
        os.close(self._alive_read)
        places = ["{}:{}".format(*each.getsockname()[:2]) for each in self._listeners]
        self._write("listening on {}{}".format(", ".join(places), " with TLS" if self._tls else ""))
        for listener in self._listeners:
            listener.close()
        for process in self._processes:
            self._selector.register(process.reports, selectors.EVENT_READ, process)
        self._selector.register(signals.fileno(), selectors.EVENT_READ)
        ended = self._watch(signals)
        self._end_all()
        self._overview.report()
        return ended

    def _start(self, number: int) -> _Process:
        read, write = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(read)
                os.close(self._alive_write)
                self._selector.close()
                for other in self._processes:
                    os.close(other.reports)
                self._serve(number, write)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        os.close(write)
        return _Process(number, pid, self._ports[number], read)

    def _serve(self, number: int, write: int) -> None:
        for other, listener in enumerate(self._listeners):
            if other != number:
                listener.close()
        server = Server(
            self._listeners[number],
            self._ports,
            self._token,
            library=self._library,
            outlet=_outlet(write),
            tls=self._tls,
        )
        signals = Signals()
        server.watch(signals.fileno(), server.end)
        server.watch(self._alive_read, server.end)
        server.run()
        # Whoever ends a whole group of processes tells this one twice, and where signals go to is closed from
        # here on.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def _watch(self, signals: Signals) -> int:
        """Until a signal comes, or a process ends that should not."""
        while True:
            moment = self._overview.moment
            patience = None if moment is None else max(0.0, moment - time.monotonic())
            for key, _ in self._selector.select(patience):
                if not isinstance(key.data, _Process):
                    return 0
                if not self._hear(key.data):
                    _, status = os.waitpid(key.data.pid, 0)
                    if status == 0 and select.select([signals], [], [], _TOGETHER)[0]:
                        return 0  # All were told to end, and that one was quicker.
                    self._write(_obituary(key.data, status))
                    return 1
            self._overview.keep_time(time.monotonic())

    def _hear(self, process: _Process) -> bool:
        """Whether it is still there."""
        data = os.read(process.reports, 64 << 10)
        if not data:
            self._selector.unregister(process.reports)
            self._processes.remove(process)
            return False
        *lines, self._rest[process.number] = (self._rest[process.number] + data).split(b"\n")
        now = time.monotonic()
        for line in lines:
            self._overview.hear(process.number, *json.loads(line), now=now)
        return True

    def _end_all(self) -> None:
        for process in self._processes:
            os.kill(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        while self._processes and time.monotonic() < deadline:
            for key, _ in self._selector.select(deadline - time.monotonic()):
                if isinstance(key.data, _Process) and not self._hear(key.data):
                    os.waitpid(key.data.pid, 0)
        for process in self._processes:
            os.kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)


def _obituary(process: _Process, status: int) -> str:
    how = (
        "was killed by signal {}".format(os.WTERMSIG(status))
        if os.WIFSIGNALED(status)
        else "ended with exit status {}".format(os.WEXITSTATUS(status))
    )
    return "process {} (port {}) {}: the reducer ends".format(process.number, process.port, how)


def _allow_handles() -> None:
    """A connection is a handle, and there may be thousands."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
