"""Who follows a log misses no line, and sees none twice."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import pytest

from trainshed.console.pages.logs import BURST, follow
from trainshed.wire.trainshed_v1.timeline import LogLine


def line(n: int, text: str = "") -> bytes:
    output = {"replica": "workerpool0-0", "attempt": 1, "n": n, "message": text or f"line {n}"}
    return json.dumps(output).encode() + b"\n"


class Log:
    """Each stream begins with the last lines of what there is, and is fed what comes."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.closed = 0
        #: Somebody waits for what comes.
        self.is_followed = asyncio.Event()
        self._streams: list[asyncio.Queue[bytes | None]] = []

    async def open(self, query: Mapping[str, Sequence[str]]) -> AsyncGenerator[bytes]:
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


async def test_a_browser_goes_on_where_it_was() -> None:
    log = Log()
    log.write(line(0), line(1))
    stream = follow(log.open, row, {"workerpool0-0": (1, 0)}, None)
    assert await texts(stream) == (["line 1"], False)
    log.write(line(2), line(3))
    assert await texts(stream) == (["line 2", "line 3"], False)
    log.write(line(9))
    assert await texts(stream) == (["line 9"], True)
    await stream.aclose()
    assert log.closed == 1


async def test_a_filter_leaves_lines_out() -> None:
    log = Log()
    log.write(line(0), line(1), line(2))
    stream = follow(log.open, row, {}, lambda output: "2" in output.message)
    assert await texts(stream) == (["line 2"], False)
    await stream.aclose()


async def test_of_a_flood_the_last_lines_are_sent() -> None:
    log = Log()
    log.write(*map(line, range(2 * BURST)))
    stream = follow(log.open, row, {}, None)
    lines, skipped = await texts(stream)
    assert (lines[-1], skipped) == (f"line {2 * BURST - 1}", True)
    assert len(lines) < BURST
    log.is_followed.clear()
    waiting = asyncio.ensure_future(texts(stream))
    await log.is_followed.wait()
    log.write(line(2 * BURST))
    assert await waiting == ([f"line {2 * BURST}"], False)
    await stream.aclose()


async def test_the_end_of_a_log_and_what_stops_its_reading_are_told() -> None:
    log = Log()
    log.write(line(0))
    stream = follow(log.open, row, {}, None)
    await texts(stream)
    log.end()
    assert b"event: over" in await anext(stream)
    await stream.aclose()

    async def broken(query: Mapping[str, Sequence[str]]) -> AsyncGenerator[bytes]:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await anext(follow(broken, row, {}, None))
