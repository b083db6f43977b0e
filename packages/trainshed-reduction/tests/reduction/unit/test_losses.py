"""What a worker reports of reducers that fall silent."""

import json
from pathlib import Path

from trainshed_reduction.client.lanes import Lane
from trainshed_reduction.client.losses import tell_silence
from trainshed_reduction.process import Reports


def test_a_silent_reducer_is_reported_once(tmp_path: Path) -> None:
    """spec/reduction#losses: the timeline says why a job stands still."""
    report = tmp_path / "report"
    first = ("10.0.0.2", 2222)
    for thread in range(2):
        tell_silence(Reports(str(report)), Lane(first, thread))
    (note,) = json.loads(report.read_text())["notes"]
    assert note == {
        "id": "silent 10.0.0.2:2222",
        "severity": "WARNING",
        "text": "reducer 10.0.0.2:2222 has fallen silent: it is connected to again",
    }
