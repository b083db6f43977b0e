"""What reducers and workers have reported, read from what their shims wrote down (spec/reduction#reports)."""

import json
from pathlib import Path
from typing import Any

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.streams import FileStreams
from trainshed.store.logs.usage import read_reduction

SECOND = 10**9
REDUCER, WORKER = ReplicaId(2, 1), ReplicaId(0, 0)


def start(at: int, incarnation: int = 1) -> dict[str, Any]:
    return {"started": at * SECOND, "incarnation": incarnation}


def sample(at: float, *, last: bool = False, **metrics: Any) -> dict[str, Any]:
    return {"at": round(at * SECOND), "metrics": metrics} | ({"last": True} if last else {})


def read(root: Path) -> Any:
    return read_reduction([FileStreams(root)], JobUid(7), 1)


def write(root: Path, *entries: Any, replica: ReplicaId = REDUCER, end: str = "\n") -> None:
    directory = root / "7" / "1" / str(replica)
    directory.mkdir(parents=True)
    text = "\n".join(json.dumps(entry) for entry in entries)
    (directory / "reduction.jsonl").write_text(text + end)


def test_nothing_was_reported(tmp_path: Path) -> None:
    assert read(tmp_path / "nowhere") == ()
    write(tmp_path, start(1))
    write(tmp_path, sample(1, sent_bytes=1), replica=ReplicaId(2, 2))
    (tmp_path / "7" / "1" / "service").mkdir()
    (tmp_path / "7" / "1" / "service" / "reduction.jsonl").write_text("{}\n")
    assert read(tmp_path) == ()


def test_lines_that_are_torn(tmp_path: Path) -> None:
    last = sample(14, sent_bytes=90, last=True)
    write(tmp_path, start(10), sample(12, sent_bytes=10), last, {"at": "x"}, end='\n{"at": 99')
    (found,) = read(tmp_path)
    assert (found.over, found.metrics) == (True, {"sent_bytes": 90})
