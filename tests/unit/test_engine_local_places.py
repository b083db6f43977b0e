"""Tests of the directories, addresses, ports and GPUs of slots."""

import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.commands import disk_of
from tests.fake_devices import fake_devices
from trainshed.core.capacity import MachineWanted
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local import gangs
from trainshed.engines.local.gangs import choose_address, move_slot, new_slots
from trainshed.engines.local.layout import Layout
from trainshed.engines.port import Slot, SlotRequest

TWO = fake_devices("Tesla T4", "Tesla T4")


def slot_request(index: int, count: int, node: str = "a") -> SlotRequest:
    t4 = MachineWanted(None, "NVIDIA_TESLA_T4")
    return SlotRequest(ReplicaId(1, index), f"h{index}", node, count, machine=t4)


def gang(*requests: SlotRequest, taken: tuple[Slot, ...] = ()) -> tuple[Slot, ...]:
    return new_slots("id", JobUid(1), requests, taken, {"a": TWO, "b": TWO[:1]}, resolves=True)


def test_replicas_share_gpus_only_if_a_node_has_too_few_gpus() -> None:
    """spec/queue#capacity: this applies to relaxed mode. On a machine without GPUs, replicas have no GPUs."""
    slots = gang(
        slot_request(0, 1),
        slot_request(1, 1),
        slot_request(2, 0),
        slot_request(3, 4),
        slot_request(4, 1, "c"),
    )
    assert [slot.devices for slot in slots] == ["0", "1", None, "0,1", ""]
    assert gang(slot_request(5, 1), taken=slots[:1])[0].devices == "1"


def test_moved_replica_keeps_its_hostname_and_gets_gpus_of_the_new_node() -> None:
    slots = gang(slot_request(0, 1), slot_request(1, 2))
    there = move_slot(slots[1], slot_request(1, 2, "b"), slots[:1], {"a": TWO, "b": TWO[:1]})
    assert there == replace(slots[1], node="b", devices="0")


def test_replica_keeps_its_published_port_while_the_port_is_available(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`again` allows a port with closed connections, which the replica itself may have left."""

    def port_of(request: SlotRequest, free: set[tuple[int, bool]] | None = None) -> int:
        def is_free(address: str, port: int, *, again: bool) -> bool:
            return free is None or (port, again) in free

        monkeypatch.setattr(gangs, "is_free", is_free)
        [slot] = new_slots("id", JobUid(1), [request], (), {}, resolves=True, shared="10.0.0.7")
        return slot.port

    first = port_of(slot_request(0, 0))
    request = replace(slot_request(0, 0), port=31999)
    assert port_of(request, {(31999, True), (first, False)}) == 31999
    assert port_of(request, {(31999, False), (first, False)}) == first


def test_replicas_have_stable_and_distinct_loopback_addresses() -> None:
    used: set[str] = set()
    for index in range(2000):
        address = choose_address("id", JobUid(1), ReplicaId(1, index), used)
        assert address not in used
        assert address.startswith("127.")
        second, last = int(address.split(".")[1]), int(address.split(".")[3])
        assert 64 <= second <= 127
        assert last not in (0, 255)
        used.add(address)
    again = choose_address("id", JobUid(1), ReplicaId(1, 0), ())
    assert again in used
    assert choose_address("id", JobUid(1), ReplicaId(1, 0), {again}) != again


JOB = JobUid(7)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path)
    made.make()
    return made


def test_job_directory_is_moved_to_the_trash_with_the_last_attempt(layout: Layout) -> None:
    for attempt in (1, 2):
        layout.create_slots(JOB, attempt, ())
        layout.write(JOB, attempt, ())
    layout.discard(JOB, 1)
    assert [key for key, _ in layout.gangs()] == [(JOB, 2)]
    layout.discard(JOB, 2)
    assert not (layout.slots / str(JOB)).exists()
    # Each directory is deleted later, as one tree.
    assert len(list(layout.trash.iterdir())) == 2


def test_start_of_a_replica_on_a_read_only_disk_fails(tmp_path: Path) -> None:
    with disk_of("size=4m", tmp_path / "small") as place:
        layout = Layout(place)
        layout.make()
        layout.require_room()
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True, timeout=60)
        with pytest.raises(OSError, match="Read-only"):
            layout.require_room()
