"""Follows the live log of a job for one browser, in windows of half a second. However much a program prints,
the browser is sent at most the last lines of each."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec

from trainshed.console.live import QUIET, event, next_of
from trainshed.eventloop.background import joined
from trainshed.wire.trainshed_v1.timeline import LogLine

BURST: Final = 400
"""Maximum lines that one window takes."""
_PAUSE: Final = 0.5
"""Seconds that a window lasts."""
_PIECES: Final = 4
"""Pieces of the API's stream that fill a window: nobody can read what a faster program prints."""
_BYTES: Final = 60_000
"""Bytes that fill a window, for the same reason."""
_OF_A_FLOOD: Final = 80
"""Lines that are sent of a window that has `BURST` lines or more."""

Places = dict[str, tuple[int, int]]
"""(attempt, n) of the last line that was seen, by replica."""
Source = Callable[[Mapping[str, Sequence[str]]], Awaitable[AsyncGenerator[bytes]]]
"""Opens the API's stream of a log, with this query."""


async def follow(
    source: Source,
    row: Callable[[LogLine], list[Any]],
    seen: Places,
    passes: Callable[[LogLine], bool] | None,
) -> AsyncGenerator[bytes]:
    """Yield events `lines`, a comment when the API's stream gives a sign of life, and `over` when the log is
    complete. `row`: converts a line for browsers. `seen`: the lines that the browser has; it is changed.
    `passes`: whether a line is sent; None = all are. Raises Refused."""
    is_behind = True
    while is_behind:
        stream = await source({"follow": ("true",), "tail": (str(BURST),)})
        is_behind = False
        async with aclosing(_windows(stream)) as windows:
            async for texts in windows:
                lines, skipped = _fresh(_last(texts), seen)
                is_behind = len(lines) >= BURST
                if is_behind:
                    lines, skipped = lines[-_OF_A_FLOOD:], True
                shown = [row(line) for line in lines if passes is None or passes(line)]
                sent = {"lines": shown, "skipped": skipped}
                yield event("lines", sent) if shown or skipped else QUIET
                if is_behind:
                    break
        if is_behind:
            # The program prints faster than anybody reads: open the stream anew, at the last lines.
            await asyncio.sleep(_PAUSE)
    yield event("over", {})


def _fresh(lines: Sequence[LogLine], seen: Places) -> tuple[list[LogLine], bool]:
    """Return the lines that were not seen yet, and whether lines of a replica are missing before one of
    them. Records the lines in `seen`."""
    fresh: list[LogLine] = []
    skipped = False
    for line in lines:
        place = (line.attempt, line.n)
        last = seen.get(line.replica)
        if last is not None and place <= last:
            continue
        skipped = skipped or (last is not None and last[0] == place[0] and place[1] > last[1] + 1)
        seen[line.replica] = place
        fresh.append(line)
    return fresh, skipped


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
