"""Stores the points of time series in files beside the database: one file per run, to which writes are
appended.

A frame is a length, a checksum and the points of one series, as columns that are read without a look at each
point. A write is on disk when it is acknowledged; concurrent writes of one run share a sync. A partial frame
that a crash left is cut off before the next write. When many small ones have come together, the file is
written anew with one frame of each series. Of several points of a series with the same step, the one written
last counts, so that repeating a write changes nothing.
"""

import asyncio
import os
import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest
from operator import lt
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from trainshed.core.errors import FailedPrecondition, Unavailable
from trainshed.core.tensorboards import Point, averaged, folded, thinned
from trainshed.eventloop.background import Crew
from trainshed.replica.system import durable

MOST_BYTES: Final = 64 << 20
"""Most bytes of points of a run, some two and a half million scalars. A run is read as a whole."""
_LOOSE: Final = 1 << 20
"""Bytes that are written to a file, and a quarter of what it had, before it is written anew."""
_READS_AT_ONCE: Final = 2
POINTS: Final = "tensorboards"
"""The directory, below the service's data directory."""
_HEADER: Final = struct.Struct("<II")
_Frame = tuple[int, bytes | list[int], bytes | list[int], bytes | list[Any]]
"""The uid of a series, and the steps, times and values of its points, ascending by step: numbers as eight
bytes each, and tensors as a list. Up to version 0.2 all are lists, in the order they were written."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Frame)


_Waiting = list[tuple[bytes, "asyncio.Future[None]"]]
"""Frames to be written, each with the future of its writer."""
_FEWEST: Final = 1000
"""Points of a series that thinning leaves at least."""


class _Columns(Struct):
    """The points of a series as columns: a million of them as objects would take ten times as much memory."""

    steps: "array[int]"
    times: "array[int]"
    values: "array[float] | list[Any]"
    #: So many of them, at the beginning, ascend by step, and no later one has a step of theirs.
    settled: int

    def add(self, later: "_Columns") -> None:
        """Add points that were written later, and ascend."""
        if self.settled == len(self.steps) and self.steps[-1] < later.steps[0]:
            self.settled += later.settled
        else:
            self.settled = bisect_left(self.steps, later.steps[0], 0, self.settled)
        self.steps += later.steps
        self.times += later.times
        self.values.extend(later.values)

    def at(self, places: Sequence[int]) -> "_Columns":
        """Return the points at some places, at which they ascend."""
        steps, times = (array("q", map(c.__getitem__, places)) for c in (self.steps, self.times))
        values = _values(list(map(self.values.__getitem__, places)))
        return _Columns(steps, times, values, len(steps))

    def in_order(self) -> "_Columns":
        """Return the points ascending by step, of those with the same step the one written last."""
        steps, settled = self.steps, self.settled
        if settled == len(steps):
            return self
        # Sorting keeps the order of equal steps, so that the last of them was written last.
        by_step = sorted(range(settled, len(steps)), key=steps.__getitem__)
        pairs = zip_longest(by_step, by_step[1:])
        last = [n for n, later in pairs if later is None or steps[later] != steps[n]]
        tail = self.at(last)
        if not settled:
            return tail
        head = _Columns(steps[:settled], self.times[:settled], self.values[:settled], settled)
        head.add(tail)
        return head

    def drawn(self, part: "Part") -> list[Point]:
        """Return the points, as `PointFiles.read` does."""
        ordered = self.in_order()
        # With the points on both sides, to which a line goes.
        begin = max(0, bisect_left(ordered.steps, part.begin) - 1)
        end = bisect_right(ordered.steps, part.end) + 1
        steps, times = ordered.steps[begin:end], ordered.times[begin:end]
        values = ordered.values[begin:end]
        if part.most is None:
            return list(map(Point, steps, times, values))
        # Tensors are neither small nor large.
        numbers = values if isinstance(values, array) else range(len(values))
        if part.has_means:
            return [Point(steps[n], times[n], mean) for n, mean in averaged(numbers, part.most)]
        return [Point(steps[n], times[n], values[n]) for n in thinned(numbers, part.most)]

    def halved(self) -> "_Columns":
        """Return about half of the points, which ascend, spread evenly over the steps rather than over the
        points: what was halved before stays as it is when more follow."""
        steps = self.steps
        count = max(_FEWEST, len(steps) // 2) // 2
        if len(steps) <= 2 * count:
            return self
        span = steps[-1] - steps[0]
        ends = (bisect_left(steps, steps[0] + span * n // count) for n in range(1, count + 1))
        return self.at(folded(self.values, ends))

    def frame(self, series: int) -> bytes:
        """Return the frame of these points of a series."""
        values = self.values if isinstance(self.values, list) else self.values.tobytes()
        columns = (series, self.steps.tobytes(), self.times.tobytes(), values)
        payload = _encoder.encode(columns)
        return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


class Part(Struct, frozen=True):
    """What is read of the points of a series."""

    #: At most so many points, `thinned`; None = all.
    most: int | None = None
    #: The first and the last step; the points before and after them are read as well.
    begin: int = -(2**63)
    end: int = 2**63 - 1
    #: Whether their values are means of scalars (`averaged`).
    has_means: bool = False


EVERYTHING: Final = Part()


class PointFiles:
    """The files of points, by the uid of their run. Used on one event loop; disk access is done in
    threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        #: Frames that wait for a run that is being written.
        self._waiting: dict[int, _Waiting] = {}
        #: Of each file that was written: its bytes, and how many of them were written at once.
        self._lengths: dict[int, tuple[int, int]] = {}
        self._writing = Crew()
        self._reading = asyncio.Semaphore(_READS_AT_ONCE)

    async def append(
        self, run: int, points: Iterable[tuple[int, Sequence[Point]]], *, thins: bool = False
    ) -> None:
        """Add points, each with the uid of its series; they are durable when this returns. Raises
        FailedPrecondition (the run is full), Unavailable: then all of them may have been written, or none,
        and repeating the call does no harm. `thins`: if the run is full, half of its points are dropped
        instead; must be the same in all calls for the run."""
        data = b"".join(
            _column(*map(list, zip(*some, strict=True))).frame(series)
            for series, some in points
            if some
        )
        if not data:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if (waiting := self._waiting.get(run)) is not None:
            waiting.append((data, done))
        else:
            self._waiting[run] = [(data, done)]
            # Not by the caller itself: if it is cancelled, the others' points are written all the same.
            self._writing.begin(self._write_all(run, thins), f"writing points of run {run}")
        await done

    async def read(
        self, run: int, series: Collection[int], part: Part = EVERYTHING
    ) -> dict[int, list[Point]]:
        """Return the points of each of some series, ascending by step; [] for a series without points."""
        async with self._reading:
            return await asyncio.to_thread(self._read, run, frozenset(series), part)

    async def forget(self, runs: Iterable[int]) -> None:
        """Remove the points of runs that were deleted."""
        for run in runs:
            self._lengths.pop(run, None)
            await asyncio.to_thread(self._path(run).unlink, missing_ok=True)

    async def _write_all(self, run: int, thins: bool) -> None:
        """Write what waits, and what is added meanwhile."""
        while batch := self._waiting[run]:
            self._waiting[run] = []
            failure: Unavailable | FailedPrecondition | None = None
            try:
                await asyncio.to_thread(
                    self._write, run, b"".join(data for data, _ in batch), thins
                )
            except FailedPrecondition as full:
                failure = full
            except Exception as error:  # Whatever it is, the waiting callers are told.
                failure = Unavailable(
                    f"the points cannot be written ({error}); make room on the disk of the data directory, "
                    "then send them again"
                )
            for _, done in batch:
                if done.done():
                    continue  # Its caller was cancelled.
                if failure is None:
                    done.set_result(None)
                else:
                    done.set_exception(failure)
        del self._waiting[run]

    def _write(self, run: int, data: bytes, thins: bool) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._path(run)
        size = path.stat().st_size if path.exists() else 0
        length, merged = self._lengths.pop(run, (-1, 0))
        if length != size:
            payloads = _payloads(path.read_bytes()) if size else ()
            length, merged = sum(_HEADER.size + len(payload) for payload in payloads), 0
        is_full = length + len(data) > MOST_BYTES and thins
        if is_full or length - merged > max(_LOOSE, merged // 4):
            length = merged = self._merge(path, halves=is_full)
        if length + len(data) > MOST_BYTES:
            self._lengths[run] = length, merged
            raise FailedPrecondition(
                f"The run has {MOST_BYTES >> 20} MiB of points, and takes no more; log less often, or into "
                "another run."
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
        """Write the file anew, with one frame of each series; `halves`: of half of its points. Return its
        length."""
        kept = bytearray()
        for uid, column in _columns(path.read_bytes()).items():
            ordered = column.in_order()
            kept += (ordered.halved() if halves else ordered).frame(uid)
        durable.write(str(path), bytes(kept))
        return len(kept)

    def _read(self, run: int, series: frozenset[int], part: Part) -> dict[int, list[Point]]:
        path = self._path(run)
        try:
            at = path.stat()
            # What is read whole, or fast, is not kept.
            read = _drawn if part.most and at.st_size > _LOOSE else _drawn.__wrapped__
            drawn = read(path, at.st_size, at.st_mtime_ns, series, part)
        except FileNotFoundError:
            drawn = {}
        return {uid: drawn.get(uid, []) for uid in series}

    def _path(self, run: int) -> Path:
        return self._directory / f"{run}.points"


@lru_cache(maxsize=4)
def _drawn(
    path: Path, length: int, changed: int, series: frozenset[int], part: Part
) -> dict[int, list[Point]]:
    """Return the points of a file, for those who look again as well: a million take a tenth of a second.
    `length`, `changed`: of the file as it is."""
    columns = _columns(path.read_bytes(), series)
    return {uid: column.drawn(part) for uid, column in columns.items()}


def _columns(data: bytes, series: Collection[int] | None = None) -> dict[int, _Columns]:
    """Return the points of these series (None: of all) in the order they were written."""
    columns: dict[int, _Columns] = {}
    for payload in _payloads(data):
        uid, steps, times, values = _decoder.decode(payload)
        if series is None or uid in series:
            later = _column(steps, times, values)
            if uid in columns:
                columns[uid].add(later)
            else:
                columns[uid] = later
    return columns


def _column(steps: Any, times: Any, values: Any) -> _Columns:
    """Return points that were written together, each column as bytes or as a list, in their order."""
    ascends = isinstance(steps, bytes) or all(map(lt, steps, steps[1:]))
    column = _Columns(array("q", steps), array("q", times), _values(values), 0)
    column.settled = len(column.steps) if ascends else 0
    return column.in_order()


def _values(column: Any) -> "array[float] | list[Any]":
    return column if isinstance(column[0], bytes) else array("d", column)


def _payloads(data: bytes) -> Iterator[memoryview]:
    """Yield the payloads of complete frames, up to the first incomplete one."""
    view = memoryview(data)
    at = 0
    while at + _HEADER.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, at)
        payload = view[at + _HEADER.size : at + _HEADER.size + length]
        if not length or len(payload) != length or zlib.crc32(payload) != checksum:
            return
        yield payload
        at += _HEADER.size + length
