"""A copied data directory names processes that are the house's: the copy's service leaves them alone."""

import shutil
import stat
from pathlib import Path

import pytest

from tests.contract.engines.conftest import PRIMARY, House
from trainshed.core.lifecycle.replica_events import ReplicaLost
from trainshed.replica.protocol import process_start

SLEEPS = "import time; print('up', flush=True); time.sleep(60)"


def copy(source: Path, target: Path) -> None:
    def sockets(directory: str, names: list[str]) -> list[str]:
        return [name for name in names if stat.S_ISSOCK(Path(directory, name).lstat().st_mode)]

    shutil.copytree(source, target, symlinks=True, ignore=sockets)


@pytest.mark.parametrize("started_twice", [False, True])
async def test_a_copy_of_live_slots_kills_nobody(
    house: House, tmp_path: Path, started_twice: bool
) -> None:
    uid = await house.python(SLEEPS)
    await house.line(uid, lambda text: text == "up")
    ids = house.shim(uid)
    shim, since = ids["shim"], ids["shim_since"]
    copy(house.data, tmp_path / "copy")
    twin = House(tmp_path / "copy", house.level)
    await twin.open()
    if started_twice:
        await twin.restart()
    lost = await twin.end(uid)
    assert isinstance(lost, ReplicaLost) and "another service's" in lost.cause
    # The next incarnation begins in the same slot, and clears away what its predecessor left: nothing of
    # ours.
    plan = twin.plan(uid, "true", incarnation=2, hostname=f"host-{uid}-{PRIMARY}")
    await twin.engine.launch([plan])
    await twin.end(uid, incarnation=2)
    assert process_start(shim) == since
    await twin.close()
