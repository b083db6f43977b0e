"""Feeds: each reads a live log once for all browsers that follow it.

A feed follows the log of one job for one principal in windows of half a second, and keeps the last lines. A
browser that joins is sent those of the kept lines that it does not have yet, and then every window. Browsers
without a filter are sent the same bytes, which are encoded once.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from trainshed.eventloop.background import joined
from trainshed.wire.trainshed_v1.timeline import LogLine

BURST: Final = 400
"""Maximum lines that one window takes, and the number of last lines that a feed keeps."""
_PAUSE: Final = 0.5
"""Seconds that a window lasts."""
_PIECES: Final = 4
"""Pieces of the API's stream that fill a window: nobody can read what a faster program prints."""
_BYTES: Final = 60_000
"""Bytes that fill a window, for the same reason."""
_OF_A_FLOOD: Final = 80
"""Lines that are sent of a window that has `BURST` lines or more."""
_AT_ONCE: Final = 4
"""Readers that are given a window before the feed pauses for other tasks."""
_TURN: Final = 0.002
"""Seconds of that pause."""
_BEHIND: Final = 8
"""Windows that may wait for a slow reader; then the oldest are dropped."""

Places = dict[str, tuple[int, int]]
"""(attempt, n) of the last line that was seen, by replica."""
Source = Callable[[Mapping[str, Sequence[str]]], Awaitable[AsyncGenerator[bytes]]]
"""Opens the API's stream of a log, with this query."""


class Window(Struct, frozen=True):
    """The lines that came within half a second."""

    lines: tuple[LogLine, ...]
    #: True if lines before or between them were left out.
    skipped: bool
    #: The event for readers that have everything before it and filter nothing; b"" = no line came.
    whole: bytes


class _Reader:
    """The windows that wait for one browser's stream."""

    __slots__ = ("has_missed", "windows")

    def __init__(self) -> None:
        #: None = the log is complete. An exception = the log cannot be read any more.
        self.windows: asyncio.Queue[Window | Exception | None] = asyncio.Queue(_BEHIND + 1)
        #: True if windows were dropped because the browser reads too slowly.
        self.has_missed = False

    def put(self, window: Window | Exception | None) -> None:
        if self.windows.full():
            self.windows.get_nowait()
            self.has_missed = True
        self.windows.put_nowait(window)


def fresh(lines: Sequence[LogLine], seen: Places) -> tuple[list[LogLine], bool]:
    """Return the lines that were not seen yet, and whether lines of a replica are missing before one of
    them. Records the lines in `seen`."""
    fresh_lines: list[LogLine] = []
    skipped = False
    for line in lines:
        place = (line.attempt, line.n)
        last = seen.get(line.replica)
        if last is not None and place <= last:
            continue
        skipped = skipped or (last is not None and last[0] == place[0] and place[1] > last[1] + 1)
        seen[line.replica] = place
        fresh_lines.append(line)
    return fresh_lines, skipped


class _Feed(Struct, eq=False):
    """One log that is followed, and its readers."""

    source: Source
    row: Callable[[LogLine], list[Any]]
    readers: list[_Reader] = field(default_factory=list[_Reader])
    recent: deque[LogLine] = field(default_factory=lambda: deque[LogLine](maxlen=BURST))
    seen: Places = field(default_factory=Places)
    #: The task of `run`; None = not started yet.
    task: asyncio.Task[None] | None = None
    #: True once the first window was read: a reader that joins later need not wait for it.
    has_begun: bool = False
    is_over: bool = False

    async def _tell(self, window: Window | Exception | None) -> None:
        """Give a window, the end or a failure to all readers, with pauses in which other tasks run."""
        for number, reader in enumerate(tuple(self.readers)):
            reader.put(window)
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(_TURN)

    async def run(self) -> None:
        """Read the log until it is complete or cannot be read any more, and give readers its lines."""
        try:
            await self._follow()
            await self._tell(None)
        except Exception as failure:  # Every reader raises it.
            await self._tell(failure)
        finally:
            self.is_over = True

    async def _follow(self) -> None:
        while True:
            source = await self.source({"follow": ("true",), "tail": (str(BURST),)})
            is_behind = False
            async with aclosing(_windows(source)) as windows:
                async for texts in windows:
                    recent, skipped = fresh(_last(texts), self.seen)
                    is_behind = len(recent) >= BURST
                    few = recent[-_OF_A_FLOOD:] if is_behind else recent
                    await self._take(few, skipped or len(few) < len(recent))
                    if is_behind:
                        break
            if not is_behind:
                return
            # The program prints faster than anybody reads: open the stream anew, at the last lines.
            await asyncio.sleep(_PAUSE)

    async def _take(self, lines: list[LogLine], skipped: bool) -> None:
        self.recent.extend(lines)
        self.has_begun = True
        data = {"lines": list(map(self.row, lines)), "skipped": skipped}
        await self._tell(Window(tuple(lines), skipped, event("lines", data) if lines else b""))


class Feeds:
    """The feeds of the logs that browsers follow now, by principal, job and replica."""

    def __init__(self) -> None:
        self._feeds: dict[str, _Feed] = {}

    async def follow(
        self,
        key: str,
        source: Source,
        row: Callable[[LogLine], list[Any]],
        seen: Places,
        passes: Callable[[LogLine], bool] | None,
    ) -> AsyncGenerator[bytes]:
        """Yield events `lines`, a comment after each `SILENCE`, and `over` when the log is complete.

        `key`: equal for what may be read once, that is the same log read by the same person. `source`: opens
        the log. `row`: converts a line for browsers. `seen`: the lines that the browser has; it is changed.
        `passes`: whether a line is sent; None = all are. Raises Refused.
        """
        feed = self._feeds.get(key)
        if feed is None or feed.is_over:
            feed = self._feeds[key] = _Feed(source, row)
            feed.task = joined(feed.run())
        reader = _Reader()
        feed.readers.append(reader)
        try:
            if feed.has_begun:
                # The lines after those that the browser has, and before the next window.
                recent, skipped = fresh(tuple(feed.recent), seen)
                if data := _told(recent, skipped, row, passes):
                    yield data
            has_caught_up = feed.has_begun
            while True:
                try:
                    window = await asyncio.wait_for(reader.windows.get(), SILENCE)
                except TimeoutError:
                    yield QUIET
                    continue
                if isinstance(window, Exception):
                    raise window
                if window is None:
                    yield event("over", {})
                    return
                if has_caught_up and passes is None and not reader.has_missed:
                    yield window.whole or QUIET
                    continue
                recent, skipped = (
                    fresh(window.lines, seen) if not has_caught_up else (list(window.lines), False)
                )
                skipped, has_caught_up = skipped or reader.has_missed or window.skipped, True
                reader.has_missed = False
                yield _told(recent, skipped, row, passes) or QUIET
        finally:
            feed.readers.remove(reader)
            if not feed.readers:
                if feed.task is not None:
                    feed.task.cancel()
                if self._feeds.get(key) is feed:
                    del self._feeds[key]


def _told(
    lines: list[LogLine],
    skipped: bool,
    row: Callable[[LogLine], list[Any]],
    passes: Callable[[LogLine], bool] | None,
) -> bytes:
    shown = [row(line) for line in lines if passes is None or passes(line)]
    return event("lines", {"lines": shown, "skipped": skipped}) if shown or skipped else b""


async def _windows(source: AsyncGenerator[bytes]) -> AsyncGenerator[list[bytes]]:
    """Yield the pieces of each window: those that come within half a second of its first piece. After a full
    window nothing is read until the next one is asked for. Closes the source."""
    loop = asyncio.get_running_loop()
    coming = joined(next_of(source))
    try:
        while True:
            await asyncio.wait((coming,))
            texts: list[bytes] = []
            size, until = 0, loop.time() + _PAUSE
            while coming.done():
                piece = coming.result()
                if piece is None:
                    if texts:
                        yield texts
                    return
                texts.append(piece)
                size += len(piece)
                if len(texts) == _PIECES or size >= _BYTES:
                    yield texts
                    texts = []
                coming = joined(next_of(source))
                if not texts:
                    break
                await asyncio.wait((coming,), timeout=max(0.0, until - loop.time()))
                if loop.time() >= until:
                    break
            if texts:
                yield texts
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await source.aclose()


def _last(texts: list[bytes]) -> list[LogLine]:
    """Return the last `BURST` lines of a window. Gaps in their numbers show whether there were more."""
    lines = [line for text in texts for line in text.split(b"\n") if line]
    return list(map(_decoder.decode, lines[-BURST:]))


_decoder: Final = msgspec.json.Decoder(LogLine)


SILENCE: Final = 15.0
"""Seconds without an event after which a stream sends a comment, to show that it is alive."""
QUIET: Final = b": quiet\n\n"
"""The comment that is sent then."""


async def next_of(source: AsyncGenerator[bytes]) -> bytes | None:
    """Return the next item of a stream; None = it has ended."""
    return await anext(source, None)


def event(name: str, value: object) -> bytes:
    """Return one event, with `value` as JSON."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))
