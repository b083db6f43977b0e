"""Python processes that need not load their modules: forks of a process that has loaded them (ADR 54).

Loading the modules of a service or of the Vertex SDK takes longer than most tests. A fork server is a
single-threaded process that has loaded the modules and does nothing else. `fork` is like
`subprocess.Popen([sys.executable, ...])`, except for the visible command line. test_up.py starts real
services. A fork server ends with the test process that started it.
"""

import array
import atexit
import contextlib
import faulthandler
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

SERVICE = (
    "trainshed.serve.clock",
    "trainshed.serve.up",
    "trainshed.serve.service",
    "trainshed.serve.app",
    *("trainshed.serve.bootstrap", "trainshed.serve.children"),
    *("trainshed.engines.local.spawner", "trainshed.runtimes.service"),
    "trainshed.store.sqlite.writer",
    "trainshed.store.sqlite.reader",
    "trainshed.store.sqlite.snapshots",
    *("google.api.annotations_pb2", "google.api.field_behavior_pb2", "uvicorn.loops.uvloop"),
    *("trainshed.cli.commands", "trainshed.cli.connection", "trainshed.cli.jobs"),
    *("uvicorn.protocols.http.httptools_impl", "uvloop", "multiprocessing.connection"),
)
BUCKETS = (
    "trainshed.buckets.process",
    *("uvicorn.loops.uvloop", "uvicorn.protocols.http.httptools_impl", "uvloop"),
)
SDK = ("google.cloud.aiplatform", "google.cloud.storage")
_ROOT = Path(__file__).parents[2]
_SAY_WHERE = signal.SIGUSR1
"""Programs in files answer this signal with the stacks of their threads."""


class ForkedProcess:
    """A process of a fork server, with the required parts of `subprocess.Popen`."""

    def __init__(self, pid: int, ended: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        if (status := self._look(timeout)) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid} of a fork server", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is not None:
            return self.returncode
        # `select` does not support descriptors as high as some tests open.
        ended = select.poll()
        ended.register(self._ended, select.POLLIN)
        if ended.poll(None if timeout is None else timeout * 1000):
            statuses = os.read(self._ended, 16)
            self.returncode = int(statuses) if statuses else -signal.SIGKILL
            os.close(self._ended)
        return self.returncode


class ForkServer:
    """A process that has loaded `modules`, optionally with another Python and other variables."""

    def __init__(
        self,
        modules: Sequence[str],
        python: Path | str = sys.executable,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._ours, its = socket.socketpair()
        with its:
            # "up": tests distinguish services from their children by this word.
            words = [str(python), "-m", __name__, "up", str(its.fileno()), *modules]
            self._process = subprocess.Popen(words, env=environ, cwd=_ROOT, pass_fds=[its.fileno()])
        atexit.register(self._ours.close)

    def fork(
        self,
        program: Sequence[str],
        environ: Mapping[str, str],
        *,
        stdout: int,
        stderr: int,
        stdin: int | None = None,
        kept: Sequence[int] = (),
        cwd: Path | None = None,
    ) -> ForkedProcess:
        """Run `-m MODULE` or a file, with arguments. `kept`: descriptors that it inherits with the same
        numbers.
        """
        reader, writer = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        request = {"program": program, "environ": dict(environ), "cwd": str(cwd or Path.cwd()), "kept": kept}
        text = json.dumps(request).encode()
        descriptors = [writer, nothing if stdin is None else stdin, stdout, stderr, *kept]
        try:
            with self._lock:
                socket.send_fds(self._ours, [f"{len(text):10}".encode()], descriptors)
                self._ours.sendall(text)
                pid = int(self._ours.recv(10, socket.MSG_WAITALL))
        finally:
            os.close(writer)
            os.close(nothing)
        return ForkedProcess(pid, reader)

    def run(
        self,
        program: Sequence[str],
        environ: Mapping[str, str],
        *,
        stdin: bytes = b"",
        seconds: float = 120,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run it to its end within a time limit. `stdin`: its input."""
        with (
            tempfile.TemporaryFile() as taken,
            tempfile.TemporaryFile() as output,
            tempfile.TemporaryFile() as complained,
        ):
            taken.write(stdin)
            taken.seek(0)
            process = self.fork(
                program,
                environ,
                stdin=taken.fileno(),
                stdout=output.fileno(),
                stderr=complained.fileno(),
                cwd=cwd,
            )
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired as late:
                process.send_signal(_SAY_WHERE)
                # It continues as before, so this is the maximum time for its report.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1)
                for file in (output, complained):
                    file.seek(0)
                    late.add_note(file.read().decode(errors="replace"))
                raise
            finally:
                process.kill()
            for file in (output, complained):
                file.seek(0)
            return subprocess.CompletedProcess(program, status, output.read(), complained.read())


@functools.cache
def services() -> ForkServer:
    return ForkServer(SERVICE)


@functools.cache
def buckets() -> ForkServer:
    """A fork server of bucket processes without a service, as small as those of a service."""
    return ForkServer(BUCKETS)


@functools.cache
def sdk_programs() -> ForkServer:
    return ForkServer(SDK)


# --- the process itself ---


def _serve(control: socket.socket) -> None:
    """Serve forks. Returns in a child that must run `sys.argv`."""
    waker, woken = socket.socketpair()
    waker.setblocking(False)
    woken.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _heard)
    pids: dict[int, int] = {}
    while True:
        ready = select.select([control, woken], [], [])[0]
        if woken in ready:
            woken.recv(4096)
            _report_exits(pids)
        if control not in ready:
            continue
        descriptors = array.array("i")
        size, ancillary, _, _ = control.recvmsg(10, socket.CMSG_SPACE(64 * descriptors.itemsize))
        if not size:
            # The tests are over. Forked processes end on their own or are ended.
            os._exit(0)
        for _, _, content in ancillary:
            descriptors.frombytes(content)
        request = json.loads(control.recv(int(size), socket.MSG_WAITALL))
        writer, *handles = descriptors
        if pid := os.fork():
            pids[pid] = writer
            for handle in handles:
                os.close(handle)
            control.sendall(f"{pid:10}".encode())
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (control, waker, woken):
            end.close()
        for descriptor in (*pids.values(), writer):
            os.close(descriptor)
        _adopt_environment(request, handles)
        return


def _heard(_number: int, _frame: FrameType | None) -> None:
    """The exit of a child wakes `select` by its signal number."""


def _report_exits(pids: dict[int, int]) -> None:
    """Report the exits of children. `pids`: the receiver of each report."""
    while pids:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        writer = pids.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(writer, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(writer)


def _adopt_environment(request: Mapping[str, Any], handles: Sequence[int]) -> None:
    """Take over the environment of a started process."""
    numbers = (0, 1, 2, *request["kept"])
    free = max(numbers) + 1  # An unused descriptor number at or above it.
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, free) for descriptor in handles]
    for descriptor in handles:
        os.close(descriptor)
    for descriptor, number in zip(high, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.argv = request["program"]


def _run() -> None:
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        faulthandler.register(_SAY_WHERE, all_threads=True)
        sys.path[0] = os.path.dirname(sys.argv[0])  # noqa: PTH120 - as Python writes it
        runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # Keep loaded modules.
    for module in sys.argv[3:]:
        importlib.import_module(module)
    assert threading.active_count() == 1, "what has threads cannot be forked"
    gc.collect()
    gc.freeze()
    gc.enable()
    _serve(socket.socket(fileno=int(sys.argv[2])))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _run()


if __name__ == "__main__":
    main()
