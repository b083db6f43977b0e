"""python -m trainshed_reduction.reducer: runs a reducer until SIGTERM, configured by its environment
(`variables`).

A reducer has one thread per processor, which mostly runs C code, and a main thread that supervises them. All
threads end together, because each worker has a connection (lane) to every thread.
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
"""Seconds without a connected worker after which the reducer warns."""
_DUPLICATE_INTERVAL = 5.0
"""Seconds within which a line that several threads log is written only once."""
_LOG_INTERVAL = 10.0
_MAX_LINES = 50
"""Maximum number of lines in the log per `_LOG_INTERVAL`."""


class Overview:
    """Collects the reports of a reducer's threads for the log and for the service. Times are seconds of the
    monotonic clock."""

    def __init__(self, reports: Reports, write: Callable[[str], None], now: float) -> None:
        self._reports = reports
        #: Function that writes a line to the log.
        self._write = write
        #: Time at which to warn that no worker has connected; None = do not warn.
        self.idle_at: Optional[float] = now + IDLE_SECONDS
        self._logged: Dict[str, float] = {}
        self._interval_start = now
        self._lines = 0

    def handle(self, kind: str, value: Any, now: float) -> None:
        """Handle a report of a thread (see `Outlet`)."""
        if kind == "log":
            self.log(value, now)
        elif kind == "serving":
            self._reports.add_note("serving", f"serving {value} workers")
        else:
            self.idle_at = None

    def log(self, text: str, now: float) -> None:
        if now - self._logged.get(text, now - _DUPLICATE_INTERVAL) < _DUPLICATE_INTERVAL:
            return
        if now - self._interval_start >= _LOG_INTERVAL:
            omitted = self._lines - _MAX_LINES
            self._interval_start, self._lines = now, 0
            self._logged.clear()
            if omitted > 0:
                self._write(f"{omitted} similar lines were omitted")
        self._logged[text] = now
        self._lines += 1
        if self._lines <= _MAX_LINES:
            self._write(text)

    def check_idle(self, now: float) -> None:
        """Report to the service if no worker has connected for `IDLE_SECONDS`."""
        if self.idle_at is not None and now >= self.idle_at:
            self.idle_at = None
            text = (
                f"No worker has connected for {IDLE_SECONDS:.0f} s. The reducers of worker pool 2 support "
                "PyTorch (torch >= 2.7, DistributedDataParallel with gloo or nccl). TensorFlow, Horovod "
                "and programs that call NCCL themselves do not use them. Remove worker pool 2 from the "
                "job, or prepare the workers' image as the guide on the Reduction Server describes."
            )
            # The service logs the notes of the report, so log the text only if the note was not written.
            if not self._reports.add_note("idle", text, "WARNING"):
                self.log(text, now)


_ENDING = (signal.SIGTERM, signal.SIGINT)
_EXIT_TIMEOUT = 5.0
"""Maximum seconds to wait for the end of the threads."""


class Options(NamedTuple):
    address: Tuple[str, int]
    threads: int
    token: bytes


def options(environ: Mapping[str, str]) -> Options:
    """Read the reducer's options from the environment. Raises Unusable with all errors in them, and OSError
    if the token's file is unreadable."""
    faults: List[str] = []
    place = variables.parse_address(environ.get(variables.LISTEN, ""))
    if place is None:
        faults.append(f"{variables.LISTEN} must be HOST:PORT")
    threads = environ.get(variables.THREADS, "") or str(len(os.sched_getaffinity(0)))
    faults += filter(None, [variables.find_error(variables.THREADS, threads)])
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
        text = f"reducers need the package's C library: {library.reason()}"
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        if not reports.add_note("no part in C", text, "WARNING"):
            _fail(text)
        # Do not exit, because the service would restart the reducer, and the same error would occur.
        signal.sigwait(_ENDING)
        return 0
    try:
        listener = listen(settings.address)
    except OSError as error:
        return _fail("cannot listen on {}:{}: {}".format(*settings.address, error))
    # Raise the limit of open files, because there may be thousands of connections to workers.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return Process(settings, listener, native, reports).run()


class Process:
    """The threads of a reducer, and the loop in the main thread that handles their reports."""

    def __init__(
        self, settings: Options, listener: socket.socket, native: library.Library, reports: Reports
    ) -> None:
        """Raises OSError."""
        #: Reports of the threads: kind and value (`Outlet`). The kind "end" has the exit status as its value.
        self._news: queue.SimpleQueue[Tuple[str, Any]] = queue.SimpleQueue()
        self._overview = Overview(reports, _write, time.monotonic())
        self._servers = [
            Server(None if number else listener, settings.token, library=native, outlet=self._put)
            for number in range(settings.threads)
        ]
        for server in self._servers:
            server.all = self._servers
        host, port = listener.getsockname()[:2]
        count = f"{settings.threads} thread{'' if settings.threads == 1 else 's'}"
        self._greeting = f"listening on {host}:{port} ({count})"

    def run(self) -> int:
        """Run until SIGTERM, SIGINT, or the failure of a thread. Return the exit status."""
        # Do not use a signal handler of Python. It would run in this thread, which may start to wait just
        # after it has checked for the signal.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        threading.Thread(target=self._await_signal, daemon=True).start()
        threads = [
            threading.Thread(target=self._serve, args=pair, daemon=True) for pair in enumerate(self._servers)
        ]
        for thread in threads:
            thread.start()
        _write(self._greeting)
        ended: Optional[int] = None
        while ended is None:
            ended = self._handle_next()
        for server in self._servers:
            server.end()
        deadline = time.monotonic() + _EXIT_TIMEOUT
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        while not self._news.empty():
            self._handle_next()
        return ended

    def _put(self, kind: str, value: object) -> None:
        self._news.put((kind, value))

    def _await_signal(self) -> None:
        signal.sigwait(_ENDING)
        self._put("end", 0)

    def _serve(self, number: int, server: Server) -> None:
        try:
            server.run()
        except Exception:
            # End the process after any error of a thread. Otherwise workers would wait for a reducer that
            # serves only some of their connections (lanes).
            traceback.print_exc()
            self._put("log", f"thread {number} has failed: the reducer exits")
            self._put("end", 1)

    def _handle_next(self) -> Optional[int]:
        """Handle the next report of a thread, or the next due action. Return the exit status if the process
        must end, otherwise None."""
        idle_at = self._overview.idle_at
        timeout = None if idle_at is None else max(0.0, idle_at - time.monotonic())
        try:
            kind, value = self._news.get(timeout=timeout)
            if kind == "end":
                return value
            self._overview.handle(kind, value, time.monotonic())
        except queue.Empty:
            pass
        self._overview.check_idle(time.monotonic())
        return None


if __name__ == "__main__":
    sys.exit(main())
