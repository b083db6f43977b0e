"""Launches on a disk that fills up after the engine has checked its free space."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import disk_of, fill
from tests.contract.engines.conftest import EngineHarness
from tests.contract.engines.test_autopsies import failed_job, keep_autopsies, measured_autopsy, open_shell
from tests.contract.engines.test_terminals import output_of
from trainshed.core.lifecycle.replica_events import ReplicaLost
from trainshed.engines.local import layout
from trainshed.replica import protocol


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data directory on an 8 MB file system. The engine's minimum of free space is set to 0."""
    monkeypatch.setattr(layout, "_MIN_FREE_BYTES", 0)
    with disk_of("size=8m,mode=755", tmp_path / "disk") as disk:
        yield disk / "data"


async def test_failed_program_start_on_a_full_disk_is_reported_as_a_service_failure(
    harness: EngineHarness,
) -> None:
    """The attempt counts as a retry, which runs the program."""
    uid = harness.job()
    await harness.allocate(uid)
    # The launch itself still finds space for its own files.
    (harness.slot(uid).parent / protocol.HOSTS).write_bytes(b"x" * os.sysconf("SC_PAGE_SIZE"))
    filler = fill(harness.data.parent)
    await harness.engine.launch([harness.plan(uid, "echo", "ran")])
    end = await harness.end(uid)
    filler.unlink()
    assert isinstance(end, ReplicaLost) and end.by_service
    assert "the disk accepts no data" in end.cause
    await harness.engine.launch([harness.plan(uid, "echo", "ran", incarnation=2)])
    assert (await harness.exit(uid, incarnation=2)).exit.exit_code == 0
    assert harness.texts(uid) == ["ran"]


async def test_autopsy_shell_can_be_opened_on_a_full_disk(harness: EngineHarness) -> None:
    await keep_autopsies(harness)
    uid = await failed_job(harness, "echo loss >result; exit 3")
    await measured_autopsy(harness, uid)
    filler = fill(harness.data.parent)
    assert "loss" in await output_of(await open_shell(harness, uid), b"cat result\n")
    filler.unlink()
