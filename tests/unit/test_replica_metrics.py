"""Tests of reading a trial's metrics file (spec/tuning#measurements, facts/tuning#metrics,
spec/clients#hypertune)."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainshed.replica.observe import file_watcher, metrics
from trainshed.replica.observe.growing_files import DiskRetries
from trainshed.replica.protocol import FILES
from trainshed.replica.supervisor import program
from trainshed.replica.system.loop import Loop

TEST_TIMEOUT = 60.0


def line(value: object, step: object = None, at: float | None = None, tag: str = "loss") -> str:
    """Return a line in the format of cloudml-hypertune."""
    report: dict[str, object] = {tag: value, "checkpoint_path": "", "trial": "3"}
    if step is not None:
        report["global_step"] = step
    if at is not None:
        report["timestamp"] = at
    return json.dumps(report, sort_keys=True)


class Slot:
    """A slot's directory, in which the test writes the program's file, and a shim's metrics reader."""

    def __init__(self, root: Path) -> None:
        self.path = root / FILES / program.HYPERTUNE / metrics.PROGRAM_FILE
        self.path.parent.mkdir(parents=True)
        self.logs = root / "logs"
        self.logs.mkdir()
        self.warnings: list[str] = []
        self.loop = Loop()
        self.metrics = self.incarnation(1)

    def incarnation(self, number: int) -> metrics.Metrics:
        """Start the reader of a new shim; the previous reader stops."""
        self.loop = Loop()
        self.metrics = metrics.Metrics(
            str(self.logs),
            number,
            self.loop,
            log=self.warnings.append,
            notify=lambda: None,
            retries=DiskRetries(self.loop, lambda _: None),
        )
        return self.metrics

    def write(self, *lines: str) -> None:
        self.path.write_text("".join(text + "\n" for text in lines))

    def turn(self, pause: float = 0) -> None:
        """Run the event loop once, so that the reader handles all changes."""
        self.loop.turn(pause)

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TEST_TIMEOUT
        while not true():
            assert time.monotonic() < deadline
            self.loop.turn(1000)

    def stored_entries(self) -> list[dict[str, Any]]:
        entries = [json.loads(e) for e in (self.logs / metrics.FILE).read_text().splitlines()]
        return [entry for entry in entries if "values" in entry]

    def values(self, tag: str = "loss") -> list[tuple[int, float]]:
        return [(e["step"], e["values"][tag]) for e in self.stored_entries() if tag in e["values"]]


@pytest.fixture
def slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slot:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(file_watcher, "_POLL_INTERVAL", 0.0)
    # A slow poll, as on a busy machine, would delay the next one.
    monkeypatch.setattr(file_watcher, "_IDLE_FACTOR", 0)
    return Slot(tmp_path)


@pytest.fixture
def running(slot: Slot) -> Slot:
    slot.metrics.start(5)
    return slot


def test_stored_measurements_are_kept_when_the_metric_file_becomes_shorter(running: Slot) -> None:
    """spec/clients#hypertune: The program's file contains only the newest 100 lines."""
    for newest in range(0, 300, 50):
        running.write(*(line("1", str(i), i + 1.0) for i in range(max(0, newest - 99), newest + 1)))
        running.turn()
    running.path.unlink()
    running.turn()
    assert [step for step, _ in running.values()] == list(range(251))


def test_metric_value_is_stored_again_only_if_the_value_of_the_step_changes(running: Slot) -> None:
    """spec/clients#hypertune: The key is (tag, global_step). Without a global_step, the step is 0. An
    unchanged value is not stored."""
    reported: list[str] = []
    for number, value in enumerate(["0.5", "0.6", "0.6", "0.5"]):
        reported.append(line(value, None, 100.0 + number))
        running.write(*reported)
        running.turn()
    running.write(*reported)
    running.turn()
    assert running.values() == [(0, 0.5), (0, 0.6), (0, 0.5)]
    assert [e["at"] for e in running.stored_entries()] == [100 * 10**9, 101 * 10**9, 103 * 10**9]


@pytest.mark.parametrize(
    ("written", "value", "step"),
    [
        (line(0.5, 3), 0.5, 3),
        (line("5e-1", "3"), 0.5, 3),
        (line(1, 3.0), 1.0, 3),
        (line("-0", "3.0"), 0.0, 3),
        (line("7", ""), 7.0, 0),
    ],
)
def test_metric_value_given_as_a_numeric_string_is_accepted(
    running: Slot, written: str, value: float, step: int
) -> None:
    running.write(written)
    running.turn()
    assert running.values() == [(step, value)]
    assert running.stored_entries()[0]["at"] > 1_600_000_000 * 10**9


@pytest.mark.parametrize("value", ["nan", "inf", "-Infinity", "oops", True, None, [1], "1e999"])
def test_non_finite_metric_values_are_skipped_with_a_single_notice(running: Slot, value: object) -> None:
    for step in range(3):
        running.write(line(value, step, 9.0), line("0.5", step, 9.0, "acc"))
        running.turn()
    running.metrics.seal()
    assert running.values() == []
    assert len(running.values("acc")) == 3
    assert len(running.warnings) == 1
    assert '"loss"' in running.warnings[0]
    assert json.dumps(value) in running.warnings[0]


@pytest.mark.parametrize(
    "garbage", ["hello", "[1]", '"x"', "[" * 5000, '{"loss": "1", "global_step": "x"}', "1" * 70000, "\x00"]
)
def test_invalid_metric_lines_are_skipped_with_a_single_notice(running: Slot, garbage: str) -> None:
    for step in range(3):
        running.write(garbage + " " * step, line("0.5", step, 9.0))
        running.turn()
    assert [step for step, _ in running.values()] == [0, 1, 2]
    assert len(running.warnings) == 1
    assert len(running.warnings[0]) < 1000


def test_incomplete_last_metric_line_is_read_when_complete(running: Slot) -> None:
    """spec/clients#hypertune: The file may end in the middle of a line."""
    text = line("0.5", 1, 9.0) + "\n" + line("0.4", 2, 10.0)
    running.path.write_text(text[:-5])
    running.turn()
    assert running.values() == [(1, 0.5)]
    running.path.write_text(text)
    running.turn()
    assert running.values() == [(1, 0.5), (2, 0.4)]
    assert running.warnings == []


def test_restarted_replica_stores_the_metric_lines_that_its_killed_shim_did_not_store(running: Slot) -> None:
    """The previous shim was killed before it had read the last line, and during a write."""
    running.write(line("0.5", 1, 9.0), line("0.6", 1, 10.0), line("0.4", 2, 11.0))
    running.turn()
    running.write(line("0.5", 1, 9.0), line("0.6", 1, 10.0), line("0.4", 2, 11.0), line("0.3", 3, 12.0))
    with (running.logs / metrics.FILE).open("a") as file:
        file.write('{"at": 1, "st')
    running.incarnation(2).start(6)
    running.turn()
    running.write(line("0.2", 4, 13.0))
    running.turn()
    assert running.values() == [(1, 0.5), (1, 0.6), (2, 0.4), (3, 0.3), (4, 0.2)]
    assert [e["incarnation"] for e in running.stored_entries()] == [1, 1, 1, 1, 2]


@pytest.mark.parametrize("kind", ["link", "hard link", "directory link", "pipe", "directory"])
def test_links_and_special_files_are_not_read_as_metrics(slot: Slot, tmp_path: Path, kind: str) -> None:
    """spec/program#isolation: The program must not read other users' files with the service's rights
    (confused deputy)."""
    secret = tmp_path / "secret" / metrics.PROGRAM_FILE
    secret.parent.mkdir()
    secret.write_text(line("0.5", 1, 9.0) + "\npassword\n")
    if kind == "link":
        slot.path.symlink_to(secret)
    elif kind == "hard link":
        slot.path.hardlink_to(secret)
    elif kind == "directory link":
        slot.path.parent.rmdir()
        slot.path.parent.symlink_to(secret.parent)
    elif kind == "pipe":
        os.mkfifo(slot.path)
    else:
        slot.path.mkdir()
    slot.metrics.start(5)
    slot.turn()
    slot.metrics.seal()
    assert slot.values() == []
    assert len(slot.warnings) == 1
    assert "cannot be read" in slot.warnings[0]
    assert "password" not in slot.warnings[0]


def test_measurements_are_synced_to_disk_when_the_program_ends(
    running: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/invariants#last-lines-first."""
    synced: list[int] = []

    def sync(handle: int) -> None:
        synced.append(len(running.stored_entries()))

    monkeypatch.setattr(os, "fdatasync", sync)
    running.write(line("0.5", 1, 9.0))
    running.metrics.seal()
    assert running.metrics.save()
    assert synced == [1]


def test_measurements_beyond_the_storage_limit_are_dropped_with_a_notice(
    running: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/tuning#measurements: Stored measurements remain. The log shows the notice once."""
    monkeypatch.setattr(metrics, "_MAX_BYTES", 2_000)
    for step in range(100):
        running.write(line("0.5", step, 9.0 + step))
        running.turn()
    taken = running.values()
    assert 10 < len(taken) < 50
    assert taken == [(step, 0.5) for step in range(len(taken))]
    assert (running.logs / metrics.FILE).stat().st_size < 2_200
    assert len(running.warnings) == 1
    assert "More are ignored" in running.warnings[0]
    running.incarnation(2).start(6)
    running.write(line("0.1", 200, 500.0))
    running.turn()
    assert running.values() == taken
