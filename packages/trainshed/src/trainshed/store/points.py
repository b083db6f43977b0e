"""Stores the points of time series in files beside the database: one file per run, to which writes are
appended.

A frame is a length, a checksum and the points of one series. A write is on disk when it is acknowledged;
concurrent writes of one run share a sync. A partial frame that a crash left is cut off before the next write.
Of several points of a series with the same step, the one written last counts, so that repeating a write
changes nothing.
"""

import asyncio
import os
import struct
import zlib
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from operator import le
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from trainshed.core.errors import FailedPrecondition, Unavailable
from trainshed.core.tensorboards import Point, spread, thinned
from trainshed.eventloop.background import Crew
from trainshed.replica.system import durable

MOST_BYTES: Final = 64 << 20
"""Most bytes of points of a run, some two and a half million scalars. A run is read as a whole."""
_READS_AT_ONCE: Final = 2
POINTS: Final = "tensorboards"
"""The directory, below the service's data directory."""
_HEADER: Final = struct.Struct("<II")
_Frame = tuple[int, list[int], list[int], list[float | bytes]]
"""The uid of a series, and the steps, times and values of its points."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Frame)


_Waiting = list[tuple[bytes, "asyncio.Future[None]"]]
"""Frames to be written, each with the future of its writer."""
_FEWEST: Final = 1000
"""Points of a series that thinning leaves at least."""


class RunIsFull(Exception):
    """The run has the maximum of bytes of points."""


class _Columns(Struct):
    """The points of a series in the order they were written, as columns: a million of them as objects would
    take ten times as much memory."""

    steps: "array[int]" = field(default_factory=lambda: array("q"))
    times: "array[int]" = field(default_factory=lambda: array("q"))
    values: list[float | bytes] = field(default_factory=list[float | bytes])

    def points(self, most: int | None) -> list[Point]:
        """Return the points, as `PointFiles.read` does."""
        steps, times = self.steps, self.times
        order: Sequence[int] = range(len(steps))
        if any(map(le, steps[1:], steps)):
            # Sorting keeps the order of equal steps, so that the last of them was written last.
            by_step = sorted(order, key=steps.__getitem__)
            order = [
                index
                for index, later in zip_longest(by_step, by_step[1:])
                if later is None or steps[later] != steps[index]
            ]
        if most is not None:
            order = thinned(order, most)
        return [Point(steps[index], times[index], self.values[index]) for index in order]


class PointFiles:
    """The files of points, by the uid of their run. Used on one event loop; disk access is done in
    threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        #: Frames that wait for a run that is being written.
        self._waiting: dict[int, _Waiting] = {}
        self._lengths: dict[int, int] = {}
        self._writing = Crew()
        self._reading = asyncio.Semaphore(_READS_AT_ONCE)

    async def append(
        self, run: int, points: Iterable[tuple[int, Sequence[Point]]], *, thins: bool = False
    ) -> None:
        """Add points, each with the uid of its series; they are durable when this returns. Raises
        FailedPrecondition (the run is full), Unavailable: then all of them may have been written, or none,
        and repeating the call does no harm. `thins`: if the run is full, half of its points are dropped
        instead; must be the same in all calls for the run."""
        data = b"".join(_frame(series, some) for series, some in points if some)
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
        self,
        run: int,
        series: Collection[int],
        most: int | None = None,
    ) -> dict[int, list[Point]]:
        """Return `most` points (None: all) of each of some series, ascending by step, spread evenly, with the
        first and the last; [] for a series without points."""
        async with self._reading:
            return await asyncio.to_thread(self._read, run, frozenset(series), most)

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
            except RunIsFull:
                failure = FailedPrecondition(
                    f"The run has {MOST_BYTES >> 20} MiB of points, and takes no more; log less often, or "
                    "into another run."
                )
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
        """Drop half of the points of each series. Return the length of the file that is left."""
        kept = bytearray()
        for uid, column in _columns(path.read_bytes()).items():
            points = column.points(None)
            kept += _frame(uid, spread(points, max(_FEWEST, len(points) // 2)))
        durable.write(str(path), bytes(kept))
        return len(kept)

    def _read(
        self,
        run: int,
        series: frozenset[int],
        most: int | None,
    ) -> dict[int, list[Point]]:
        try:
            data = self._path(run).read_bytes()
        except FileNotFoundError:
            data = b""
        columns = {uid: _Columns() for uid in series} | _columns(data, series)
        return {uid: column.points(most) for uid, column in columns.items()}

    def _path(self, run: int) -> Path:
        return self._directory / f"{run}.points"


def _columns(data: bytes, series: Collection[int] | None = None) -> dict[int, _Columns]:
    """Return the points of these series (None: of all) in the order they were written."""
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
    """Yield the payloads of complete frames, up to the first incomplete one."""
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
