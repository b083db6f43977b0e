"""Runs the engine in a separate process, so that the suite can kill it during a call (SIGKILL).

`Holder` starts such a process and sends it calls. Each call runs in a fork with a new engine. A step of a
call is an effect outside the process: opening, writing or renaming a file, sending to a socket, or starting a
process.
"""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from msgspec import Struct

from trainshed.engines.port import Engine, EngineUnavailable
from trainshed.eventloop.background import begin

OUTSIDE = frozenset(("posix", "fcntl", "_io", "_posixsubprocess", "_socket", "socket", "sqlite3"))
"""Modules and types whose functions are steps: they are written in C and make system calls."""

_CALL_TIMEOUT, _RETRY_INTERVAL = 30.0, 0.05
"""Seconds for which an unavailable call is retried, and between two retries."""


class Call(Struct, frozen=True):
    """A call of an engine's method during which its process is killed."""

    method: str
    arguments: tuple[Any, ...]
    #: Kill before this step, counted from 1. None, or a number after the last step: after the call.
    step: int | None


class Holder:
    """The process from the suite's view. `build`: creates the engine; it is pickled."""

    def __init__(self, build: Callable[[], Engine]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._tell(build)

    def die_in(self, call: Call) -> int | None:
        """Make a call and kill the process. Return the number of steps, or None if the call was
        not complete.
        """
        self._tell(call)
        assert self._process.stdout is not None
        steps, status = pickle.load(self._process.stdout)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"{call.method} failed: see above"
        return steps

    def close(self) -> None:
        self._process.communicate()

    def _tell(self, what: object) -> None:
        assert self._process.stdin is not None
        pickle.dump(what, self._process.stdin)
        self._process.stdin.flush()


def main() -> None:
    build: Callable[[], Engine] = pickle.load(sys.stdin.buffer)
    while True:
        try:
            call: Call = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(_die_in(build, call, writer))
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        os.close(writer)
        # Processes of the engine may hold the other end of the pipe, so do not read until its end.
        _, status = os.waitpid(child, 0)
        os.set_blocking(reader, False)
        try:
            steps = int(os.read(reader, 20) or 0)
        except BlockingIOError:
            steps = 0
        os.close(reader)
        pickle.dump((steps or None, status), sys.stdout.buffer)
        sys.stdout.buffer.flush()


async def _die_in(build: Callable[[], Engine], call: Call, report: int) -> None:
    steps: int | None = None

    def count(_frame: FrameType, event: str, function: Any) -> None:
        nonlocal steps
        if steps is not None and event == "c_call" and module_of(function) in OUTSIDE:
            steps += 1
            if steps == call.step:
                signal.raise_signal(signal.SIGKILL)

    threading.setprofile(count)  # Also counts in the engine's later threads.
    engine = build()
    await engine.start()
    begin(_read(engine), "reading an engine's events")
    await asyncio.sleep(0)
    sys.setprofile(count)
    steps = 0
    deadline = time.monotonic() + _CALL_TIMEOUT
    while True:
        try:
            await getattr(engine, call.method)(*call.arguments)
        except EngineUnavailable:
            # Retry like the service: a cluster may take longer than a single call waits.
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_RETRY_INTERVAL)
        else:
            break
    sys.setprofile(None)
    os.write(report, b"%d" % steps)
    signal.raise_signal(signal.SIGKILL)


def module_of(function: Any) -> str:
    """Return the module of a C function, or the type of a method."""
    return function.__module__ or type(function.__self__).__module__


async def _read(engine: Engine) -> None:
    async for _ in engine.watch():
        pass


if __name__ == "__main__":
    main()
