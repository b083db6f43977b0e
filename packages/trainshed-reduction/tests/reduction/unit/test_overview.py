"""Tests of a reducer's log and of its reports to the service (spec/reduction)."""

import json
from pathlib import Path
from typing import Any

from trainshed_reduction.process import Reports
from trainshed_reduction.reducer.__main__ import IDLE_SECONDS, Overview


class RecordedOverview:
    """An overview that starts at time 0, with its recorded log and reports."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "report.json"
        self.lines: list[str] = []
        self.overview = Overview(Reports(str(self.file)), self.lines.append, 0.0)

    def report(self) -> dict[str, Any]:
        return json.loads(self.file.read_text())


def test_idle_reducer_is_reported_once(tmp_path: Path) -> None:
    """spec/reduction#frameworks: The report explains which programs use reducers."""
    recorded = RecordedOverview(tmp_path)
    assert recorded.overview.idle_at == IDLE_SECONDS
    recorded.overview.check_idle(IDLE_SECONDS)
    recorded.overview.check_idle(2 * IDLE_SECONDS)
    assert recorded.overview.idle_at is None
    (note,) = recorded.report()["notes"]
    assert (note["id"], note["severity"]) == ("idle", "WARNING")
    assert recorded.lines == []  # The service adds the note of the report to the job's log.
    assert "TensorFlow, Horovod and programs that call NCCL themselves" in note["text"]


def test_idle_reducer_without_a_report_file_is_logged() -> None:
    """spec/reduction#reports: The reducer has no report file."""
    lines: list[str] = []
    Overview(Reports(None), lines.append, 0.0).check_idle(IDLE_SECONDS)
    (line,) = lines
    assert "No worker has connected" in line


def test_connected_worker_prevents_the_idle_report(tmp_path: Path) -> None:
    """spec/reduction: Used reducers are not reported as idle."""
    recorded = RecordedOverview(tmp_path)
    recorded.overview.handle("connected", 3, 50.0)
    recorded.overview.check_idle(IDLE_SECONDS)
    recorded.overview.handle("serving", 4, 60.0)
    recorded.overview.handle("serving", 2, 60.0)
    (note,) = recorded.report()["notes"]
    assert (note["id"], note["text"]) == ("serving", "serving 4 workers")


def test_equal_lines_of_several_threads_are_logged_once(tmp_path: Path) -> None:
    """spec/reduction: Each event has one line."""
    recorded = RecordedOverview(tmp_path)
    for now in (1.0, 1.2, 7.0):
        recorded.overview.log("rank 3 lost its connection", now)
    assert len(recorded.lines) == 2


def test_rejected_connections_cannot_flood_the_log(tmp_path: Path) -> None:
    """spec/reduction#security: The log contains the number of omitted lines."""
    recorded = RecordedOverview(tmp_path)
    for number in range(500):
        recorded.overview.log(f"refused a worker at 10.0.0.1:{number}", 1.0)
    assert len(recorded.lines) == 50
    recorded.overview.log("group of 4 workers is complete", 20.0)
    assert recorded.lines[50:] == ["450 similar lines were omitted", "group of 4 workers is complete"]
