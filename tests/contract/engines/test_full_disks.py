"""Starts that meet a full disk after the engine has looked for room: they have not begun, and are made when
there is room."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.commands import disk_of
from tests.contract.engines.conftest import House
from tests.contract.engines.test_autopsies import failed, keeping, look, weighed
from tests.contract.engines.test_terminals import shown
from trainshed.engines.local import layout, reconciler
from trainshed.replica import protocol


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data directory on a file system of 8 MB, of which the engine takes the last byte for room."""
    monkeypatch.setattr(layout, "_LEAST_BYTES", 0)
    monkeypatch.setattr(reconciler, "_PAUSE", 0.1)
    with disk_of("size=8m,mode=755", tmp_path / "disk") as disk:
        yield disk / "data"


@contextlib.contextmanager
def full(disk: Path) -> Generator[None]:
    """Without a byte left, until the end."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 1000):
            pass
    yield
    filler.unlink()


class Ear(logging.Handler):
    """Hears when the engine has found that a start has not begun."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = asyncio.Event()
        logging.getLogger(reconciler.__name__).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if "not started: the disk is full or read-only" in record.getMessage():
            logging.getLogger(reconciler.__name__).removeHandler(self)
            self.heard.set()


async def test_a_start_that_finds_the_disk_full_is_made_when_there_is_room(house: House) -> None:
    await house.restart(lease=3)
    uid, ear = house.job(), Ear()
    await house.allocate(uid)
    plan = house.plan(uid, "echo", "ran")
    # What the launch itself writes fits in.
    hosts = house.data / "slots" / str(uid) / "1" / protocol.HOSTS
    hosts.write_bytes(b"x" * os.sysconf("SC_PAGE_SIZE"))
    with full(house.data.parent):
        await house.engine.launch([plan])
        await asyncio.wait_for(ear.heard.wait(), 60)
        await asyncio.sleep(4)  # Longer than a lease: it is not silent, it waits.
        assert not house.ends(uid)
    assert (await house.exit(uid)).exit.exit_code == 0
    assert house.texts(uid) == ["ran"]


async def test_a_failed_replica_can_be_looked_at_while_the_disk_is_full(house: House) -> None:
    await keeping(house)
    uid = await failed(house, "echo loss >result; exit 3")
    await weighed(house, uid)
    with full(house.data.parent):
        assert "loss" in await shown(await look(house, uid), b"cat result\n")
