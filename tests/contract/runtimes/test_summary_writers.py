"""Summaries written by the current libraries, so that the golden files do not become outdated."""

import asyncio
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.contract.runtimes.test_families import CACHE
from tests.e2e.packages import Objects
from tests.summary_writers import WRITERS, write
from tests.unit.test_summaries_reading import StoredReader
from trainshed.core.runtime import RuntimeChoice
from trainshed.runtimes.service import LocalRuntimes
from trainshed.summaries.directories import LocalDirectory


@pytest.mark.runtimes
@pytest.mark.parametrize("name", WRITERS)
def test_tensorboard_summaries_written_by_a_runtime_are_readable(name: str, tmp_path: Path) -> None:
    writer = WRITERS[name]
    with closing(LocalRuntimes(CACHE, Objects(), now=time.monotonic_ns)) as runtimes:
        choice = runtimes.catalog.for_family(*writer.runtime, "")
        if not isinstance(choice, RuntimeChoice):
            pytest.skip(f"{name} is NOT tested: {choice.reason}")
        prepared = asyncio.run(runtimes.prepare(choice, ()))
    write(writer, str(Path(prepared.template) / "bin" / "python3"), tmp_path)
    reader = StoredReader(LocalDirectory(tmp_path.parent, (tmp_path.name,)))
    reader.read(since=0.0)
    for tag, expected in writer.scalars.items():
        assert reader.curves()[f"{writer.run}:{tag}"] == expected
