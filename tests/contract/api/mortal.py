"""The API over a real store and real files of points, in a process that is killed in the middle of a request
(SIGKILL) and begins anew.

A step of a request is whatever is done outside of the process, in any of its threads: a file written or
synced, a statement of SQL, something sent. The listening socket outlives each life, as a client's patience
does.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

import uvicorn

from tests.contract.api.house import House
from tests.engines.conformance.holder import OUTSIDE, module_of
from tests.people import TOKEN

_DIE_AT, _STEPS = "x-die-at", "x-steps"
_UIDS = 1_000_000
"""Numbers that one life has for what it makes."""


@dataclass
class Answered:
    status: int
    json: Any
    #: That the request took up to its answer.
    steps: int


class Mortal:
    """The service, as a test sees it. It is alive when the block begins."""

    def __init__(self, directory: Path) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        handle = self._listener.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(directory), str(handle)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(handle,),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._pid = 0

    def __enter__(self) -> Self:
        self._live()
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._process.communicate()
        self._listener.close()

    def ask(
        self, method: str, path: str, body: Any = None, *, die_at: int | None = None
    ) -> Answered | None:
        """One request; None: the service was killed before its answer, and lives again. `die_at`: before this
        step of it, the first is 1, or after its answer if that comes first; 0 = the steps are counted."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        if die_at is not None:
            headers[_DIE_AT] = str(die_at)
        connection = http.client.HTTPConnection(*self._listener.getsockname(), timeout=60)
        try:
            connection.request(method, path, json.dumps(body or {}), headers)
            response = connection.getresponse()
            text = response.read()
            if die_at:
                self.kill()  # It may be dying already: the step can come after the answer.
            return Answered(
                response.status, json.loads(text), int(response.headers.get(_STEPS) or 0)
            )
        except (ConnectionError, http.client.HTTPException):
            assert die_at is not None, "nobody had it killed"
            self._end()
            return None
        finally:
            connection.close()

    def kill(self) -> None:
        """Kill it between two requests; it lives again."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._end()

    def _live(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(b"live\n")
        self._process.stdin.flush()
        self._pid = int(self._process.stdout.readline())

    def _end(self) -> None:
        assert self._process.stdout is not None
        status = int(self._process.stdout.readline())
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "it died by itself: see above"
        self._live()


class Steps:
    """Counts steps from a request on, and dies before one of them."""

    def __init__(self) -> None:
        #: -1: no request was told to count.
        self.count = -1
        self._last = 0

    def begin(self, last: int) -> None:
        self.count, self._last = 0, last

    def __call__(self, _frame: FrameType, event: str, function: Any) -> None:
        if self.count < 0 or event != "c_call" or module_of(function) not in OUTSIDE:
            return
        self.count += 1
        if self.count == self._last:
            signal.raise_signal(signal.SIGKILL)


def serve(directory: Path, listener: socket.socket, life: int) -> None:
    """One life."""
    steps = Steps()
    threading.setprofile(steps)  # Of the threads that will be started.
    house = House(directory, first_uid=_UIDS * life)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        die_at = dict(scope["headers"]).get(_DIE_AT.encode())
        if die_at is not None:
            steps.begin(int(die_at))

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                header = (_STEPS.encode(), b"%d" % max(steps.count, 0))
                message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        await house.app(scope, receive, counted)

    config = uvicorn.Config(application, loop="asyncio", lifespan="off", log_level="error")
    sys.setprofile(steps)
    uvicorn.Server(config).run([listener])


def main() -> None:
    directory, handle = Path(sys.argv[1]), int(sys.argv[2])
    listener = socket.socket(fileno=handle)
    life = 0
    while sys.stdin.buffer.readline():
        life += 1
        child = os.fork()
        if child == 0:
            try:
                serve(directory, listener, life)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        sys.stdout.buffer.write(b"%d\n" % child)
        sys.stdout.buffer.flush()
        _, status = os.waitpid(child, 0)
        sys.stdout.buffer.write(b"%d\n" % status)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
