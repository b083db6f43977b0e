"""What a person and the service get to see of a reducer's threads. spec/reduction."""

import json
from pathlib import Path
from typing import Any

from trainshed_reduction.native.reducing import Numbers
from trainshed_reduction.reducer.counters import IDLE_SECONDS, Counters, Overview, total
from trainshed_reduction.reports import Reports


class Seen:
    """An overview at time 0, and where it writes."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "report.json"
        self.lines: list[str] = []
        self.overview = Overview(2, Reports(str(self.file)), self.lines.append, 0.0)

    def report(self) -> dict[str, Any]:
        return json.loads(self.file.read_text())


def test_counts_add_up_and_what_all_see_counts_once() -> None:
    """spec/reduction: metrics per reducer: bytes, chunks in flight, wait by rank."""
    counters = Counters()
    counters.connections = 4
    first = counters.snapshot(Numbers(5, 50, 2, 3, 0), [0, 0, 1.5])
    second = counters.snapshot(Numbers(6, 60, 1, 2, 0), [0.25])
    numbers = total([first, second])
    assert numbers["received_bytes"] == 11
    assert numbers["operations"] == 3
    assert numbers["connections"] == 4
    assert numbers["wait_seconds"] == [0.25, 0, 1.5]


def test_numbers_are_written_once_a_second_while_they_change(tmp_path: Path) -> None:
    """spec/reduction: and the last ones are never left out."""
    seen = Seen(tmp_path)
    for chunks, now in ((1, 10.0), (2, 10.4), (3, 10.8)):
        done = Numbers(0, 0, chunks, 0, 0)
        seen.overview.metrics(1, Counters().snapshot(done, ()), now)
    assert seen.report()["metrics"]["chunks"] == 1
    assert seen.overview.moment == 11.0
    seen.overview.keep_time(11.0)
    assert seen.report()["metrics"]["chunks"] == 3


def test_idle_reducers_are_not_silent(tmp_path: Path) -> None:
    """spec/reduction#frameworks: a clear verdict for what does not use them, once."""
    seen = Seen(tmp_path)
    assert seen.overview.moment == IDLE_SECONDS
    seen.overview.keep_time(IDLE_SECONDS)
    seen.overview.keep_time(2 * IDLE_SECONDS)
    assert seen.overview.moment is None
    (note,) = seen.report()["notes"]
    assert (note["id"], note["severity"]) == ("idle", "WARNING")
    assert seen.lines == []  # The service puts it into the log.
    assert "TensorFlow, Horovod and programs that call NCCL themselves" in note["text"]


def test_idle_reducers_without_a_service_say_so_in_their_log() -> None:
    """spec/reduction#reports: where nobody reads a report."""
    lines: list[str] = []
    Overview(2, Reports(""), lines.append, 0.0).keep_time(IDLE_SECONDS)
    (line,) = lines
    assert "No worker has connected" in line


def test_a_worker_ends_the_waiting(tmp_path: Path) -> None:
    """spec/reduction: no verdict on reducers that are used."""
    seen = Seen(tmp_path)
    counters = Counters()
    counters.connections = 1
    seen.overview.metrics(0, counters.snapshot(Numbers(0, 0, 0, 0, 0), ()), 50.0)
    seen.overview.keep_time(IDLE_SECONDS)
    seen.overview.serving(4)
    seen.overview.serving(2)
    (note,) = seen.report()["notes"]
    assert (note["id"], note["text"]) == ("serving", "serving 4 workers")


def test_what_all_threads_say_is_said_once(tmp_path: Path) -> None:
    """spec/reduction: one line for each event that matters."""
    seen = Seen(tmp_path)
    for now in (1.0, 1.2, 7.0):
        seen.overview.log("rank 3 lost its connection", now)
    assert len(seen.lines) == 2


def test_strangers_cannot_flood_the_log(tmp_path: Path) -> None:
    """spec/reduction#security: what is left out is said."""
    seen = Seen(tmp_path)
    for number in range(500):
        seen.overview.log(f"refused a worker at 10.0.0.1:{number}", 1.0)
    assert len(seen.lines) == 50
    seen.overview.log("group of 4 workers is complete", 20.0)
    assert seen.lines[50:] == [
        "450 lines like those before were left out",
        "group of 4 workers is complete",
    ]
