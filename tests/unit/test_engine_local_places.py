"""Where slots lie, and which addresses, ports and GPUs they get."""

import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.commands import disk_of
from tests.fake_devices import fake_devices
from trainshed.core.capacity import MachineWanted
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local import gangs
from trainshed.engines.local.gangs import choose_address, moved, new_slots
from trainshed.engines.local.layout import Layout
from trainshed.engines.port import Slot, SlotRequest

TWO = fake_devices("Tesla T4", "Tesla T4")


def asked(index: int, count: int, node: str = "a") -> SlotRequest:
    t4 = MachineWanted(None, "NVIDIA_TESLA_T4")
    return SlotRequest(ReplicaId(1, index), f"h{index}", node, count, machine=t4)


def gang(*requests: SlotRequest, taken: tuple[Slot, ...] = ()) -> tuple[Slot, ...]:
    return new_slots("id", JobUid(1), requests, taken, {"a": TWO, "b": TWO[:1]}, resolves=True)


def test_each_replica_has_gpus_of_its_own_as_long_as_there_are_any() -> None:
    """spec/queue#capacity, relaxed mode: with fewer than asked for they are shared; with none there are
    none."""
    slots = gang(asked(0, 1), asked(1, 1), asked(2, 0), asked(3, 4), asked(4, 1, "c"))
    assert [slot.devices for slot in slots] == ["0", "1", None, "0,1", ""]
    assert gang(asked(5, 1), taken=slots[:1])[0].devices == "1"


def test_a_slot_that_moves_keeps_its_names_and_gets_the_gpus_of_its_new_node() -> None:
    slots = gang(asked(0, 1), asked(1, 2))
    there = moved(slots[1], asked(1, 2, "b"), slots[:1], {"a": TWO, "b": TWO[:1]})
    assert there == replace(slots[1], node="b", devices="0")


def test_a_port_that_peers_were_told_is_kept_as_long_as_it_can_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever else is free: `again` says that its own connections may still be dying away there."""

    def port_of(request: SlotRequest, free: set[tuple[int, bool]] | None = None) -> int:
        def is_free(address: str, port: int, *, again: bool) -> bool:
            return free is None or (port, again) in free

        monkeypatch.setattr(gangs, "is_free", is_free)
        [slot] = new_slots("id", JobUid(1), [request], (), {}, resolves=True, shared="10.0.0.7")
        return slot.port

    first = port_of(asked(0, 0))
    request = replace(asked(0, 0), port=31999)
    assert port_of(request, {(31999, True), (first, False)}) == 31999
    assert port_of(request, {(31999, False), (first, False)}) == first


def test_addresses_are_stable_distinct_and_never_look_like_networks() -> None:
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


def test_a_job_goes_out_of_sight_with_its_last_attempt(layout: Layout) -> None:
    for attempt in (1, 2):
        layout.make_slots(JOB, attempt, ())
        layout.write(JOB, attempt, ())
    layout.discard(JOB, 1)
    assert [key for key, _ in layout.gangs()] == [(JOB, 2)]
    layout.discard(JOB, 2)
    assert not (layout.slots / str(JOB)).exists()
    # All of it is to be deleted later: each in one piece.
    assert len(list(layout.trash.iterdir())) == 2


def test_nothing_is_started_on_a_disk_that_is_read_only(tmp_path: Path) -> None:
    with disk_of("size=4m", tmp_path / "small") as place:
        layout = Layout(place)
        layout.make()
        layout.require_room()
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True, timeout=60)
        with pytest.raises(OSError, match="Read-only"):
            layout.require_room()
