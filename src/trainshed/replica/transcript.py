"""What a program prints, on its way from the pipes to the log, and what listeners are told of it. Runs on Python 3.6."""

import os

from trainshed.replica import appending, loop, masking
from trainshed.replica import segments as log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

_LINES_EVERY = 0.02
_SYNC_EVERY = 1.0


class Transcript:
    """One incarnation's. `logs`: the directory of the log; `mask`: what must not be written down; `room`: of whom its lines
    are written once a full disk has room again, until when no pipe is read; `tell` is called with how many lines can be
    read."""

    def __init__(
        self,
        logs: str,
        mask: "masking.Mask | None",
        events: loop.Loop,
        tell: "Callable[[int], None]",
        room: appending.Room,
    ) -> None:
        self._log = log.Segments(logs, mask)
        self._loop = events
        self._tell = tell
        self._room = room
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

    @property
    def waits(self) -> bool:
        """Whether lines wait for room on the disk."""
        return self._log.waits

    def open(self, handle: int, stream: str) -> None:
        """Write down what comes from that pipe, until its end."""
        os.set_blocking(handle, False)
        self._streams[handle] = log.Stream(self._log, stream)
        self._attend(handle)

    def _attend(self, handle: int) -> None:
        self._loop.add(handle, lambda: self._read(handle))

    def say(self, text: str) -> None:
        """Write a line of our own."""
        self._log.write("b", [text])
        self._heed_room()

    def take(self, texts: "list[str]") -> None:
        """Write lines that the program said in another way than by its pipes; only while nothing `waits`."""
        data = "".join(text + "\n" for text in texts).encode("utf-8", "surrogatepass")
        stream = log.Stream(self._log, "o")
        for start in range(0, len(data), log.LINE_BYTES):
            stream.feed(data[start : start + log.LINE_BYTES])
        stream.close()
        self._heed_room()

    def program_started(self) -> None:
        """Listeners know of the start: they may be told of lines from here on."""
        self._telling = True

    def tell_again(self) -> None:
        """Somebody does not know how many lines there are."""
        self._told = -1

    def due(self) -> "list[float]":
        """When `tick` will have something to do."""
        due: "list[float]" = []
        if self._telling and self._log.readable != self._told:
            due.append(self._tell_at)
        if self._log.unsynced:
            due.append(self._sync_at)
        return due

    def tick(self, now: float) -> None:
        """Tell of new lines, and sync, each now and then."""
        if self._telling and self._log.readable != self._told and now >= self._tell_at:
            self._tell_at = now + _LINES_EVERY
            self._told = self._log.readable
            self._tell(self._told)
        if self._log.unsynced:
            if not self._sync_at:
                self._sync_at = now + _SYNC_EVERY
            elif now >= self._sync_at:
                self._sync_at = 0.0 if self._log.sync() else now + _SYNC_EVERY

    def end(self) -> None:
        """No more is read; the beginning of a line is a line as well."""
        for stream in self._streams.values():
            stream.close()
        self._streams = {}

    def save(self) -> bool:
        """Have all lines written and synced; False: there is no room for that now."""
        return self._log.flush() and self._log.sync()

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
            self._heed_room()
            self.read += len(data)
            if not self._heard_program:
                self._heard_program = True
                self._tell_at = 0.0
            return
        self._streams.pop(handle).close()
        self._loop.drop(handle)
        os.close(handle)
        self._heed_room()

    def _heed_room(self) -> None:
        """Read nothing more while lines wait: the program then waits with its next output, as for any slow reader."""
        if self._log.waits:
            for handle in self._streams:
                self._loop.drop(handle)
            self._room.wait(self._go_on)

    def _go_on(self) -> bool:
        if self._log.flush():
            for handle in self._streams:
                self._attend(handle)
        return not self._log.waits
