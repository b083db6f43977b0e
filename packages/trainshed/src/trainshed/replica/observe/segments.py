"""Writes a replica's log: the output from two pipes becomes numbered, timed JSON lines in segment files.

`Segments` defines the format and the numbering. `Transcript` reads the pipes and notifies listeners of the
log's length. A file is named by the number of its first line (`000000000000.jsonl`) and closed at 8 MB. A
line is `{"n":17,"t":NS,"s":"o|e|b","m":"TEXT"}`:
- n: number of the line, from 0 on without gaps
- t: nanoseconds since the epoch, strictly ascending
- s: the stream: o = standard output, e = error output, b = the service
- p: 1 in all parts but the last of a line longer than 64 KiB, which is split

A write reaches the file immediately, so that no output is in this process only. If the disk is full, lines
wait in memory until `flush` succeeds; in the meantime, callers should read no more output. `sync` makes the
log survive a power failure.
"""

import json
import os
import time
from collections.abc import Callable

from trainshed.replica.observe import growing_files, masking
from trainshed.replica.system import loop

SEGMENT_BYTES = 8 << 20
LINE_BYTES = 64 << 10
TAIL_BYTES = 8192
PROGRESS_SECONDS = 10.0
"""Interval in seconds at which the current text of a constantly overwritten line is logged."""
_TAIL_LINES = 120
_CREATION_MARKER = "Original stack trace for '"
"""TensorFlow 1 prints this text before the place where an operation was created, dozens of lines after the
error."""
_CUT = "…".encode()
_SUFFIX = ".jsonl"

quoted = json.encoder.encode_basestring


now = time.time_ns
"""Returns nanoseconds since the epoch."""


class Segments:
    """Writes a log. A log directory has one writer at a time. The writer continues an existing log, after
    removing an incomplete last line. `mask`: masks secrets. `work`: directory of the program's files, removed
    from tracebacks. Each `Stream` applies `mask` and `work` to its lines."""

    def __init__(self, directory: str, mask: masking.Mask | None = None, work: str = "") -> None:
        self._directory = directory
        self.mask = mask
        self.traced = os.fsencode(f'File "{work}')
        names: list[str] = []
        try:
            os.makedirs(directory)
        except FileExistsError:
            names = sorted(n for n in os.listdir(directory) if n[: -len(_SUFFIX)].isdigit())
        #: Number of all lines, including those that wait for disk space.
        self.lines = 0
        #: Number of lines that are in the files, where readers find them.
        self.readable = 0
        self._last_time = 0
        self._tail: list[str] = []
        self._skips = False
        #: Whether some lines would not survive a power failure.
        self.unsynced = False
        # If the last segment is empty, times continue from the segment before it.
        opened: list[growing_files.Appender] = []
        for name in names[-2:]:
            file, written = growing_files.reopen(os.path.join(directory, name))
            opened.append(file)
            self.lines = int(name[: -len(_SUFFIX)])
            if written:
                last = json.loads(written[-1].decode("utf-8"))
                self.lines = last["n"] + 1
                self._last_time = last["t"]
        self.readable = self.lines
        self._file = opened.pop() if opened else self._open()
        for file in opened:
            file.close()

    def _open(self) -> growing_files.Appender:
        name = "%012d%s" % (self.lines, _SUFFIX)
        return growing_files.reopen(os.path.join(self._directory, name))[0]

    def write(self, stream: str, texts: list[str]) -> None:
        """Append complete lines. This is the hot path: one formatting pass and one write system call."""
        if stream == "b" and self.mask is not None:
            # Lines of the service are masked here; those of the program are masked already.
            texts = [self.mask.text(text) for text in texts]
        first = self.lines
        # Times are at least one nanosecond apart, so that they order a replica's lines.
        start = max(now(), self._last_time + 1)
        shift = start - first
        middle = ',"s":"%s","m":' % stream
        end = first + len(texts)
        data = "".join(
            [
                '{"n":%d,"t":%d%s%s}\n' % (n, n + shift, middle, quoted(text))
                for n, text in zip(range(first, end), texts)  # noqa: B905 - `strict` is too young
            ]
        ).encode("utf-8")
        # Lines of the service are not part of the program's last output.
        self._append(data, len(texts), start + len(texts) - 1, texts if stream != "b" else [])

    def write_part(self, stream: str, text: str) -> None:
        """Append one part of a line that is not complete yet."""
        at = max(now(), self._last_time + 1)
        data = '{"n":%d,"t":%d,"s":"%s","p":1,"m":%s}\n' % (self.lines, at, stream, quoted(text))
        self._append(data.encode("utf-8"), 1, at, [text])

    def _append(self, data: bytes, count: int, last_time: int, texts: list[str]) -> None:
        self.lines += count
        self._last_time = last_time
        self.unsynced = True
        if self._skips or _CREATION_MARKER.encode() in data:
            texts = [text for text in texts if not self._is_skipped(text)]
        self._tail = (self._tail + texts[-_TAIL_LINES:])[-_TAIL_LINES:]
        if self._file.append(data):
            self._continue()

    def _is_skipped(self, text: str) -> bool:
        self._skips = text.startswith(_CREATION_MARKER) or (self._skips and text.startswith("  "))
        return self._skips

    @property
    def waits(self) -> bool:
        """Whether lines wait for disk space. If so, read no more output from the program until `flush`
        succeeds."""
        return self._file.waits

    def flush(self) -> bool:
        """Write as many waiting lines as possible. Return whether no line waits any longer. Raises OSError
        for errors other than a full disk."""
        if self._file.flush():
            self._continue()
        return not self._file.waits

    def _continue(self) -> None:
        """Start the next segment if all lines are written and the current segment is full."""
        self.readable = self.lines
        if self._file.size >= SEGMENT_BYTES and self.sync():
            try:
                fresh = self._open()
            except OSError:
                # No disk space or file descriptor for another file: continue with this segment.
                return
            self._file.close()
            self._file = fresh

    def sync(self) -> bool:
        """Sync the log, so that it survives a power failure. Returns False if the disk is full: call it
        again."""
        if self.unsynced:
            self.unsynced = not self._file.sync()
        return not self.unsynced

    def close(self) -> None:
        """Close the log without syncing it."""
        self._file.close()

    def seal(self) -> tuple[int, str]:
        """Sync and close the log after its last line. If all calls of `flush` and `sync` returned True, all
        lines are then durable. Return the number of lines and the last output (at most 8 KiB, with "…" where
        it was shortened)."""
        self.sync()
        self._file.close()
        tail = "\n".join(self._tail).encode("utf-8")
        if len(tail) > TAIL_BYTES:
            tail = _CUT + tail[len(_CUT) - TAIL_BYTES :]
        return self.lines, tail.decode("utf-8", "ignore")


class Stream:
    """Turns one pipe's bytes into lines. It buffers at most the beginning of one line: 64 KiB, plus the
    length of the longest masked secret, so that secrets are found before a split. Invalid UTF-8 is replaced.

    A carriage return inside a line restarts the line, as on a terminal. So only the last state of a progress
    bar is logged. For a long-running one, some states in between are logged as well, so that readers see
    progress.
    """

    def __init__(self, log: Segments, stream: str) -> None:
        self._log = log
        self._mask = log.mask
        self._most = LINE_BYTES + (log.mask.longest if log.mask is not None else 0)
        self._stream = stream
        self._rest = b""
        self._shown_at = time.monotonic()

    def feed(self, data: bytes) -> None:
        """Process one read of at most `LINE_BYTES`, so that only the first line in it can be too long."""
        end = data.rfind(b"\n")
        if end < 0:
            self._keep(self._rest + data)
            return
        block = self._rest + data[:end] if self._rest else data[:end]
        self._rest = b""
        if self._mask is not None:
            block = self._mask.apply(block)
        block = block.replace(self._log.traced, b'File "')
        if b"\r" in block or (len(block) > LINE_BYTES and b"\n" not in block[: LINE_BYTES + 1]):
            self._write_carefully(block.split(b"\n"))
        else:
            self._log.write(self._stream, block.decode("utf-8", "replace").split("\n"))
        if end + 1 < len(data):
            self._keep(data[end + 1 :])

    def close(self) -> None:
        """Handle the end of the pipe: text without a newline also becomes a line."""
        if self._rest:
            rest, self._rest = self._rest, b""
            self._write_carefully([rest if self._mask is None else self._mask.last(rest)])

    def _keep(self, rest: bytes) -> None:
        """Buffer the beginning of a line, without overwritten progress. Split a line that is too long."""
        overwritten = rest.rfind(b"\r", 0, len(rest) - 1)
        if overwritten >= 0:
            state = _visible(rest[:overwritten])
            if state and time.monotonic() - self._shown_at >= PROGRESS_SECONDS:
                self._shown_at = time.monotonic()
                self._write_carefully([state if self._mask is None else self._mask.apply(state)])
            rest = rest[overwritten + 1 :]
        while len(rest) > self._most:
            if self._mask is not None:
                # If a secret begins before the split, all of it has been read, so the mask finds it.
                rest = self._mask.apply(rest)
            if len(rest) > self._most:
                rest = self._write_first_part(rest)
        self._rest = rest

    def _write_first_part(self, line: bytes) -> bytes:
        cut = LINE_BYTES
        while cut > LINE_BYTES - 4 and line[cut] & 0xC0 == 0x80:
            cut -= 1
        self._log.write_part(self._stream, line[:cut].decode("utf-8", "replace"))
        return line[cut:]

    def _write_carefully(self, lines: list[bytes]) -> None:
        texts: list[str] = []
        for line in lines:
            rest = _visible(line)
            if len(rest) > LINE_BYTES:
                if texts:
                    self._log.write(self._stream, texts)
                    texts = []
                while len(rest) > LINE_BYTES:
                    rest = self._write_first_part(rest)
            texts.append(rest.decode("utf-8", "replace"))
        self._log.write(self._stream, texts)


def _visible(line: bytes) -> bytes:
    """Return the text that a terminal shows of a line with carriage returns: the text after the last one."""
    line = line.rstrip(b"\r")
    return line[line.rfind(b"\r") + 1 :]


_LINES_EVERY = 0.02
_SYNC_EVERY = 1.0


class Transcript:
    """Reads the output of one run (incarnation) of a replica's program, writes it to the log, and notifies
    listeners of new lines."""

    def __init__(
        self,
        log: Segments,
        events: loop.Loop,
        notify: Callable[[int], None],
        retries: growing_files.DiskRetries,
    ) -> None:
        self._log = log
        self._loop = events
        #: Called with the number of readable lines.
        self._notify = notify
        #: Repeats writes to a full disk. Until they succeed, no pipe is read.
        self._retries = retries
        self._streams: dict[int, Stream] = {}
        self._telling = self._tells = self._syncs = False
        self._told = 0
        #: Number of bytes that were read from the program's pipes.
        self.read = 0
        self._tell_at = 0.0

    @property
    def is_open(self) -> bool:
        return bool(self._streams)

    @property
    def waits(self) -> bool:
        return self._log.waits

    def open(self, handle: int, stream: str) -> None:
        """Write all output of the pipe `handle` to the log, until the end of the pipe."""
        os.set_blocking(handle, False)
        self._streams[handle] = Stream(self._log, stream)
        self._attend(handle)

    def _attend(self, handle: int) -> None:
        self._loop.add(handle, lambda: self._read(handle))

    def log(self, text: str) -> None:
        self._log.write("b", [text])
        self._pause_on_full_disk()

    def add_lines(self, texts: list[str]) -> None:
        """Write lines that did not arrive through the program's pipes as if the program had printed them.
        Call this only while no line `waits`."""
        data = "".join(text + "\n" for text in texts).encode("utf-8", "surrogatepass")
        stream = Stream(self._log, "o")
        for start in range(0, len(data), LINE_BYTES):
            stream.feed(data[start : start + LINE_BYTES])
        stream.close()
        self._pause_on_full_disk()

    def program_started(self) -> None:
        """Record that listeners have received the program's start and may now be notified of lines."""
        self._telling = True
        self._note_lines()

    def announce(self) -> None:
        self._told = -1
        self._note_lines()

    def _note_lines(self) -> None:
        """Schedule the notification of listeners and the sync of the log."""
        if self._telling and self._log.readable != self._told and not self._tells:
            self._tells = True
            pause = self._tell_at - time.monotonic()
            self._loop.after(pause, self._tell_now) if pause > 0 else self._tell_now()
        if self._log.unsynced and not self._syncs:
            self._syncs = True
            self._loop.after(_SYNC_EVERY, self._sync_now)

    def _tell_now(self) -> None:
        self._tells = False
        self._tell_at = time.monotonic() + _LINES_EVERY
        self._told = self._log.readable
        self._notify(self._told)

    def _sync_now(self) -> None:
        self._log.sync()
        self._syncs = False
        self._note_lines()

    def end(self) -> None:
        """Stop reading. The buffered beginning of a line becomes a line."""
        for stream in self._streams.values():
            stream.close()
        self._streams = {}

    def save(self) -> bool:
        """Write and sync all lines. Return False if the disk is full."""
        return self._log.flush() and self._log.sync()

    def seal(self) -> tuple[int, str]:
        """Close the log; return the number of lines and the last output (`Segments.seal`)."""
        lines, tail = self._log.seal()
        if lines != self._told:
            self._notify(lines)
        return lines, tail

    def _read(self, handle: int) -> None:
        try:
            data = os.read(handle, LINE_BYTES)
        except BlockingIOError:
            return
        if data:
            self._streams[handle].feed(data)
            self._pause_on_full_disk()
            self.read += len(data)
            return
        self._streams.pop(handle).close()
        self._loop.drop(handle)
        os.close(handle)
        self._pause_on_full_disk()

    def _pause_on_full_disk(self) -> None:
        """Stop reading the pipes while lines wait for disk space. The program then blocks at its next output,
        as with any slow reader of a pipe."""
        if self._log.waits:
            for handle in self._streams:
                self._loop.drop(handle)
            self._retries.wait(self._resume)
        self._note_lines()

    def _resume(self) -> bool:
        if self._log.flush():
            for handle in self._streams:
                self._attend(handle)
        self._note_lines()
        return not self._log.waits
