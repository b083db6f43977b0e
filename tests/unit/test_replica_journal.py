"""Tests of a slot's journal: the fence and the attempt records in one file (spec/invariants#shims)."""

import os
from pathlib import Path

import pytest

from trainshed.replica import protocol
from trainshed.replica.supervisor import journal

SHIM = journal.Shim(os.getpid(), protocol.process_start(os.getpid()))


@pytest.fixture
def slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (place := tmp_path / "1" / "workerpool0-0").mkdir(parents=True)
    monkeypatch.chdir(place)
    return place


def test_replica_journal_returns_end_record_and_notes_of_each_incarnation(slot: Path) -> None:
    """spec/reduction#reports: A later reader of the slot finds all notes."""
    for incarnation in (1, 2):
        claim = journal.claim(incarnation, SHIM)
        claim.describe([])
        claim.note({"n": 1, "text": f"of {incarnation}"})
        claim.note({"n": 2, "text": "more"})
        claim.sync()
        claim.finish(journal.lost_record(f"end {incarnation}"))
        journal.release(claim.lock)
    entries = journal.Entries(".")
    assert (entries.latest, entries.shim) == (2, (SHIM.process, SHIM.since))
    for incarnation in (1, 2):
        assert entries.record(incarnation) == journal.lost_record(f"end {incarnation}")
        texts = [note["text"] for note in entries.notes(incarnation)]
        assert texts == [f"of {incarnation}", "more"]
    assert (entries.record(3), entries.notes(3)) == (None, [])


def test_incarnation_that_has_started_before_cannot_be_started_again(slot: Path) -> None:
    journal.release(journal.claim(2, SHIM).lock)
    for incarnation in (1, 2):
        with pytest.raises(journal.StartRejected) as refused:
            journal.claim(incarnation, SHIM)
        assert refused.value.cause == protocol.REFUSED_KNOWN


def test_journal_entries_for_start_and_exit_of_an_incarnation_are_synced_to_disk(
    slot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    claim = journal.claim(1, SHIM)
    claim.sync()
    claim.finish(journal.lost_record("its end"))
    journal.release(claim.lock)
    assert len(synced) == 2
    assert journal.Entries(".").record(1)


def test_start_is_refused_while_an_incarnation_runs_or_after_the_attempt_was_stopped(slot: Path) -> None:
    claim = journal.claim(1, SHIM)
    with pytest.raises(journal.StartRejected) as refused:
        journal.claim(1, SHIM)
    assert refused.value.cause == protocol.REFUSED_HELD
    journal.release(claim.lock)
    (slot.parent / protocol.STOPPED).touch()
    with pytest.raises(journal.StartRejected) as refused:
        journal.claim(2, SHIM)
    assert refused.value.cause == protocol.REFUSED_STOPPED


def test_incomplete_journal_entry_is_ignored(slot: Path) -> None:
    lock = journal.try_lock(".")
    journal.append(lock, {"starting": 1, "shim": 5, "shim_since": 9})
    os.write(lock, b'\n{"over": 1, "record": {"lo')
    assert journal.Entries(".").record(1) is None
    journal.append(lock, {"over": 1, "record": {"lost": "x"}})
    assert journal.Entries(".").record(1) == {"lost": "x"}
    journal.release(lock)


def test_start_of_an_incarnation_waits_until_the_previous_incarnation_has_ended(
    slot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_LOCK_TIMEOUT", 60.0)
    held = journal.try_lock(".")

    def end(_: float) -> None:
        journal.release(held)

    monkeypatch.setattr(journal.time, "sleep", end)
    journal.release(journal.claim(1, SHIM).lock)


def test_expelled_incarnation_is_recorded_as_lost_and_the_next_may_start(slot: Path) -> None:
    """spec/invariants#one-incarnation: A shim that wakes up late is rejected."""
    assert journal.expel(str(slot), 2, "its node is gone")
    assert journal.Entries(str(slot)).record(2) == journal.lost_record("its node is gone")
    with pytest.raises(journal.StartRejected) as refused:
        journal.claim(2, SHIM)
    assert refused.value.cause == protocol.REFUSED_KNOWN
    claim = journal.claim(3, SHIM)
    assert journal.expel(str(slot), 2, "late")
    claim.finish(journal.lost_record("by itself"))
    journal.release(claim.lock)
    assert journal.expel(str(slot), 3, "late")
    assert journal.Entries(str(slot)).record(3) == journal.lost_record("by itself")
