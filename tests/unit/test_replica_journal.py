"""A slot's journal: the fence and the attempt records in one file (DESIGN §4, Slots and shims)."""

import os
from pathlib import Path

import pytest

from trainshed.replica import fence, journal, protocol


@pytest.fixture
def slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "1" / "workerpool0-0"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    return place


def test_a_slot_that_was_never_used(slot: Path) -> None:
    entries = journal.Entries(str(slot))
    assert (entries.latest, entries.left, entries.record(1)) == (0, None, None)


def test_incarnations_follow_one_another_and_their_records_stay(slot: Path) -> None:
    for incarnation in (1, 2):
        claim = fence.claim(incarnation)
        claim.describe(os.getpid(), [])
        claim.sync()
        claim.finish(protocol.lost(f"end {incarnation}"))
        claim.release()
        # Whoever was described is taken for a left-over; this test is none.
        journal_file = slot / protocol.JOURNAL
        journal_file.write_text(
            journal_file.read_text().replace(f'"guardian": {os.getpid()}', '"guardian": 0')
        )
    entries = journal.Entries(".")
    assert entries.latest == 2
    assert [entries.record(n) for n in (1, 2, 3)] == [
        protocol.lost("end 1"),
        protocol.lost("end 2"),
        None,
    ]


def test_what_was_started_once_is_refused_for_ever(slot: Path) -> None:
    fence.claim(2).release()
    for incarnation in (1, 2):
        with pytest.raises(fence.Refused) as refused:
            fence.claim(incarnation)
        assert refused.value.cause == protocol.REFUSED_KNOWN


def test_a_held_slot_and_a_stopped_attempt_are_refused(slot: Path) -> None:
    claim = fence.claim(1)
    with pytest.raises(fence.Refused) as refused:
        fence.claim(1)
    assert refused.value.cause == protocol.REFUSED_HELD
    claim.release()
    (slot.parent / protocol.STOPPED).touch()
    with pytest.raises(fence.Refused) as refused:
        fence.claim(2)
    assert refused.value.cause == protocol.REFUSED_STOPPED


def test_an_unfinished_entry_counts_for_nothing_and_spoils_nothing(slot: Path) -> None:
    lock = journal.try_lock(".")
    journal.append(lock, {"starting": 1, "shim": 5})
    os.write(lock, b'\n{"over": 1, "record": {"lo')
    assert journal.Entries(".").record(1) is None
    journal.append(lock, {"over": 1, "record": {"lost": "x"}})
    assert journal.Entries(".").record(1) == {"lost": "x"}
    journal.release(lock)
