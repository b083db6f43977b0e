"""Splitting a dataset in a process of its own against a real bucket process: rights, cancel, and an
outage of the buckets (docs/adr/0059)."""

import asyncio
import gzip
import os
import signal
from collections.abc import Generator

import pytest

from tests.contract.buckets_service import Service
from tests.e2e.processes import children, command_line
from tests.waiting import until
from trainshed.core.datasets.plans import DirectoryCopy, SplitMethod, SplitPlan, SplitRule
from trainshed.core.datasets.records import DataFiles, DatasetKind, DatasetName
from trainshed.datasets.port import Account, DataRefused
from trainshed.datasets.service import SplitProcesses

OWN = Account("own", "sa@own", "7")
ROWS = 50_000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Generator[Service]:
    service = Service(tmp_path_factory.mktemp("buckets"))
    for project in ("own", "other"):
        service.call("POST", f"/storage/v1/b?project={project}", {"name": f"of-{project}"})
    small = b'id,text\n1,"a\nb"\n2,c\n'
    service.put("of-own", "in/small.csv", small)
    service.put("of-own", "in/packed.csv&contentEncoding=gzip", gzip.compress(small))
    service.put("of-own", "in/bad.csv", small + b"3\n")
    service.put("of-other", "in/small.csv", small)
    # The rows are long, so a few rows fill several blocks.
    rows = b"".join(b"%d,%s\n" % (row, b"a row of a table" * 16) for row in range(ROWS))
    service.put("of-own", "in/large.csv", b"id,text\n" + rows)
    yield service
    service.stop()


def plan(source: str, out: str, rule: SplitRule | None = None) -> SplitPlan:
    rule = rule or SplitRule(fractions=(1.0, 0.0, 0.0))
    name, data = DatasetName("own", "us-central1", "7"), (DataFiles((source,)),)
    return SplitPlan(name, DatasetKind.TABULAR, data, rule, out)


def files(service: Service, directory: str) -> dict[str, bytes]:
    """Return the files in a directory of the bucket by name."""
    place = service.root / directory.removeprefix("gs://")
    return {path.name: path.read_bytes() for path in place.iterdir()} if place.is_dir() else {}


def steps() -> list[int]:
    """Return the split processes that this process has started."""
    return [pid for pid in children(os.getpid()) if "trainshed.datasets" in command_line(pid)]


@pytest.mark.parametrize("name", ["*mall", "packed"])
async def test_dataset_shards_are_written_with_the_permissions_of_the_job(
    service: Service, name: str
) -> None:
    processes, messages = SplitProcesses(service.replicas), list[str]()
    small_plan = plan(f"gs://of-own/in/{name}.csv", f"gs://of-own/out/{name.strip('*')}")
    written = await processes.write(small_plan, OWN, messages.append)
    assert (written.training.rows, written.test.rows) == (2, 0)
    shards = files(service, small_plan.directory)
    assert shards["training-00000.csv"] == b'id,text\n1,"a\nb"\n2,c\n'
    assert shards["test-00000.csv"] == b"id,text\n"
    assert await processes.write(small_plan, OWN, messages.append) == written


@pytest.mark.parametrize(
    ("source", "out", "words"),
    [
        ("gs://of-other/in/small.csv", "gs://of-own/out/x", "does not have storage.objects"),
        ("gs://of-own/in/small.csv", "gs://of-other/out/x", "does not have storage.objects"),
        ("gs://of-own/in/none.csv", "gs://of-own/out/x", "no longer exists"),
        ("gs://of-own/in/bad.csv", "gs://of-own/out/x", "in/bad.csv, row 4 (line 5): the row has 1"),
    ],
)
async def test_split_of_forbidden_or_invalid_files_is_rejected(
    service: Service, source: str, out: str, words: str
) -> None:
    with pytest.raises(DataRefused) as refused:
        await SplitProcesses(service.replicas).write(plan(source, out), OWN, print)
    assert words in str(refused.value)
    assert "manifest.json" not in files(service, out)


async def test_cancelled_split_leaves_no_process(service: Service) -> None:
    large_plan = plan("gs://of-own/in/large.csv", "gs://of-own/out/cancelled")
    assert service.process is not None
    # The step waits for the stopped process, even if the test checks late.
    service.process.send_signal(signal.SIGSTOP)
    writing = asyncio.create_task(SplitProcesses(service.replicas).write(large_plan, OWN, print))
    await until(steps)
    (child,) = steps()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    service.process.send_signal(signal.SIGCONT)
    # A step that has just started is killed without a graceful stop.
    await until(lambda: child not in steps())
    assert "manifest.json" not in files(service, large_plan.directory)


async def test_directory_is_copied_with_the_permissions_of_the_project(service: Service) -> None:
    for name in ("model.pt", "variables/0%20a%25b", "old/x"):
        service.put("of-own", f"m/{name}", name.encode())
    service.put("of-own", "m-old/model.pt", b"another model")
    processes = SplitProcesses(service.replicas)
    await processes.copy(DirectoryCopy("gs://of-own/m/", "gs://of-own/copy/"), OWN)
    place = service.root / "of-own"
    copied = {str(f.relative_to(place / "copy")) for f in (place / "copy").rglob("*") if f.is_file()}
    kept = {str(f.relative_to(place / "m")) for f in (place / "m").rglob("*") if f.is_file()}
    assert copied == kept
    assert len(kept) == 3
    for source, target, words in (
        ("gs://of-other/in/", "gs://of-own/x/", "does not have storage.objects"),
        ("gs://of-own/m/", "gs://of-other/x/", "does not have storage.objects"),
        ("gs://of-own/none/", "gs://of-own/x/", "No objects exist at gs://of-own/none/"),
    ):
        with pytest.raises(DataRefused, match=words):
            await processes.copy(DirectoryCopy(source, target), OWN)


async def test_split_survives_a_killed_bucket_process(service: Service) -> None:
    rule = SplitRule(SplitMethod.FRACTION)
    large_plan = plan("gs://of-own/in/large.csv", "gs://of-own/out/killed", rule)
    writing = asyncio.create_task(SplitProcesses(service.replicas).write(large_plan, OWN, print))
    await until(steps)
    service.stop(signal.SIGKILL)
    service.start()
    written = await writing
    counts = (written.training, written.validation, written.test)
    assert sum(count.rows for count in counts) == ROWS
    shards = files(service, large_plan.directory)
    again = plan("gs://of-own/in/large.csv", "gs://of-own/out/again", rule)
    await SplitProcesses(service.replicas).write(again, OWN, print)
    same = files(service, again.directory)
    del shards["manifest.json"], same["manifest.json"]
    assert shards == same
