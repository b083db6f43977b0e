"""A kill -9 between a write of points and its answer: nothing that was acknowledged is lost, nothing is half
done, and the request sent again doubles nothing (spec/invariants#durability, facts/experiments#points). What
is one commit of the database: tests/contract/store/test_store_sqlite.py.

The request is killed before some of its steps, spread over all of it and dense where it has been stored and
is not answered yet.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

import uvicorn

from tests.contract.api.house import LOCATION, House
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


KILLS = 6
"""Half of them at its last steps."""


class PointsWritten:
    """Of two series of a run called `key` at once, behind points that were acknowledged."""

    def __init__(self, service: Mortal) -> None:
        board = ok(service, "POST", f"{LOCATION}/tensorboards", {"displayName": "b"})
        name = board["response"]["name"]
        self._runs = f"/v1/{name}/experiments/e/runs"
        ok(service, "POST", f"/v1/{name}/experiments?tensorboardExperimentId=e", {})
        self._series: dict[str, list[str]] = {}

    def prepare(self, service: Mortal, key: str) -> None:
        ok(service, "POST", f"{self._runs}?tensorboardRunId={key}", {"displayName": key})
        self._series[key] = [
            ok(
                service,
                "POST",
                f"{self._runs}/{key}/timeSeries",
                {"displayName": title, "valueType": "SCALAR"},
            )["name"].rpartition("/")[2]
            for title in ("loss", "accuracy")
        ]
        ok(service, *self._write(key, range(1, 4)))

    def request(self, key: str) -> tuple[str, str, Any]:
        return self._write(key, range(4, 7))

    def state(self, service: Mortal, key: str) -> Any:
        steps: list[list[int]] = []
        for series in self._series[key]:
            data = ok(service, "GET", f"{self._runs}/{key}/timeSeries/{series}:read")
            steps.append([int(point["step"]) for point in data["timeSeriesData"]["values"]])
        return steps

    def _write(self, key: str, steps: range) -> tuple[str, str, Any]:
        values = [
            {"step": step, "scalar": {"value": step}, "wallTime": "2026-11-21T10:00:00Z"}
            for step in steps
        ]
        data = [
            {"tensorboardTimeSeriesId": series, "valueType": "SCALAR", "values": values}
            for series in self._series[key]
        ]
        return "POST", f"{self._runs}/{key}:write", {"timeSeriesData": data}


def test_a_write_that_is_killed_before_its_answer_is_done_or_not(tmp_path: Path) -> None:
    with Mortal(tmp_path) as service:
        deed = PointsWritten(service)
        steps, after = measured(service, deed)
        spread = [1 + number * steps // (KILLS // 2) for number in range(KILLS // 2)]
        last = range(steps, steps - KILLS // 2, -1)
        assert killed_at(service, deed, after, sorted({*spread, *last})) >= KILLS // 2


def measured(service: Mortal, deed: PointsWritten) -> tuple[int, Any]:
    """How many steps the request has, and what is seen after it, also after a kill."""
    deed.prepare(service, "whole")
    answer = service.ask(*deed.request("whole"), die_at=0)
    assert answer is not None and answer.status == 200, answer
    after = deed.state(service, "whole")
    service.kill()
    assert deed.state(service, "whole") == after, "acknowledged, and lost"
    return answer.steps, after


def killed_at(service: Mortal, deed: PointsWritten, after: Any, steps: Sequence[int]) -> int:
    """Kill the request before each of these steps; how often that was before its answer."""
    killed = 0
    for step in steps:
        key = f"killed-{step}"
        deed.prepare(service, key)
        before = deed.state(service, key)
        assert before != after
        answer = service.ask(*deed.request(key), die_at=step)
        state = deed.state(service, key)
        killed += answer is None
        assert state == after or (answer is None and state == before), (step, state)
        ok(service, *deed.request(key))
        assert deed.state(service, key) == after, step
    return killed


def ok(service: Mortal, method: str, path: str, body: Any = None) -> Any:
    answer = service.ask(method, path, body)
    assert answer is not None and answer.status == 200, answer
    return answer.json
