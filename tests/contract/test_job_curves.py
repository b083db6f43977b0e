"""Curves of running jobs, with a real directory and a real store (facts/experiments#curves)."""

import asyncio
import contextlib
import itertools
import math
import struct
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.e2e.programs.event_writer import EventWriter, field, frame_record, varint
from tests.inline_store import Hook, InlineStore, open_inline
from tests.unit.jobs import CREATED, job
from trainshed.controller import curves as curves_module
from trainshed.controller.curves import CurveStores, JobCurves
from trainshed.core.curves import CurveWriter
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.store.points import PointFiles
from trainshed.store.port import Commit, NewWork
from trainshed.summaries import reading
from trainshed.summaries.directories import LocalDirectory
from trainshed.summaries.reading import Directory

RUNNING = replace(job(output="gs://b/out"), attempt=1, state=JobState.RUNNING)
OVER = replace(RUNNING, state=JobState.SUCCEEDED)
DAMAGE_RECORD = "UPDATE jobs SET record = CAST('{' AS BLOB), is_live = 0 WHERE uid = 1"


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves_module, "_READ_INTERVAL", 0.01)
    monkeypatch.setattr(curves_module, "_MAX_READ_INTERVAL", 0.05)
    monkeypatch.setattr(curves_module, "_END_TIMEOUT", 60)


def clock() -> float:
    """Return the time in seconds since the epoch, 100 s after the creation of the job."""
    return CREATED / 1e9 + 100


class Killed(Exception):
    """Simulates the death of the service."""


class CurveHarness:
    """A bucket and a store. `service` creates the curve readers like a service start."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.news = asyncio.Event()
        self.commit: Hook = lambda what: self.news.set()
        self.store: InlineStore = open_inline(after_commit=self.commit)
        self.points = PointFiles(root / "points")
        self.uids = map(JobUid, itertools.count(100))
        self.logs = root / "bucket" / "out" / "logs"
        (root / "bucket").mkdir()

    def directory(self, uri: str, project: str, account: str) -> Directory | None:
        assert project == "demo" and account.startswith("service-")
        return LocalDirectory(self.root / "bucket", tuple(uri.split("/")[3:]))

    def board(self, job: Job) -> CurveWriter | None:
        """Return no writer: these tests write no curves to tensorboards."""
        return None

    @contextlib.asynccontextmanager
    async def service(self) -> AsyncGenerator[JobCurves]:
        store = self.store
        curves = JobCurves(
            CurveStores(
                curves=store.curves,
                points=self.points,
                reader=store.reader,
                intake=store.intake,
                directory=self.directory,
                board=self.board,
                new_uid=lambda: next(self.uids),
                now=lambda: CREATED,
            )
        )
        curves.start()
        try:
            yield curves
        finally:
            await curves.close()

    async def create(self, job: Job) -> Job:
        await self.store.intake.create(NewWork(replace(job, state=JobState.QUEUED, attempt=0)))
        return job

    async def end(self, job: Job) -> None:
        epoch = await self.store.ledger.acquire("test")
        live = await self.store.ledger.load(job.uid)
        assert live is not None
        await self.store.ledger.commit(epoch, Commit(job, live.generation))

    async def values(self, uid: JobUid = RUNNING.uid) -> dict[str, dict[int, float | bytes]]:
        """Return values by run and tag, then by step."""
        series = {curve.uid: curve for curve in await self.store.curves.series(uid)}
        read = await self.points.read(uid, list(series))
        return {
            f"{series[key].run}:{series[key].tag}": {point.step: point.value for point in points}
            for key, points in read.items()
        }

    async def logged(self, curves: JobCurves, job: Job) -> dict[int, float | bytes]:
        """Return the values of `acc` in the main run by step."""
        logged = await curves.read_points(job, "acc")
        assert logged is not None
        return {point.step: point.value for point in logged[1]}

    async def until(self, expected: object, uid: JobUid = RUNNING.uid) -> None:
        async with asyncio.timeout(60):
            while await self.values(uid) != expected:
                await self.news.wait()
                self.news.clear()


@pytest.fixture
def harness(tmp_path: Path) -> CurveHarness:
    return CurveHarness(tmp_path)


async def test_waiting_reader_is_notified_of_each_written_measurement(harness: CurveHarness) -> None:
    """Counts of an evaluation take precedence over training. All values of a finished job are read."""
    await harness.create(RUNNING)
    async with harness.service() as curves:
        heard: asyncio.Queue[JobUid] = asyncio.Queue()
        curves.start(heard.put_nowait)
        curves.follow(RUNNING)
        assert await harness.logged(curves, RUNNING) == {}
        train, evaluation = (EventWriter(harness.logs / run, clock) for run in ("train", "eval_1"))
        train.scalar("acc", 0.25, 1)
        while await harness.logged(curves, RUNNING) != {1: 0.25}:
            assert await heard.get() == RUNNING.uid
        evaluation.scalar("acc", 0.5, 2)
        while await harness.logged(curves, RUNNING) != {2: 0.5}:
            assert await heard.get() == RUNNING.uid
        evaluation.scalar("acc", 0.75, 3)
        await curves.finish(OVER)
        assert (await harness.values())["eval_1:acc"] == {2: 0.5, 3: 0.75}
        assert await harness.logged(curves, OVER) == {2: 0.5, 3: 0.75}
        await harness.end(OVER)
        assert await harness.store.curves.unfinished_jobs() == ()
    assert await curves.read_points(job(), "acc") is None


async def test_job_without_event_files_stores_no_curves(harness: CurveHarness) -> None:
    await harness.create(RUNNING)
    written: list[str] = []
    harness.store.after_commit = written.append
    async with harness.service() as curves:
        curves.follow(RUNNING)
        await asyncio.wait_for(curves.finish(OVER), 30)
    assert written == []
    assert not (harness.root / "points").exists()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_kill_at_a_commit_neither_loses_nor_duplicates_points(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Points are stored before the read position of their file."""
    monkeypatch.setattr(reading, "_PIECE_SCALARS", 3)
    asyncio.run(killed_at_commits(CurveHarness(tmp_path), moment))


async def killed_at_commits(harness: CurveHarness, moment: str) -> None:
    await harness.create(RUNNING)
    writer = EventWriter(harness.logs, clock)
    for step in range(10):
        writer.scalar("acc", step / 8, step)
    expected = {":acc": {step: step / 8 for step in range(10)}}
    died = asyncio.Event()

    def die(what: str) -> None:
        died.set()
        raise Killed(what)

    for _ in range(4):
        setattr(harness.store, f"{moment}_commit", die)
        died.clear()
        async with harness.service() as curves:
            curves.follow(RUNNING)
            await asyncio.wait_for(died.wait(), 30)
            harness.store.before_commit, harness.store.after_commit = None, harness.commit
    async with harness.service() as curves:
        curves.follow(RUNNING)
        await harness.until(expected)
        await curves.finish(OVER)
    (series,) = await harness.store.curves.series(RUNNING.uid)
    assert (series.step, series.value, series.count) == (9, 9 / 8, 10)


async def test_unread_curves_of_a_finished_job_are_read_after_a_restart(harness: CurveHarness) -> None:
    """This works even if the record of an earlier job is unreadable."""
    await harness.create(RUNNING)
    bad = replace(RUNNING, uid=JobUid(1), name=replace(RUNNING.name, job_id="1"))
    await harness.create(bad)
    await harness.store.curves.put(bad.uid, reading.FileProgress("a"), ())
    writer = EventWriter(harness.logs, clock)
    writer.scalar("acc", 1, 1)
    async with harness.service() as curves:
        curves.follow(RUNNING)
        await harness.until({":acc": {1: 1.0}})
    writer.scalar("acc", 2, 2)
    await harness.end(OVER)
    await harness.store.run("spoil", lambda c: c.execute(DAMAGE_RECORD))
    assert await harness.store.curves.unfinished_jobs() == (bad.uid, RUNNING.uid)
    async with harness.service():
        await harness.until({":acc": {1: 1.0, 2: 2.0}})
        async with asyncio.timeout(60):
            # An unreadable record stays for a later version of the service.
            while await harness.store.curves.unfinished_jobs() != (bad.uid,):
                await harness.news.wait()
                harness.news.clear()


async def test_job_with_too_many_curve_tags_causes_a_single_notice(
    harness: CurveHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves_module, "MAX_SERIES", 2)
    await harness.create(RUNNING)
    writer = EventWriter(harness.logs, clock)
    for number in range(6):
        writer.scalar(f"tag{number % 3}", number, number)
    async with harness.service() as curves:
        curves.follow(RUNNING)
        await harness.until({":tag0": {0: 0.0, 3: 3.0}, ":tag1": {1: 1.0, 4: 4.0}})
        await curves.finish(OVER)
    (entry,) = await harness.store.reader.timeline(RUNNING.uid)
    assert entry.kind == "curves_limited" and "more than 2 tags" in entry.message


async def test_curves_of_a_deleted_job_are_not_stored(harness: CurveHarness) -> None:
    """A job that never existed is treated the same."""
    EventWriter(harness.logs, clock).scalar("acc", 1, 1)
    async with harness.service() as curves:
        curves.follow(RUNNING)
        await asyncio.wait_for(curves.finish(OVER), 30)
    assert list((harness.root / "points").iterdir()) == []


async def test_invalid_events_do_not_stop_the_reading_of_valid_events(harness: CurveHarness) -> None:
    """The events have invalid times and values, and unusual steps and tags."""
    await harness.create(RUNNING)
    writer = EventWriter(harness.logs, clock)
    for at in (math.nan, math.inf, -1.0, 1e300):
        for tag in (b"\xff", b"a\0b", b"", b"t" * 1001):
            for step, value in ((2**63 - 1, math.nan), (2**64 - 1, -math.inf)):
                number = field(1, tag) + b"\x15" + struct.pack("<f", value)
                event = b"\x10" + varint(step) + field(5, field(1, number))
                writer.file.write(frame_record(b"\x09" + struct.pack("<d", at) + event))
    writer.scalar("acc", 1, 1)
    async with harness.service() as curves:
        curves.follow(RUNNING)
        async with asyncio.timeout(60):
            while ":acc" not in (values := await harness.values()):
                await harness.news.wait()
                harness.news.clear()
        await curves.finish(OVER)
    assert values.pop(":acc") == {1: 1.0}
    assert values.keys() == {":\ufffd", ":a\0b"}
    for points in values.values():
        assert list(points) == [-1, 2**63 - 1]
