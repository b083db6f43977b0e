"""Logs that several look at are read once, and nobody misses or sees a line twice."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import pytest

from trainshed.console.feeds import Feeds
from trainshed.wire.trainshed_v1.timeline import LogLine


def line(n: int, text: str = "") -> bytes:
    output = {"replica": "workerpool0-0", "attempt": 1, "n": n, "message": text or f"line {n}"}
    return json.dumps(output).encode() + b"\n"


class Log:
    """Counts who opens it; each stream begins with the last lines of what there is, and is fed what comes."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.opened = 0
        self.closed = 0
        #: Somebody waits for what comes.
        self.is_followed = asyncio.Event()
        self._streams: list[asyncio.Queue[bytes | None]] = []

    async def open(self, query: Mapping[str, Sequence[str]]) -> AsyncGenerator[bytes]:
        self.opened += 1
        return self._stream(int(query["tail"][0]))

    async def _stream(self, tail: int) -> AsyncGenerator[bytes]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._streams.append(queue)
        try:
            if self.lines:
                yield b"".join(self.lines[-tail:])
            self.is_followed.set()
            while (piece := await queue.get()) is not None:
                yield piece
        finally:
            self.closed += 1
            self._streams.remove(queue)

    def write(self, *lines: bytes) -> None:
        self.lines += lines
        for queue in self._streams:
            queue.put_nowait(b"".join(lines))

    def end(self) -> None:
        for queue in self._streams:
            queue.put_nowait(None)


def row(output: LogLine) -> list[Any]:
    return [output.message]


async def texts(stream: AsyncGenerator[bytes]) -> tuple[list[str], bool]:
    """What the next event with lines tells."""
    async for event in stream:
        if event.startswith(b"event: lines\n"):
            output = json.loads(event.partition(b"data: ")[2])
            return [item[0] for item in output["lines"]], output["skipped"]
    raise AssertionError("the stream has ended")


async def test_two_who_look_are_served_by_one_read_and_each_goes_on_where_he_was() -> None:
    feeds, log = Feeds(), Log()
    log.write(line(0), line(1))
    first = feeds.follow("k", log.open, row, {"workerpool0-0": (1, 0)}, None)
    assert await texts(first) == (["line 1"], False)
    second = feeds.follow("k", log.open, row, {}, None)
    assert await texts(second) == (["line 0", "line 1"], False)
    third = feeds.follow(
        "k", log.open, row, {"workerpool0-0": (1, 1)}, lambda output: "2" in output.message
    )
    waiting = asyncio.ensure_future(texts(third))
    await asyncio.sleep(0)
    log.write(line(2), line(3))
    assert await texts(first) == await texts(second) == (["line 2", "line 3"], False)
    assert await waiting == (["line 2"], False)
    assert log.opened == 1
    for stream in (first, second, third):
        assert log.closed == 0
        await stream.aclose()
    await asyncio.sleep(0.01)
    assert log.closed == 1
    log.is_followed.clear()
    fourth = feeds.follow("k", log.open, row, {"workerpool0-0": (1, 3)}, None)
    waiting = asyncio.ensure_future(texts(fourth))
    await log.is_followed.wait()
    log.write(line(4))
    assert await waiting == (["line 4"], False)
    await fourth.aclose()


async def test_the_end_of_a_log_and_what_stops_its_reading_are_told_to_all() -> None:
    feeds, log = Feeds(), Log()
    log.write(line(0))
    streams = [feeds.follow("k", log.open, row, {}, None) for _ in range(9)]
    for stream in streams:
        await texts(stream)
    log.end()
    for stream in streams:
        assert b"event: over" in await anext(stream)
        await stream.aclose()

    async def broken(query: Mapping[str, Sequence[str]]) -> AsyncGenerator[bytes]:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await anext(feeds.follow("other", broken, row, {}, None))
