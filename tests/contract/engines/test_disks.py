"""The engine reports a disk filled by a replica's files (spec/machines#disk)."""

from pathlib import Path

import pytest

from tests.contract.engines.conftest import PYTHON, EngineHarness
from tests.contract.runtimes.rootfs import image_root
from trainshed.core.launch import Limits, Software
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaNoted
from trainshed.core.names import JobUid
from trainshed.replica.observe.disk import EXCEEDED, NEARLY_FULL

_LIMIT = 10 << 20
_FILLS_DISK = "open('big', 'wb').write(bytes(11 << 20)); import time; time.sleep(99)"


def note_names(harness: EngineHarness, uid: JobUid) -> list[str]:
    """Return the names of a replica's notes."""
    return [e.name for e in harness.events_of(uid) if isinstance(e, ReplicaNoted)]


async def wait_for_full_disk_note(harness: EngineHarness, uid: JobUid) -> None:
    """Wait for the note while the program is running."""
    await harness.until(lambda: NEARLY_FULL in note_names(harness, uid))
    assert not any(isinstance(e, ReplicaExited) for e in harness.events_of(uid))


async def test_nearly_full_disk_causes_a_note(harness: EngineHarness) -> None:
    await harness.restart(usage_every=0.05)
    await wait_for_full_disk_note(
        harness, await harness.run(PYTHON, "-c", _FILLS_DISK, limits=Limits(disk=_LIMIT))
    )


async def test_replica_over_its_enforced_disk_limit_is_ended(harness: EngineHarness) -> None:
    await harness.restart(rules={"enforce_disk": True})
    uid = await harness.run(PYTHON, "-c", _FILLS_DISK, limits=Limits(disk=_LIMIT))
    assert (await harness.exit(uid)).exit.out_of_disk
    assert EXCEEDED in note_names(harness, uid)


async def test_disk_usage_counts_changes_to_an_image_but_not_the_image(
    harness: EngineHarness, tmp_path: Path
) -> None:
    if not harness.engine.capabilities().images:
        pytest.skip("no images can be shown at this level")
    image = image_root(tmp_path / "root")
    (tmp_path / "root" / "large").write_bytes(bytes(11 << 20))
    await harness.restart(usage_every=0.05)
    reads, writes = [
        await harness.run("sh", "-c", program, software=Software(image=image), limits=Limits(disk=_LIMIT))
        for program in ("cat /large > /dev/null", "cat /large > /big; sleep 99")
    ]
    await wait_for_full_disk_note(harness, writes)
    await harness.exit(reads)
    assert NEARLY_FULL not in note_names(harness, reads)
