"""Starts that meet a full disk after the engine has looked for room."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import disk_of, fill
from tests.contract.engines.conftest import House
from tests.contract.engines.test_autopsies import failed, keeping, look, weighed
from tests.contract.engines.test_terminals import shown
from trainshed.core.lifecycle.replica_events import ReplicaLost
from trainshed.engines.local import layout
from trainshed.replica import protocol


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data directory on a file system of 8 MB, of which the engine takes the last byte for room."""
    monkeypatch.setattr(layout, "_MIN_FREE_BYTES", 0)
    with disk_of("size=8m,mode=755", tmp_path / "disk") as disk:
        yield disk / "data"


async def test_a_start_that_finds_the_disk_full_is_the_services_fault(house: House) -> None:
    """And costs a retry, of which the program runs."""
    uid = house.job()
    await house.allocate(uid)
    # What the launch itself writes fits in.
    (house.slot(uid).parent / protocol.HOSTS).write_bytes(b"x" * os.sysconf("SC_PAGE_SIZE"))
    filler = fill(house.data.parent)
    await house.engine.launch([house.plan(uid, "echo", "ran")])
    end = await house.end(uid)
    filler.unlink()
    assert isinstance(end, ReplicaLost) and end.by_service
    assert "the disk takes nothing" in end.cause
    await house.engine.launch([house.plan(uid, "echo", "ran", incarnation=2)])
    assert (await house.exit(uid, incarnation=2)).exit.exit_code == 0
    assert house.texts(uid) == ["ran"]


async def test_a_failed_replica_can_be_looked_at_while_the_disk_is_full(house: House) -> None:
    await keeping(house)
    uid = await failed(house, "echo loss >result; exit 3")
    await weighed(house, uid)
    filler = fill(house.data.parent)
    assert "loss" in await shown(await look(house, uid), b"cat result\n")
    filler.unlink()
