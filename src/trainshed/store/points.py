"""The points of time series, in files beside the database: one of each run, to which writes are appended.

A frame is a length, a checksum and the points of one series. A write is on the disk when it is acknowledged;
writes of one run that come at the same time share a sync. What a crash left of a frame is cut off before the
next write. Of several points of a series with the same step the one written last counts, so that a write
that is sent again changes nothing.
"""

import asyncio
import os
import struct
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from trainshed.core.errors import FailedPrecondition, Unavailable
from trainshed.core.tensorboards.records import Point, spread, thinned
from trainshed.eventloop.background import Crew
from trainshed.replica.system import durable

MOST_BYTES: Final = 64 << 20
"""Of the points of a run: some two and a half million scalars. All of a run is read at a time."""
_READS_AT_ONCE: Final = 2
POINTS: Final = "tensorboards"
"""The directory below the service's data."""
_HEADER: Final = struct.Struct("<II")
_Frame = tuple[int, list[int], list[int], list[float | bytes]]
"""A series, and of its points the steps, the times and the values."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Frame)


_Waiting = list[tuple[bytes, "asyncio.Future[None]"]]
"""Frames to be written, and who is told."""
_FEWEST: Final = 1000
"""Points of a series that thinning leaves."""


class RunIsFull(Exception):
    """A run has as many bytes of points as one may have."""


class _Columns(Struct):
    """The points of a series as they were written: a million of them as objects would take ten times as
    much."""

    steps: "array[int]" = field(default_factory=lambda: array("q"))
    times: "array[int]" = field(default_factory=lambda: array("q"))
    values: list[float | bytes] = field(default_factory=list[float | bytes])

    def points(self, most: int | None, passes: Callable[[int, int], bool] | None) -> list[Point]:
        """As `PointFiles.read` says."""
        steps, times = self.steps, self.times
        order: Sequence[int] = range(len(steps))
        if any(later <= earlier for earlier, later in pairwise(steps)):
            # Sorting keeps the order of equal steps: the last of them was written last.
            by_step = sorted(order, key=steps.__getitem__)
            order = [
                index
                for index, later in zip_longest(by_step, by_step[1:])
                if later is None or steps[later] != steps[index]
            ]
        if passes is not None:
            order = [index for index in order if passes(steps[index], times[index])]
        if most is not None:
            order = thinned(order, most)
        return [Point(steps[index], times[index], self.values[index]) for index in order]


class PointFiles:
    """All runs, by their uids. Used on one event loop; the disk is waited for in threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        #: What waits for a run that is being written.
        self._waiting: dict[int, _Waiting] = {}
        self._lengths: dict[int, int] = {}
        self._writing = Crew()
        self._reading = asyncio.Semaphore(_READS_AT_ONCE)

    async def append(
        self, run: int, points: Iterable[tuple[int, Sequence[Point]]], *, thins: bool = False
    ) -> None:
        """Add points, each with the uid of its series; all are durable when it returns. Raises
        FailedPrecondition (the run is full), Unavailable: then none is there, or all are, and to write them
        again does no harm. `thins`: of a run that is full half of the points are forgotten instead; the same
        for all who write to the run."""
        data = b"".join(_frame(series, some) for series, some in points if some)
        if not data:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if (waiting := self._waiting.get(run)) is not None:
            waiting.append((data, done))
        else:
            self._waiting[run] = [(data, done)]
            # Not by the caller itself: if he goes away, the others' points are written all the same.
            self._writing.begin(self._write_all(run, thins), f"writing points of run {run}")
        await done

    async def read(
        self,
        run: int,
        series: Collection[int],
        most: int | None = None,
        passes: Callable[[int, int], bool] | None = None,
    ) -> dict[int, list[Point]]:
        """The points of some series, ascending by step; [] for one that has none.

        `passes` chooses by step and time (ns); of what it lets pass, `most` points (None: all) are spread
        evenly, with the first and the last among them.
        """
        async with self._reading:
            return await asyncio.to_thread(self._read, run, frozenset(series), most, passes)

    async def size(self, runs: Collection[int]) -> int:
        """Bytes that the points of some runs take on the disk."""
        return await asyncio.to_thread(lambda: sum(map(self._size, runs)))

    async def forget(self, runs: Iterable[int]) -> None:
        """Remove the points of runs that are gone."""
        for run in runs:
            self._lengths.pop(run, None)
            await asyncio.to_thread(self._path(run).unlink, missing_ok=True)

    async def _write_all(self, run: int, thins: bool) -> None:
        """Write what waits, and what comes meanwhile."""
        while batch := self._waiting[run]:
            self._waiting[run] = []
            failure: Unavailable | FailedPrecondition | None = None
            try:
                await asyncio.to_thread(
                    self._write, run, b"".join(data for data, _ in batch), thins
                )
            except RunIsFull:
                failure = FailedPrecondition(
                    f"The run has {MOST_BYTES >> 20} MiB of points, and takes no more; log less often, or "
                    "into another run."
                )
            except Exception as error:  # Whatever it is, who waits is told.
                failure = Unavailable(
                    f"the points cannot be written ({error}); make room on the disk of the data directory, "
                    "then send them again"
                )
            for _, done in batch:
                if done.done():
                    continue  # Its caller went away.
                if failure is None:
                    done.set_result(None)
                else:
                    done.set_exception(failure)
        del self._waiting[run]

    def _write(self, run: int, data: bytes, thins: bool) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._path(run)
        length = self._lengths.pop(run, None)
        if length is None:
            length = _whole_length(path.read_bytes()) if path.exists() else 0
        if length + len(data) > MOST_BYTES and thins:
            length = self._thin(path)
        if length + len(data) > MOST_BYTES:
            self._lengths[run] = length
            raise RunIsFull
        with path.open("ab") as file:
            if file.tell() != length:
                file.truncate(length)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if not length:
            durable.sync_directory(str(self._directory))
        self._lengths[run] = length + len(data)

    def _thin(self, path: Path) -> int:
        """Forget half of the points of each series; returns the length of what is left."""
        kept = bytearray()
        for uid, column in _columns(path.read_bytes()).items():
            points = column.points(None, None)
            kept += _frame(uid, spread(points, max(_FEWEST, len(points) // 2)))
        durable.write(str(path), bytes(kept))
        return len(kept)

    def _read(
        self,
        run: int,
        series: frozenset[int],
        most: int | None,
        passes: Callable[[int, int], bool] | None,
    ) -> dict[int, list[Point]]:
        try:
            data = self._path(run).read_bytes()
        except FileNotFoundError:
            data = b""
        columns = {uid: _Columns() for uid in series} | _columns(data, series)
        return {uid: column.points(most, passes) for uid, column in columns.items()}

    def _size(self, run: int) -> int:
        try:
            return self._path(run).stat().st_size
        except FileNotFoundError:
            return 0

    def _path(self, run: int) -> Path:
        return self._directory / f"{run}.points"


def _columns(data: bytes, series: Collection[int] | None = None) -> dict[int, _Columns]:
    """The points of these series (None: of all) as they were written."""
    columns: dict[int, _Columns] = {}
    for payload in _payloads(data):
        uid, steps, times, values = _decoder.decode(payload)
        if series is None or uid in series:
            column = columns.setdefault(uid, _Columns())
            column.steps.extend(steps)
            column.times.extend(times)
            column.values += values
    return columns


def _frame(series: int, points: Sequence[Point]) -> bytes:
    payload = _encoder.encode(
        (
            series,
            [point.step for point in points],
            [point.at for point in points],
            [point.value for point in points],
        )
    )
    return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


def _payloads(data: bytes) -> Iterator[memoryview]:
    """The whole frames, up to the first that is not."""
    view = memoryview(data)
    at = 0
    while at + _HEADER.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, at)
        payload = view[at + _HEADER.size : at + _HEADER.size + length]
        if len(payload) != length or zlib.crc32(payload) != checksum:
            return
        yield payload
        at += _HEADER.size + length


def _whole_length(data: bytes) -> int:
    return sum(_HEADER.size + len(payload) for payload in _payloads(data))
