"""Files of metric points, and the selection of points for charts (facts/experiments#points)."""

import asyncio
import math
import struct
import zlib
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.core.curves import Point, average_sections, thin
from trainshed.core.errors import FailedPrecondition, Unavailable
from trainshed.store import points as store_points
from trainshed.store.points import Part, PointFiles


def points(*steps: int, value: float = 0.5) -> list[Point]:
    return [Point(step, 1000 + step, value * step) for step in steps]


async def test_incomplete_metric_record_after_a_crash_is_ignored_and_overwritten(tmp_path: Path) -> None:
    """spec/invariants#durability, facts/experiments#points: a repeated write stores each point once."""
    files = PointFiles(tmp_path)
    await files.append(7, [(1, points(1))])
    path = tmp_path / "7.points"
    whole = path.read_bytes()
    await files.append(7, [(1, points(2))])
    both = path.read_bytes()
    for cut in range(len(whole) + 1, len(both)):
        path.write_bytes(both[:cut])
        after = PointFiles(tmp_path)
        assert await after.read(7, [1]) == {1: points(1)}
        for _ in range(2):  # A client without a response repeats the request.
            await after.append(7, [(1, points(3))])
        assert await PointFiles(tmp_path).read(7, [1]) == {1: points(1, 3)}
    path.write_bytes(whole + bytes(20))  # The file after a power failure.
    assert await PointFiles(tmp_path).read(7, [1]) == {1: points(1)}
    path.write_bytes(both[:-1] + bytes([both[-1] ^ 1]))
    assert await PointFiles(tmp_path).read(7, [1]) == {1: points(1)}
    await files.append(7, [(1, points(2))])
    path.unlink()  # For example, by the administrator.
    await files.append(7, [(1, points(3))])
    assert await files.read(7, [1]) == {1: points(3)}


async def test_failed_metric_write_is_reported_to_all_callers(tmp_path: Path) -> None:
    files = PointFiles(tmp_path)
    await files.append(7, [(1, points(1))])
    limited = tmp_path / "7.points"
    content = limited.read_bytes()
    limited.unlink()
    limited.mkdir()
    results = await asyncio.gather(
        *(files.append(7, [(1, points(step))]) for step in (2, 3)), return_exceptions=True
    )
    assert [type(result) for result in results] == [Unavailable, Unavailable]
    limited.rmdir()
    limited.write_bytes(content)
    await files.append(7, [(1, points(4))])
    assert await files.read(7, [1]) == {1: points(1, 4)}


async def test_cancelled_metric_write_does_not_block_concurrent_metric_writes(tmp_path: Path) -> None:
    files = PointFiles(tmp_path)
    first = asyncio.ensure_future(files.append(7, [(1, points(1))]))
    others = [asyncio.ensure_future(files.append(7, [(1, points(step))])) for step in (2, 3)]
    await asyncio.sleep(0)
    first.cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(first, *others, return_exceptions=True)
    await files.append(7, [(1, points(2, 3))])
    assert (await files.read(7, [1]))[1][-2:] == points(2, 3)


async def test_metric_request_returns_only_the_requested_number_and_range_of_points(tmp_path: Path) -> None:
    files = PointFiles(tmp_path)
    await files.append(7, [(1, points(*range(5, 100), *range(10)))])
    assert (await files.read(7, [1]))[1] == points(*range(100))
    assert (await files.read(7, [1], Part(2)))[1] == points(0, 99)
    assert (await files.read(7, [1], Part(1)))[1] == points(99)
    some = (await files.read(7, [1], Part(2, 20, 30)))[1]
    assert some == points(19, 31)  # The chart's line continues beyond both edges.
    means = (await files.read(7, [1], Part(10, has_means=True)))[1]
    assert [(point.step, point.value) for point in means[:2]] == [(9, 2.25), (19, 7.25)]


async def test_metric_files_of_version_0_2_are_readable(tmp_path: Path) -> None:
    payload = msgspec.msgpack.encode((1, [1, 2, 1], [1001, 1002, 1001], [0.5, 1.0, 0.5]))
    frame = struct.pack("<II", len(payload), zlib.crc32(payload)) + payload
    (tmp_path / "7.points").write_bytes(frame)
    files = PointFiles(tmp_path)
    await files.append(7, [(1, points(3))])
    assert await files.read(7, [1]) == {1: points(1, 2, 3)}


async def test_small_metric_writes_are_merged_and_newest_values_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_points, "_LOOSE", 1000)
    files = PointFiles(tmp_path)
    for step in [*range(300), *range(250, 400)]:
        await files.append(7, [(1, points(step, value=0.5 if step < 250 else 0.25))])
        await files.append(7, [(2, points(step))])
    assert await PointFiles(tmp_path).read(7, [1]) == {
        1: [*points(*range(250)), *points(*range(250, 400), value=0.25)]
    }
    bare = 2 * 400 * 3 * 8
    assert (tmp_path / "7.points").stat().st_size < 1.5 * bare


async def test_metric_points_beyond_the_size_limit_of_a_run_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service reads the points of a run as a whole, so an unlimited run would use up its memory."""
    monkeypatch.setattr("trainshed.store.points.MAX_BYTES", 200)
    files = PointFiles(tmp_path)
    await files.append(7, [(1, points(1))])
    with pytest.raises(FailedPrecondition, match="which is the maximum"):
        await files.append(7, [(1, points(*range(20)))])
    await files.append(7, [(1, points(2))])
    assert await PointFiles(tmp_path).read(7, [1]) == {1: points(1, 2)}


async def test_run_at_the_size_limit_keeps_metric_points_from_first_to_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_points, "MAX_BYTES", 200_000)
    monkeypatch.setattr(store_points, "_MIN_POINTS", 10)
    files = PointFiles(tmp_path)
    for begin in range(0, 100_000, 1000):
        await files.append(7, [(1, points(*range(begin, begin + 1000)))], thins=True)
    assert (tmp_path / "7.points").stat().st_size <= 200_000
    await files.append(7, [(2, points(3))], thins=True)
    kept = await PointFiles(tmp_path).read(7, [1, 2])
    assert kept[2] == points(3)
    steps = [point.step for point in kept[1]]
    assert (steps[0], steps[-1]) == (0, 99_999)
    assert len(steps) > 3000
    assert max(b - a for a, b in pairwise(steps)) < 1000


async def test_metric_points_of_deleted_runs_are_deleted(tmp_path: Path) -> None:
    files = PointFiles(tmp_path)
    await files.append(7, [(1, points(1))])
    await files.forget([7, 8])
    assert await files.read(7, [1]) == {1: []}
    await files.append(7, [(1, points(2))])
    assert await files.read(7, [1]) == {1: points(2)}
    # This includes writes that are in progress.
    writing = [asyncio.create_task(files.append(run, [(1, points(1))])) for run in (6, 5, 9)]
    await asyncio.sleep(0)
    await files.forget([9])
    await asyncio.gather(*writing)
    assert await files.read(9, [1]) == {1: []}


VALUES = st.lists(st.floats() | st.integers(0, 3).map(float), min_size=1, max_size=200)


@given(VALUES, st.integers(2, 60))
def test_downsampled_chart_points_keep_minimum_and_maximum(values: list[float], limit: int) -> None:
    places = thin(values, limit)
    assert len(places) <= limit
    assert list(places) == sorted(set(places))
    assert (places[0], places[-1]) == (0, len(values) - 1)
    kept = [values[place] for place in places]
    numbers = [value for value in values[1:-1] if not math.isnan(value)]
    if limit >= 4 and numbers:
        assert min(numbers) in kept
        assert max(numbers) in kept


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(1, 60))
def test_averaged_chart_points_include_all_values(values: list[float], limit: int) -> None:
    means = average_sections(values, limit)
    assert len(means) == min(limit, len(values))
    ends = [place + 1 for place, _ in means]
    whole = sum(mean * (end - begin) for (_, mean), begin, end in zip(means, [0, *ends], ends, strict=False))
    assert ends[-1] == len(values)
    assert math.isclose(whole, sum(values), abs_tol=1e-3)
