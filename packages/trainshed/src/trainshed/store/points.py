"""Stores the points of time series in separate files: one file per run, to which each write is appended.

A frame consists of a length, a checksum, and the points of one series. The points are stored as columns,
which can be read without processing each point. An acknowledged write is on disk. If a crash leaves an
incomplete frame, the next write first cuts it off. A file with many small frames is rewritten with one frame
per series. If several points of a series have the same step, the last written one takes effect. A repeated
write therefore changes nothing.
"""

import asyncio
import os
import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import zip_longest
from operator import lt
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from trainshed.core.curves import Point, average_sections, fold, thin
from trainshed.core.errors import FailedPrecondition, Unavailable
from trainshed.replica.system import durable

MAX_BYTES: Final = 64 << 20
"""Maximum size in bytes of the points of a run, about two and a half million scalars. The file of a run is
always read completely."""
_LOOSE: Final = 1 << 20
"""A file is rewritten after this many new bytes plus a quarter of its last rewritten size."""
_READS_AT_ONCE: Final = 2
POINTS: Final = "tensorboards"
"""The directory of the files, in the service's data directory."""
_HEADER: Final = struct.Struct("<II")
_Frame = tuple[int, bytes | list[int], bytes | list[int], bytes | list[Any]]
"""The UID of a series, and the steps, times and values of its points. The points are ordered by step. Numbers
have eight bytes each. Tensors are in a list. Files up to version 0.2 contain lists, in the order of writing.
"""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Frame)


class Part(Struct, frozen=True):
    """Selects a part of the points of a series."""

    #: Maximum number of points. A series with more points is thinned (`thin`). None = all points.
    most: int | None = None
    #: The first and the last step of the part. The points next to these steps are also included.
    begin: int = -(2**63)
    end: int = 2**63 - 1
    #: Whether the result contains means of sections (`average_sections`) instead of single values. Only for
    #: scalars.
    has_means: bool = False


EVERYTHING: Final = Part()


class _Columns(Struct):
    """The points of a series as columns. A million points as objects would need ten times as much memory."""

    steps: "array[int]"
    times: "array[int]"
    values: "array[float] | list[Any]"
    #: Whether the points ascend by step.
    ascend: bool

    @property
    def columns(self) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        return self.steps, self.times, self.values

    def add(self, later: "_Columns") -> None:
        """Append points that were written later."""
        self.ascend = self.ascend and later.ascend and self.steps[-1] < later.steps[0]
        self.steps += later.steps
        self.times += later.times
        self.values.extend(later.values)

    def at(self, places: Sequence[int]) -> "_Columns":
        return _columns(*(list(map(column.__getitem__, places)) for column in self.columns))

    def in_order(self) -> "_Columns":
        """Return the points in order of step. If several points have the same step, only the last written one
        remains."""
        steps = self.steps
        if self.ascend:
            return self
        # Sorting is stable: among equal steps, the last one was written last.
        by_step = sorted(range(len(steps)), key=steps.__getitem__)
        pairs = zip_longest(by_step, by_step[1:])
        return self.at([n for n, later in pairs if later is None or steps[later] != steps[n]])

    def select(self, part: Part) -> list[Point]:
        """Return the selected part of points that are in order of step, for `PointFiles.read`."""
        # Include the points next to the part, so that a chart can draw lines to them.
        begin = max(0, bisect_left(self.steps, part.begin) - 1)
        end = bisect_right(self.steps, part.end) + 1
        steps, times = self.steps[begin:end], self.times[begin:end]
        values = self.values[begin:end]
        if part.most is None:
            return list(map(Point, steps, times, values))
        # The values of tensors cannot be compared, so tensors are thinned by position.
        numbers = values if isinstance(values, array) else range(len(values))
        if part.has_means:
            return [Point(steps[n], times[n], mean) for n, mean in average_sections(numbers, part.most)]
        return [Point(steps[n], times[n], values[n]) for n in thin(numbers, part.most)]

    def halve(self) -> "_Columns":
        """Return about half of the points, which must be in order of step. The points are distributed evenly
        over the steps. When more points follow, points that were selected are selected again."""
        steps = self.steps
        count = max(_MIN_POINTS, len(steps) // 2) // 2
        if len(steps) <= 2 * count:
            return self
        span = steps[-1] - steps[0]
        ends = (bisect_left(steps, steps[0] + span * n // count) for n in range(1, count + 1))
        return self.at(fold(self.values, ends))

    def frame(self, series: int) -> bytes:
        """Return the frame of a series with these points."""
        values = self.values if isinstance(self.values, list) else self.values.tobytes()
        columns = (series, self.steps.tobytes(), self.times.tobytes(), values)
        payload = _encoder.encode(columns)
        return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


_MIN_POINTS: Final = 1000
"""Minimum number of points of a series that remain after thinning."""


class PointFiles:
    """The files of points, by the UID of their run. Used on one event loop. Disk access runs in threads, and
    all writes run in a single thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        #: For each file that was written: its size in bytes, and the number of those bytes that its last
        #: rewrite wrote.
        self._lengths: dict[int, tuple[int, int]] = {}
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="points")
        self._reading = asyncio.Semaphore(_READS_AT_ONCE)

    async def append(
        self, run: int, points: Iterable[tuple[int, Sequence[Point]]], *, thins: bool = False
    ) -> None:
        """Add points by the UID of their series. The points are on disk when this method returns.

        Raises FailedPrecondition if the run is full. Raises Unavailable if the write failed. Then all or none
        of the points are stored, and the caller may repeat the call. `thins`: if the run is full, delete half
        of its points instead of raising an error. It must be the same in all calls for the run.
        """
        data = b"".join(
            _columns(*map(list, zip(*some, strict=True))).in_order().frame(series)
            for series, some in points
            if some
        )
        if not data:
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._writing, self._write, run, data, thins)
        except OSError as error:
            raise Unavailable(
                f"the points cannot be written ({error}); free space on the disk of the data "
                "directory, then send them again"
            ) from error

    async def read(
        self, run: int, series: Collection[int], part: Part = EVERYTHING
    ) -> dict[int, list[Point]]:
        """Return the points of each requested series in order of step. [] = a series without points."""
        async with self._reading:
            return await asyncio.to_thread(self._read, run, frozenset(series), part)

    async def forget(self, runs: Iterable[int]) -> None:
        """Delete the points of runs that were deleted."""
        loop = asyncio.get_running_loop()
        for run in runs:
            # Delete the file after all pending writes to it have finished.
            removing = partial(self._path(run).unlink, missing_ok=True)
            await loop.run_in_executor(self._writing, removing)
            self._lengths.pop(run, None)

    def _write(self, run: int, data: bytes, thins: bool) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._path(run)
        size = path.stat().st_size if path.exists() else 0
        length, merged = self._lengths.pop(run, (-1, 0))
        if length != size:
            payloads = _payloads(path.read_bytes()) if size else ()
            length, merged = sum(_HEADER.size + len(payload) for payload in payloads), 0
        is_full = length + len(data) > MAX_BYTES and thins
        if is_full or length - merged > max(_LOOSE, merged // 4):
            length = merged = self._merge(path, halves=is_full)
        if length + len(data) > MAX_BYTES:
            self._lengths[run] = length, merged
            raise FailedPrecondition(
                f"The run has {MAX_BYTES >> 20} MiB of points, which is the maximum. Log less "
                "often, or to another run."
            )
        with path.open("ab") as file:
            if file.tell() > length:
                file.truncate(length)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if not length:
            durable.sync_directory(str(self._directory))
        self._lengths[run] = length + len(data), merged

    def _merge(self, path: Path, *, halves: bool) -> int:
        """Rewrite the file with one frame per series, and return the new length in bytes. `halves`: keep only
        half of the points."""
        kept = bytearray()
        for uid, columns in _by_series(path.read_bytes()).items():
            kept += (columns.halve() if halves else columns).frame(uid)
        durable.write(str(path), bytes(kept))
        return len(kept)

    def _read(self, run: int, series: frozenset[int], part: Part) -> dict[int, list[Point]]:
        try:
            by_series = _by_series(self._path(run).read_bytes(), series)
        except FileNotFoundError:
            by_series = {}
        return {uid: by_series[uid].select(part) if uid in by_series else [] for uid in series}

    def _path(self, run: int) -> Path:
        return self._directory / f"{run}.points"


def _by_series(data: bytes, series: Collection[int] | None = None) -> dict[int, _Columns]:
    """Return the points of these series in order of step. None = of all series."""
    by_series: dict[int, _Columns] = {}
    for payload in _payloads(data):
        uid, *columns = _decoder.decode(payload)
        if series is None or uid in series:
            if uid in by_series:
                by_series[uid].add(_columns(*columns))
            else:
                by_series[uid] = _columns(*columns)
    return {uid: columns.in_order() for uid, columns in by_series.items()}


def _columns(steps: Any, times: Any, values: Any) -> _Columns:
    """Return points as columns. Each argument is bytes or a list."""
    ascend = isinstance(steps, bytes) or all(map(lt, steps, steps[1:]))
    numbers = list(values) if isinstance(values[0], bytes) else array("d", values)
    return _Columns(array("q", steps), array("q", times), numbers, ascend)


def _payloads(data: bytes) -> Iterator[memoryview]:
    """Yield the payloads of complete frames. Stop at the first incomplete frame."""
    view = memoryview(data)
    at = 0
    while at + _HEADER.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, at)
        payload = view[at + _HEADER.size : at + _HEADER.size + length]
        if not length or len(payload) != length or zlib.crc32(payload) != checksum:
            return
        yield payload
        at += _HEADER.size + length
