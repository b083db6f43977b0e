"""What a worker reports of reducers that fall silent."""

import json
from pathlib import Path

from trainshed_reduction.client.agreement import Membership
from trainshed_reduction.client.lanes import Lane
from trainshed_reduction.client.losses import tell_silence
from trainshed_reduction.client.operations import OperationQueue
from trainshed_reduction.process import Reports
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import GROUP, Hello


def test_a_silent_reducer_is_reported_once(tmp_path: Path) -> None:
    """spec/reduction#losses: the timeline says why a job stands still before the reducer is given up."""
    report = tmp_path / "report"
    hello = Hello(bytes(GROUP), 1, 0, 2)
    settings = Settings((), b"", lost_seconds=30.0)
    membership = Membership(
        settings, OperationQueue(), hello, None, None, Reports(str(report)), list[str]().append
    )
    first = ("10.0.0.2", 2222)
    for thread in range(2):
        tell_silence(membership, Lane(1, first, thread))
    (note,) = json.loads(report.read_text())["notes"]
    assert note == {
        "id": "silent 10.0.0.2:2222",
        "severity": "WARNING",
        "text": (
            "reducer 10.0.0.2:2222 has fallen silent: it is connected to again, and given up if it does "
            "not answer for 30 s more"
        ),
    }
