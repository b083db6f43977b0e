"""A kill -9 between a write and its answer: nothing that was acknowledged is lost, nothing is half done, and
the request sent again doubles nothing (spec/invariants#durability, facts/experiments#points).

Each request is killed before some of its steps, spread over all of it and dense where it has been stored and
is not answered yet; with `-m soak`, before every one.
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
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest
import uvicorn

from tests.contract.api.house import LOCATION, House
from tests.contract.api.test_metadata import STORES
from tests.engines.conformance.holder import OUTSIDE, module_of
from tests.people import TOKEN
from tests.unit.test_specs_pipeline import MODEL

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
"""Of each request; half of them at its last steps."""
Request = tuple[str, str, Any]


class Deed(ABC):
    """A request about something called `key`, and what is to be seen of it."""

    #: HTTP statuses of the request when it was carried out already.
    again: Sequence[int] = (200,)

    @abstractmethod
    def prepare(self, service: Mortal, key: str) -> None:
        """Make what the request needs."""

    @abstractmethod
    def request(self, key: str) -> Request: ...

    @abstractmethod
    def state(self, service: Mortal, key: str) -> Any: ...


class PointsWritten(Deed):
    """Of two series at once, behind points that were acknowledged."""

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

    def request(self, key: str) -> Request:
        return self._write(key, range(4, 7))

    def state(self, service: Mortal, key: str) -> Any:
        steps: list[list[int]] = []
        for series in self._series[key]:
            data = ok(service, "GET", f"{self._runs}/{key}/timeSeries/{series}:read")
            steps.append([int(point["step"]) for point in data["timeSeriesData"]["values"]])
        return steps

    def _write(self, key: str, steps: range) -> Request:
        values = [
            {"step": step, "scalar": {"value": step}, "wallTime": "2026-11-21T10:00:00Z"}
            for step in steps
        ]
        data = [
            {"tensorboardTimeSeriesId": series, "valueType": "SCALAR", "values": values}
            for series in self._series[key]
        ]
        return "POST", f"{self._runs}/{key}:write", {"timeSeriesData": data}


class ModelUploaded(Deed):
    again = (409,)

    def prepare(self, service: Mortal, key: str) -> None:
        pass

    def request(self, key: str) -> Request:
        model = {**MODEL, "versionAliases": ["gold"]}
        return "POST", f"{LOCATION}/models:upload", {"model": model, "modelId": key}

    def state(self, service: Mortal, key: str) -> Any:
        answer = service.ask("GET", f"{LOCATION}/models/{key}:listVersions")
        assert answer is not None
        if answer.status != 200:
            return answer.status
        return [sorted(version["versionAliases"]) for version in answer.json["models"]]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    with Mortal(tmp_path_factory.mktemp("mortal")) as mortal:
        ok(mortal, "POST", f"{STORES}?metadataStoreId=default", {})
        yield mortal


DEEDS = ("points", "model")


def deed_of(name: str, service: Mortal) -> Deed:
    return PointsWritten(service) if name == "points" else ModelUploaded()


@pytest.mark.parametrize("name", DEEDS)
def test_what_is_killed_before_its_answer_is_done_or_not(service: Mortal, name: str) -> None:
    deed = deed_of(name, service)
    steps, after = measured(service, deed, name)
    spread = [1 + number * steps // (KILLS // 2) for number in range(KILLS // 2)]
    last = range(steps, steps - KILLS // 2, -1)
    assert killed_at(service, deed, name, after, sorted({*spread, *last})) >= KILLS // 2


def measured(service: Mortal, deed: Deed, name: str) -> tuple[int, Any]:
    """How many steps the request has, and what is seen after it, also after a kill."""
    key = f"{name}-whole"
    deed.prepare(service, key)
    answer = service.ask(*deed.request(key), die_at=0)
    assert answer is not None and answer.status == 200, answer
    after = deed.state(service, key)
    service.kill()
    assert deed.state(service, key) == after, "acknowledged, and lost"
    return answer.steps, after


def killed_at(service: Mortal, deed: Deed, name: str, after: Any, steps: Sequence[int]) -> int:
    """Kill the request before each of these steps; how often that was before its answer."""
    killed = 0
    for step in steps:
        key = f"{name}-{step}"
        deed.prepare(service, key)
        before = deed.state(service, key)
        assert before != after
        answer = service.ask(*deed.request(key), die_at=step)
        state = deed.state(service, key)
        killed += answer is None
        assert state == after or (answer is None and state == before), (step, state)
        repeated = service.ask(*deed.request(key))
        assert repeated is not None
        assert repeated.status in (deed.again if state == after else (200,)), (step, repeated)
        assert deed.state(service, key) == after, step
    return killed


def ok(service: Mortal, method: str, path: str, body: Any = None) -> Any:
    answer = service.ask(method, path, body)
    assert answer is not None and answer.status == 200, answer
    return answer.json
