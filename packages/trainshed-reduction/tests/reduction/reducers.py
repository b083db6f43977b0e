"""Runs reducers as processes, which tests start, kill, and restart at the same port."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

from tests.ports import free_port
from tests.sources import ROOT
from trainshed_reduction import settings, variables
from trainshed_reduction.variables import NATIVE

PACKAGES = Path(settings.__file__).resolve().parents[1]
"""The directory with the package trainshed_reduction, for the Python path of programs."""
TOKEN = b"a token for tests"
Address = tuple[str, int]


def without_job(*prefixes: str) -> dict[str, str]:
    """Return the environment without variables of a surrounding job and variables with these prefixes. The
    path of the C library remains."""
    excluded = ("TRAINSHED_RED", *prefixes)
    variables = os.environ.items()
    return {name: text for name, text in variables if name == NATIVE or not name.startswith(excluded)}


def environment(**more: str) -> dict[str, str]:
    return {**without_job(), "PYTHONPATH": os.pathsep.join([str(PACKAGES), str(ROOT)]), **more}


class Reducer:
    """A reducer on loopback, which keeps its port at every start. `report_file`: the file of its reports."""

    process: "subprocess.Popen[str]"

    def __init__(self, threads: int = 1, report_file: Path | None = None) -> None:
        self.port = free_port()
        self.address: Address = ("127.0.0.1", self.port)
        self.report_file = report_file or Path(os.devnull)
        self._environ = {
            variables.LISTEN: "{}:{}".format(*self.address),
            variables.TOKEN: TOKEN.decode(),
            variables.THREADS: str(threads),
            variables.REPORT_FILE: str(report_file or ""),
        }

    def start(self) -> None:
        """Start the process without waiting for it. Workers retry until it listens."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainshed_reduction.reducer"],
            env=environment(**self._environ),
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """Return the next line of its standard output."""
        assert self.process.stdout
        return self.process.stdout.readline().rstrip("\n")

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def end(self, number: int = signal.SIGTERM) -> int:
        """End the process by a signal, and return its exit status."""
        self.process.send_signal(number)
        status = self.process.wait(60)
        assert self.process.stdout
        self.process.stdout.close()
        return status

    def kill(self) -> None:
        self.end(signal.SIGKILL)


@contextlib.contextmanager
def reducer(directory: Path, threads: int = 1) -> Generator[Reducer]:
    """Run a reducer that listens, with a report file in `directory`."""
    made = Reducer(threads, directory / "report.json")
    made.start()
    try:
        first = made.line()
        assert first.startswith(f"listening on 127.0.0.1:{made.port} ({threads} thread"), first
        yield made
    finally:
        made.end()


class Reducers:
    """A context with `count` reducers."""

    def __init__(self, count: int, threads: int = 1) -> None:
        self.all = [Reducer(threads) for _ in range(count)]

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(reducer.address for reducer in self.all)

    def __enter__(self) -> "Reducers":
        for reducer in self.all:
            reducer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for reducer in self.all:
            reducer.kill()
