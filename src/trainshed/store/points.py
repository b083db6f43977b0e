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
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from trainshed.core.errors import Unavailable
from trainshed.core.tensorboards.records import Point
from trainshed.eventloop.background import Crew

POINTS: Final = "tensorboards"
"""The directory below the service's data."""
_HEADER: Final = struct.Struct("<II")
_Frame = tuple[int, list[int], list[int], list[float | bytes]]
"""A series, and of its points the steps, the times and the values."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Frame)


_Waiting = list[tuple[bytes, "asyncio.Future[None]"]]
"""Frames to be written, and who is told."""


class PointFiles:
    """All runs, by their uids. Used on one event loop; the disk is waited for in threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        #: What waits for a run that is being written.
        self._waiting: dict[int, _Waiting] = {}
        self._lengths: dict[int, int] = {}
        self._writing = Crew()

    async def append(self, run: int, points: Iterable[tuple[int, Sequence[Point]]]) -> None:
        """Add points, each with the uid of its series; all are durable when it returns. Raises Unavailable:
        none is there, or all are; to write them again does no harm."""
        data = b"".join(_frame(series, some) for series, some in points if some)
        if not data:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if (waiting := self._waiting.get(run)) is not None:
            waiting.append((data, done))
        else:
            self._waiting[run] = [(data, done)]
            # Not by the caller itself: if he goes away, the others' points are written all the same.
            self._writing.begin(self._write_all(run), f"writing points of run {run}")
        await done

    async def read(self, run: int, series: Collection[int]) -> dict[int, list[Point]]:
        """The points of some series, ascending by step; [] for one that has none."""
        return await asyncio.to_thread(self._read, run, frozenset(series))

    async def forget(self, runs: Iterable[int]) -> None:
        """Remove the points of runs that are gone."""
        for run in runs:
            self._lengths.pop(run, None)
            await asyncio.to_thread(self._path(run).unlink, missing_ok=True)

    async def _write_all(self, run: int) -> None:
        """Write what waits, and what comes meanwhile."""
        while batch := self._waiting[run]:
            self._waiting[run] = []
            failure: Unavailable | None = None
            try:
                await asyncio.to_thread(self._write, run, b"".join(data for data, _ in batch))
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

    def _write(self, run: int, data: bytes) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._path(run)
        length = self._lengths.pop(run, None)
        if length is None:
            length = _whole_length(path.read_bytes()) if path.exists() else 0
        with path.open("ab") as file:
            if file.tell() != length:
                file.truncate(length)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if not length:
            _sync(self._directory)
        self._lengths[run] = length + len(data)

    def _read(self, run: int, series: frozenset[int]) -> dict[int, list[Point]]:
        found: dict[int, dict[int, Point]] = {uid: {} for uid in series}
        try:
            data = self._path(run).read_bytes()
        except FileNotFoundError:
            data = b""
        for payload in _payloads(data):
            uid, steps, times, values = _decoder.decode(payload)
            if (points := found.get(uid)) is not None:
                points.update(
                    (step, Point(step, at, value))
                    for step, at, value in zip(steps, times, values, strict=True)
                )
        return {uid: [points[step] for step in sorted(points)] for uid, points in found.items()}

    def _path(self, run: int) -> Path:
        return self._directory / f"{run}.points"


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


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
