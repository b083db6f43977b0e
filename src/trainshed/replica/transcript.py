"""What a program prints, on its way from the pipes to the log, and what listeners are told of it. Runs on Python 3.6."""

import os

from trainshed.replica import loop, masking
from trainshed.replica import segments as log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

_LINES_EVERY = 0.02
_SYNC_EVERY = 1.0


class Transcript:
    """One incarnation's. `logs`: the directory of the log; `mask`: what must not be written down; `tell` is called with
    how many lines there are."""

    def __init__(
        self,
        logs: str,
        mask: "masking.Mask | None",
        events: loop.Loop,
        tell: "Callable[[int], None]",
    ) -> None:
        self._log = log.Segments(logs, mask)
        self._loop = events
        self._tell = tell
        self._streams: "dict[int, log.Stream]" = {}
        self._telling = False
        self._told = 0
        self._heard_program = False
        self._sync_at = 0.0
        self.read = 0
        """Bytes that the program has written."""
        self._tell_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether a pipe is not at its end yet."""
        return bool(self._streams)

    def open(self, handle: int, stream: str) -> None:
        """Write down what comes from that pipe, until its end."""
        os.set_blocking(handle, False)
        self._streams[handle] = log.Stream(self._log, stream)
        self._loop.add(handle, lambda: self._read(handle))

    def say(self, text: str) -> None:
        """Write a line of our own."""
        self._log.write("b", [text])

    def take(self, texts: "list[str]") -> None:
        """Write lines that the program said in another way than by its pipes."""
        data = "".join(text + "\n" for text in texts).encode("utf-8", "surrogatepass")
        stream = log.Stream(self._log, "o")
        for start in range(0, len(data), log.LINE_BYTES):
            stream.feed(data[start : start + log.LINE_BYTES])
        stream.close()

    def program_started(self) -> None:
        """Listeners know of the start: they may be told of lines from here on."""
        self._telling = True

    def tell_again(self) -> None:
        """Somebody does not know how many lines there are."""
        self._told = -1

    def due(self) -> "list[float]":
        """When `tick` will have something to do."""
        due: "list[float]" = []
        if self._telling and self._log.lines != self._told:
            due.append(self._tell_at)
        if self._log.unsynced:
            due.append(self._sync_at)
        return due

    def tick(self, now: float) -> None:
        """Tell of new lines, and sync, each now and then."""
        if self._telling and self._log.lines != self._told and now >= self._tell_at:
            self._tell_at = now + _LINES_EVERY
            self._told = self._log.lines
            self._tell(self._told)
        if self._log.unsynced:
            if not self._sync_at:
                self._sync_at = now + _SYNC_EVERY
            elif now >= self._sync_at:
                self._log.sync()
                self._sync_at = 0.0

    def end(self) -> None:
        """No more is read; the beginning of a line is a line as well."""
        for stream in self._streams.values():
            stream.close()

    def seal(self) -> "tuple[int, str]":
        """Nothing is written from here on; how many lines there are, and what the last of them say."""
        lines, tail = self._log.seal()
        if lines != self._told:
            self._tell(lines)
        return lines, tail

    def _read(self, handle: int) -> None:
        try:
            data = os.read(handle, log.LINE_BYTES)
        except BlockingIOError:
            return
        if data:
            self._streams[handle].feed(data)
            self.read += len(data)
            if not self._heard_program:
                self._heard_program = True
                self._tell_at = 0.0
            return
        self._streams.pop(handle).close()
        self._loop.drop(handle)
        os.close(handle)
