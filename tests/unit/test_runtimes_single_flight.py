"""Tests of shared builds: all callers share one build and receive its progress
(spec/runtimes#environments)."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainshed.runtimes.port import Progress
from trainshed.runtimes.single_flight import SingleFlight
from trainshed.runtimes.stop import Stop


@pytest.fixture
def workers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


class Build:
    """A build that continues when the test allows it."""

    def __init__(self) -> None:
        self.count = 0
        self.go = threading.Event()
        self.stop: Stop | None = None

    def __call__(self, tell: Progress, stop: Stop) -> str:
        self.count += 1
        self.stop = stop
        tell("begun")
        assert self.go.wait(60)
        tell("done")
        return "built"


class ProgressListener:
    """Receives lines from any thread. `heard` waits for a line in the event loop."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

    def __call__(self, line: str) -> None:
        self._loop.call_soon_threadsafe(self._take, line)

    def _take(self, line: str) -> None:
        self.lines.append(line)
        self._news.set()

    async def heard(self, line: str) -> None:
        async with asyncio.timeout(60):
            while line not in self.lines:
                await self._news.wait()
                self._news.clear()


async def test_second_request_for_a_running_build_waits_for_that_build(workers: ThreadPoolExecutor) -> None:
    flights, build = SingleFlight[str](workers), Build()
    early, late = ProgressListener(), ProgressListener()
    first = asyncio.create_task(flights.run("key", build, early))
    await early.heard("begun")
    second = asyncio.create_task(flights.run("key", build, late))
    await late.heard("It is already being built. Its last line: begun")
    build.go.set()
    assert await asyncio.gather(first, second) == ["built", "built"]
    assert build.count == 1
    assert early.lines == ["begun", "done"]
    assert late.lines[1:] == ["done"]


async def test_build_continues_while_at_least_one_caller_waits(workers: ThreadPoolExecutor) -> None:
    flights, build = SingleFlight[str](workers, abandons=True), Build()
    ear = ProgressListener()
    going = asyncio.create_task(flights.run("key", build, ear))
    await ear.heard("begun")
    staying = asyncio.create_task(flights.run("key", build, None))
    await asyncio.sleep(0)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert build.stop is not None and not build.stop.is_asked
    build.go.set()
    assert await staying == "built"
    # A caller that has left gets no more lines.
    assert ear.lines == ["begun"]


async def test_build_without_waiting_callers_is_stopped_only_if_configured(
    workers: ThreadPoolExecutor,
) -> None:
    for abandons in (True, False):
        flights, build = SingleFlight[str](workers, abandons=abandons), Build()
        ear = ProgressListener()
        task = asyncio.create_task(flights.run("key", build, ear))
        await ear.heard("begun")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert build.stop is not None and build.stop.is_asked is abandons
        build.go.set()
