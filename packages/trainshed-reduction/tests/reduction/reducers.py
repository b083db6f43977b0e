"""Reducers as processes, for tests of the worker's side: started, killed, and started again where they
were."""

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.ports import free_port
from tests.sources import ROOT
from trainshed_reduction import settings, variables
from trainshed_reduction.variables import NATIVE

PACKAGES = Path(settings.__file__).resolve().parents[1]
"""What has to be on the path of a program that uses the distribution."""
TOKEN = b"a token for tests"
Address = tuple[str, int]


def environment(**more: str) -> dict[str, str]:
    """Without what a job around the tests may have set."""
    own = {
        name: value for name, value in os.environ.items() if not name.startswith("TRAINSHED_RED")
    }
    if NATIVE in os.environ:
        own[NATIVE] = os.environ[NATIVE]
    paths = [str(PACKAGES), str(ROOT)]
    return {**own, "PYTHONPATH": os.pathsep.join(paths), **more}


class Reducer:
    """One on loopback, at the same port whenever it is started."""

    def __init__(self, threads: int = 1) -> None:
        self.address: Address = ("127.0.0.1", free_port())
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns at once; workers knock until it is there."""
        environ = {
            variables.LISTEN: "{}:{}".format(*self.address),
            variables.TOKEN: TOKEN.decode(),
            variables.THREADS: str(self._threads),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainshed_reduction.reducer"],
            env=environment(**environ),
            stdout=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        """SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for reducer in self.all:
            reducer.kill()
