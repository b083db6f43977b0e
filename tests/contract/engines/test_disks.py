"""The engine reports a disk filled by a replica's files (spec/machines#disk)."""

from pathlib import Path

import pytest

from tests.contract.engines.conftest import PYTHON, House
from tests.contract.runtimes.rootfs import image_root
from trainshed.core.launch import Limits, Software
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaNoted
from trainshed.core.names import JobUid
from trainshed.replica.observe.disk import EXCEEDED, NEARLY_FULL

_LIMIT = 10 << 20
_FILLS_DISK = "open('big', 'wb').write(bytes(11 << 20)); import time; time.sleep(99)"


def note_names(house: House, uid: JobUid) -> list[str]:
    """Return the names of a replica's notes."""
    return [e.name for e in house.seen(uid) if isinstance(e, ReplicaNoted)]


async def wait_for_full_disk_note(house: House, uid: JobUid) -> None:
    """Wait for the note while the program is running."""
    await house.until(lambda: NEARLY_FULL in note_names(house, uid))
    assert not any(isinstance(e, ReplicaExited) for e in house.seen(uid))


async def test_nearly_full_disk_causes_a_note(house: House) -> None:
    await house.restart(usage_every=0.05)
    await wait_for_full_disk_note(
        house, await house.run(PYTHON, "-c", _FILLS_DISK, limits=Limits(disk=_LIMIT))
    )


async def test_replica_over_its_enforced_disk_limit_is_ended(house: House) -> None:
    await house.restart(rules={"enforce_disk": True})
    uid = await house.run(PYTHON, "-c", _FILLS_DISK, limits=Limits(disk=_LIMIT))
    assert (await house.exit(uid)).exit.out_of_disk
    assert EXCEEDED in note_names(house, uid)


async def test_disk_usage_counts_changes_to_an_image_but_not_the_image(
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
    await wait_for_full_disk_note(house, writes)
    await house.exit(reads)
    assert NEARLY_FULL not in note_names(house, reads)
