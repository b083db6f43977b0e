"""What a person and the service get to see of a reducer's threads. spec/reduction."""

import json
from pathlib import Path
from typing import Any

from trainshed_reduction.process import Reports
from trainshed_reduction.reducer.__main__ import IDLE_SECONDS, Overview


class Seen:
    """An overview at time 0, and where it writes."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "report.json"
        self.lines: list[str] = []
        self.overview = Overview(Reports(str(self.file)), self.lines.append, 0.0)

    def report(self) -> dict[str, Any]:
        return json.loads(self.file.read_text())


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
    Overview(Reports(None), lines.append, 0.0).keep_time(IDLE_SECONDS)
    (line,) = lines
    assert "No worker has connected" in line


def test_a_worker_ends_the_waiting(tmp_path: Path) -> None:
    """spec/reduction: no verdict on reducers that are used."""
    seen = Seen(tmp_path)
    seen.overview.hear("connected", 3, 50.0)
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
