"""python -m trainshed_reduction.reducer: runs a reducer until SIGTERM, configured by its environment
(`variables`).

It has a thread for each processor, which mostly runs C code, and a main thread that watches. All threads end
together, because workers have a lane to each of them.
"""

from __future__ import annotations

import os
import queue
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from trainshed_reduction import settings, variables
from trainshed_reduction.native import library
from trainshed_reduction.process import Reports
from trainshed_reduction.reducer.server import Server
from trainshed_reduction.settings import Unusable
from trainshed_reduction.sockets import listen

IDLE_SECONDS = 60.0
"""Seconds without workers before a warning."""
_DUPLICATE_INTERVAL = 5.0
"""Seconds in which equal lines of several threads are one event."""
_SPAN = 10.0
_MAX_LINES = 50
"""Maximum lines in _SPAN seconds."""


class Overview:
    """Collects the reports of a reducer's threads for the log and the service. Times are seconds of one
    clock."""

    def __init__(self, reports: Reports, write: Callable[[str], None], now: float) -> None:
        self._reports = reports
        #: Takes a line.
        self._write = write
        #: The time of the verdict, or None.
        self.moment: Optional[float] = now + IDLE_SECONDS
        self._said: Dict[str, float] = {}
        self._span_from = now
        self._lines = 0

    def hear(self, what: str, value: Any, now: float) -> None:
        """Handle a thread's report (`Outlet`)."""
        if what == "log":
            self.log(value, now)
        elif what == "serving":
            self.serving(value)
        else:
            self.connected()

    def log(self, text: str, now: float) -> None:
        if now - self._said.get(text, now - _DUPLICATE_INTERVAL) < _DUPLICATE_INTERVAL:
            return
        if now - self._span_from >= _SPAN:
            left_out = self._lines - _MAX_LINES
            self._span_from, self._lines = now, 0
            self._said.clear()
            if left_out > 0:
                self._write(f"{left_out} lines like those before were left out")
        self._said[text] = now
        self._lines += 1
        if self._lines <= _MAX_LINES:
            self._write(text)

    def serving(self, world: int) -> None:
        self._reports.note("serving", f"serving {world} workers")

    def connected(self) -> None:
        self.moment = None

    def keep_time(self, now: float) -> None:
        if self.moment is not None and now >= self.moment:
            self.moment = None
            text = (
                f"No worker has connected for {IDLE_SECONDS:.0f} s: the reducers of worker pool 2 serve "
                "PyTorch (torch >= 2.7, DistributedDataParallel with gloo or nccl); TensorFlow, Horovod "
                "and programs that call NCCL themselves do not use them. Take worker pool 2 out of the "
                "job, or see the guide on the Reduction Server for what the workers' image must have."
            )
            # The service puts a note into the log itself.
            if not self._reports.note("idle", text, "WARNING"):
                self.log(text, now)


_ENDING = (signal.SIGTERM, signal.SIGINT)
_EXIT_TIMEOUT = 5.0
"""Seconds for the threads to exit."""


class Options(NamedTuple):
    address: Tuple[str, int]
    threads: int
    token: bytes


def options(environ: Mapping[str, str]) -> Options:
    """Read the options. Raises Unusable with all faults, and OSError (the token's file)."""
    faults: List[str] = []
    place = variables.place(environ.get(variables.LISTEN, ""))
    if place is None:
        faults.append(f"{variables.LISTEN} must be HOST:PORT")
    threads = environ.get(variables.THREADS, "") or str(len(os.sched_getaffinity(0)))
    faults += filter(None, [variables.fault(variables.THREADS, threads)])
    token = settings.token_of(environ)
    if not token:
        faults.append(f"neither {variables.TOKEN} nor {variables.TOKEN_FILE} is set")
    if faults or place is None:
        raise Unusable("; ".join(faults))
    return Options(place, int(threads), token)


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _fail(text: str) -> int:
    sys.stderr.write(f"reducer: {text}\n")
    return 2


def main() -> int:
    """Run a reducer. Return 0 after SIGTERM, 1 if a thread failed, and 2 if it could not start."""
    try:
        settings = options(os.environ)
    except (Unusable, OSError) as error:
        return _fail(str(error))
    reports = Reports(os.environ.get(variables.REPORT_FILE))
    native = library.load()
    if native is None:
        text = f"reducers need the package's part in C: {library.reason()}"
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        if not reports.note("no part in C", text, "WARNING"):
            _fail(text)
        # An exit would only cause a restart with the same error.
        signal.sigwait(_ENDING)
        return 0
    try:
        listener = listen(settings.address)
    except OSError as error:
        return _fail("cannot listen on {}:{}: {}".format(*settings.address, error))
    # Allow as many open files as possible: each connection is one, and there may be thousands.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return Process(settings, listener, native, reports).run()


class Process:
    """The threads of a reducer, and the loop that handles their reports."""

    def __init__(
        self, settings: Options, listener: socket.socket, native: library.Library, reports: Reports
    ) -> None:
        """Raises OSError."""
        #: What a thread reports, and the value (`Outlet`); also "end" with the exit status.
        self._news: queue.SimpleQueue[Tuple[str, Any]] = queue.SimpleQueue()
        self._overview = Overview(reports, _write, time.monotonic())
        self._servers = [
            Server(None if number else listener, settings.token, library=native, outlet=self._tell)
            for number in range(settings.threads)
        ]
        for server in self._servers:
            server.all = self._servers
        host, port = listener.getsockname()[:2]
        count = f"{settings.threads} thread{'' if settings.threads == 1 else 's'}"
        self._greeting = f"listening on {host}:{port} ({count})"

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, or until a thread fails; return the exit status."""
        # A signal handler would run in this thread, which may start to wait just after its check.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        threading.Thread(target=self._await_signal, daemon=True).start()
        threads = [
            threading.Thread(target=self._serve, args=pair, daemon=True)
            for pair in enumerate(self._servers)
        ]
        for thread in threads:
            thread.start()
        _write(self._greeting)
        ended: Optional[int] = None
        while ended is None:
            ended = self._hear()
        for server in self._servers:
            server.end()
        deadline = time.monotonic() + _EXIT_TIMEOUT
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        while not self._news.empty():
            self._hear()
        return ended

    def _tell(self, what: str, value: object) -> None:
        self._news.put((what, value))

    def _await_signal(self) -> None:
        signal.sigwait(_ENDING)
        self._tell("end", 0)

    def _serve(self, number: int, server: Server) -> None:
        try:
            server.run()
        except Exception:
            # For any error: otherwise workers would wait for a reducer that serves only some of its lanes.
            traceback.print_exc()
            self._tell("log", f"thread {number} has failed: the reducer ends")
            self._tell("end", 1)

    def _hear(self) -> Optional[int]:
        """Handle a report or a due action. Return the exit status to end the process."""
        moment = self._overview.moment
        patience = None if moment is None else max(0.0, moment - time.monotonic())
        try:
            what, value = self._news.get(timeout=patience)
            if what == "end":
                return value
            self._overview.hear(what, value, time.monotonic())
        except queue.Empty:
            pass
        self._overview.keep_time(time.monotonic())
        return None


if __name__ == "__main__":
    sys.exit(main())
