"""Output of a runtime build is written to the job's log (spec/runtimes#environments, spec/logs#lines)."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainshed.controller.carrier import BuildOutput
from trainshed.core.names import SERVICE, JobUid
from trainshed.engines.streams import FileStreams, ServiceStreams
from trainshed.store.logs.lines import Severity
from trainshed.store.logs.reader import LogReader
from trainshed.store.logs.service_log import ServiceLog

UID = JobUid(7)


class RecordingLog(ServiceLog):
    """A fake service log that records the written batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.failure: OSError | None = None

    async def start(self, uid: JobUid, attempt: int, notices: Sequence[str]) -> None:
        raise AssertionError("nothing is begun while environments are built")

    async def append(self, uid: JobUid, attempt: int, lines: Sequence[str]) -> None:
        if self.failure is not None:
            raise self.failure
        self.batches.append(list(lines))


async def test_all_build_lines_are_in_the_log_after_preparation(tmp_path: Path) -> None:
    """The lines appear under the task `service`, before any output of a replica."""
    published: list[JobUid] = []
    log = ServiceLog(tmp_path, published.append)
    async with BuildOutput(UID, 2, log) as hearing:
        lines = [f"line {n}" for n in range(100)]
        thread = threading.Thread(target=lambda: [hearing.add(line) for line in lines])
        thread.start()
        await asyncio.to_thread(thread.join)
    page = await LogReader(FileStreams(tmp_path), ServiceStreams(tmp_path)).page(UID)
    assert [line.text for line in page.lines] == lines
    assert {(line.replica, line.attempt) for line in page.lines} == {(SERVICE, 2)}
    assert [line.n for line in page.lines] == list(range(100))
    assert UID in published


async def test_second_start_of_the_service_log_of_a_job_does_not_repeat_the_notices(tmp_path: Path) -> None:
    """Build output follows the notices."""
    published: list[JobUid] = []
    log = ServiceLog(tmp_path, published.append)
    await log.start(UID, 1, ("notice", "warning"))
    await log.append(UID, 1, ["built"])
    await log.start(UID, 1, ("notice", "warning"))
    page = await LogReader(FileStreams(tmp_path), ServiceStreams(tmp_path)).page(UID)
    assert [(line.text, line.severity, line.is_notice) for line in page.lines] == [
        ("notice", Severity.NOTICE, True),
        ("warning", Severity.NOTICE, True),
        ("built", Severity.INFO, False),
    ]
    assert published == [UID, UID]


async def test_log_write_failure_does_not_fail_the_build() -> None:
    written = RecordingLog()
    written.failure = OSError("no space left")
    async with BuildOutput(UID, 1, written) as hearing:
        hearing.add("lost")
        await asyncio.sleep(0)
    assert hearing.duration > 0


async def test_cancelled_preparation_writes_all_received_build_lines_to_the_log() -> None:
    written = RecordingLog()
    begun = asyncio.Event()

    async def prepare() -> None:
        async with BuildOutput(UID, 1, written) as hearing:
            hearing.add("heard")
            await asyncio.sleep(0)
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(prepare())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert written.batches == [["heard"]]


async def test_preparation_does_not_wait_when_the_event_loop_closes() -> None:
    """If the preparation waited while the service stops, the build would be reported as failed."""

    async def prepare() -> None:
        async with BuildOutput(UID, 1, RecordingLog()):
            await asyncio.sleep(0)

    preparation = prepare()
    preparation.send(None)
    preparation.close()


async def test_second_preparation_of_a_job_appends_to_the_log_of_the_first(tmp_path: Path) -> None:
    """This happens when the service restarts during a build."""
    for text in ("first", "second"):
        async with BuildOutput(UID, 1, ServiceLog(tmp_path, lambda uid: None)) as hearing:
            hearing.add(text)
    page = await LogReader(FileStreams(tmp_path), ServiceStreams(tmp_path)).page(UID)
    assert [(line.n, line.text) for line in page.lines] == [(0, "first"), (1, "second")]
    assert page.lines[0].at < page.lines[1].at
