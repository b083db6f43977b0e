"""Reducers as processes, for tests: started, killed, and started again where they were."""

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
"""What has to be on the path of a program that uses the distribution."""
TOKEN = b"a token for tests"
Address = tuple[str, int]


def without_job(*prefixes: str) -> dict[str, str]:
    """The environment without what a job around the tests may have set, and other variables that begin so;
    with where the part in C is."""
    left_out = ("TRAINSHED_RED", *prefixes)
    variables = os.environ.items()
    return {
        name: text for name, text in variables if name == NATIVE or not name.startswith(left_out)
    }


def environment(**more: str) -> dict[str, str]:
    return {**without_job(), "PYTHONPATH": os.pathsep.join([str(PACKAGES), str(ROOT)]), **more}


class Reducer:
    """One on loopback, at the same port whenever it is started. `report_file`: where it reports."""

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
        """Returns at once; workers knock until it is there."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainshed_reduction.reducer"],
            env=environment(**self._environ),
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next one that it prints."""
        assert self.process.stdout
        return self.process.stdout.readline().rstrip("\n")

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def end(self, number: int = signal.SIGTERM) -> int:
        """By a signal; the exit status."""
        self.process.send_signal(number)
        status = self.process.wait(60)
        assert self.process.stdout
        self.process.stdout.close()
        return status

    def kill(self) -> None:
        self.end(signal.SIGKILL)


@contextlib.contextmanager
def reducer(directory: Path, threads: int = 1) -> Generator[Reducer]:
    """One that listens, and reports to a file in the directory."""
    made = Reducer(threads, directory / "report.json")
    made.start()
    try:
        first = made.line()
        assert first.startswith(f"listening on 127.0.0.1:{made.port} ({threads} thread"), first
        yield made
    finally:
        made.end()


class Reducers:
    """A context with so many of them."""

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
