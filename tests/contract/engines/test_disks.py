"""A disk that is full of a replica's files is noted by the engine (spec/machines#disk)."""

from pathlib import Path

import pytest

from tests.contract.engines.conftest import PYTHON, House
from tests.contract.runtimes.rootfs import image_root
from trainshed.core.launch import Limits, Software
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaNoted
from trainshed.core.names import JobUid
from trainshed.replica.observe.disk import EXCEEDED, NEARLY_FULL

_LIMIT = 10 << 20
_FILLS = "open('big', 'wb').write(bytes(11 << 20)); import time; time.sleep(99)"


def noted(house: House, uid: JobUid) -> list[str]:
    """Names of what was noted of a replica."""
    return [e.name for e in house.seen(uid) if isinstance(e, ReplicaNoted)]


async def fills_up(house: House, uid: JobUid) -> None:
    """It does so while its program runs."""
    await house.until(lambda: NEARLY_FULL in noted(house, uid))
    assert not any(isinstance(e, ReplicaExited) for e in house.seen(uid))


async def test_a_full_disk_is_noted(house: House) -> None:
    await house.restart(usage_every=0.05)
    await fills_up(house, await house.run(PYTHON, "-c", _FILLS, limits=Limits(disk=_LIMIT)))


async def test_a_replica_can_be_held_to_its_disk(house: House) -> None:
    await house.restart(rules={"enforce_disk": True})
    uid = await house.run(PYTHON, "-c", _FILLS, limits=Limits(disk=_LIMIT))
    assert (await house.exit(uid)).exit.out_of_disk
    assert EXCEEDED in noted(house, uid)


async def test_what_is_changed_in_an_image_counts_and_the_image_does_not(
    house: House, tmp_path: Path
) -> None:
    if not house.engine.capabilities().images:
        pytest.skip("no images can be shown at this level")
    image = image_root(tmp_path / "root")
    (tmp_path / "root" / "large").write_bytes(bytes(11 << 20))
    await house.restart(usage_every=0.05)
    reads, writes = [
        await house.run(
            "sh", "-c", program, software=Software(image=image), limits=Limits(disk=_LIMIT)
        )
        for program in ("cat /large > /dev/null", "cat /large > /big; sleep 99")
    ]
    await fills_up(house, writes)
    await house.exit(reads)
    assert NEARLY_FULL not in noted(house, reads)
