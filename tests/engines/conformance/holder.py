"""Runs the engine in a process of its own, so that the suite can kill it in the middle of a call (SIGKILL).

`Holder` starts one and tells it the calls; in that process, each call is made by a fork of its own with an
engine of its own. A step of a call is an effect outside of the process: a file is opened, written or renamed,
something is sent to a socket, a process is started.
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
"""Modules whose functions, or whose types' methods, are steps: they are written in C and call the system."""

_PATIENCE, _PAUSE = 30.0, 0.05
"""Seconds for which a call is made again that cannot be had yet, and between two of them."""


class Call(Struct, frozen=True):
    """A call of an engine's method in which its process is killed."""

    method: str
    arguments: tuple[Any, ...]
    #: The process is killed before this step, counted from 1; None, or a number beyond the last = after the
    #: call.
    step: int | None


class Holder:
    """The process, as the suite sees it. `build`: makes the engine; it is pickled."""

    def __init__(self, build: Callable[[], Engine]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._tell(build)

    def die_in(self, call: Call) -> int | None:
        """Make a call and die in it. Returns how many steps the call has; None if it was killed before its
        end."""
        self._tell(call)
        assert self._process.stdout is not None
        steps, status = pickle.load(self._process.stdout)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, (
            f"{call.method} failed: see above"
        )
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
        # Processes that the engine started may hold the other end of the pipe, so that it is not read to its
        # end.
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

    threading.setprofile(count)  # Counts in threads that the engine will start.
    engine = build()
    await engine.start()
    begin(_read(engine), "reading an engine's events")
    await asyncio.sleep(0)
    sys.setprofile(count)
    steps = 0
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            await getattr(engine, call.method)(*call.arguments)
        except EngineUnavailable:
            # Repeated as the service does: a cluster may take longer than one call waits for it.
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_PAUSE)
        else:
            break
    sys.setprofile(None)
    os.write(report, b"%d" % steps)
    signal.raise_signal(signal.SIGKILL)


def module_of(function: Any) -> str:
    """Return the module of a function written in C, or the type whose method it is."""
    return function.__module__ or type(function.__self__).__module__


async def _read(engine: Engine) -> None:
    async for _ in engine.watch():
        pass


if __name__ == "__main__":
    main()
