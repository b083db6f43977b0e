"""What replicas used, read from what their shims wrote down (spec/program#usage)."""

import json
from pathlib import Path
from typing import Any

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.streams import FileStreams
from trainshed.store.logs.usage import Point, read_usage

SECOND = 10**9
PRIMARY = ReplicaId(0, 0)


def start(at: int, incarnation: int = 1, *gpus: str) -> dict[str, Any]:
    return {
        "started": at * SECOND,
        "incarnation": incarnation,
        "limit": 1000,
        "cpus": 4,
        "gpus": gpus,
    }


def look(
    at: int, cpu: float, memory: int = 100, *gpus: list[float | None], last: bool = False
) -> Any:
    entry: dict[str, Any] = {"at": at * SECOND, "cpu": cpu, "memory": memory, "peak": memory + 1}
    return entry | {"processes": 2, "gpus": gpus} | ({"last": True} if last else {})


def read(root: Path) -> Any:
    return read_usage([FileStreams(root)], JobUid(7), 1)


def write(root: Path, *entries: Any, replica: ReplicaId = PRIMARY, end: str = "\n") -> None:
    directory = root / "7" / "1" / str(replica)
    directory.mkdir(parents=True)
    text = "\n".join(json.dumps(entry) for entry in entries)
    (directory / "usage.jsonl").write_text(text + end)


def test_incarnations_add_up(tmp_path: Path) -> None:
    """spec/failures#lost-replicas: a replica that was restarted in place has begun to count anew."""
    write(tmp_path, start(100), look(110, 10.0, 500, last=True), start(200, 2), look(210, 5.0, 100))
    (usage,) = read(tmp_path)
    assert [(life.incarnation, life.cpu, life.over) for life in usage.lives] == [
        (1, 10.0, True),
        (2, 5.0, False),
    ]
    assert (usage.cpu, usage.seconds, usage.peak, usage.mean_cpus) == (15.0, 20.0, 501, 0.75)


def test_before_the_driver_answered_nothing_is_said_of_gpus(tmp_path: Path) -> None:
    write(
        tmp_path,
        start(100, 1, "GPU-a"),
        look(101, 0.0, 1),
        look(110, 0.0, 1, [4.0, 7, 16, 8]),
        look(120, 0.0, 1, [9.0, 7, 16, 8]),
    )
    (life,) = read(tmp_path)[0].lives
    assert [point.gpus for point in life.points()] == [(), (None,), (0.5,)]


def test_a_clock_that_is_set_back_makes_no_point(tmp_path: Path) -> None:
    write(tmp_path, start(100), look(110, 1.0), look(90, 2.0), look(120, 3.0))
    (life,) = read(tmp_path)[0].lives
    assert [point.at for point in life.points()] == [110 * SECOND, 120 * SECOND]
    assert life.points()[0] == Point(110 * SECOND, 0.1, 100)


def test_what_a_crash_left_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, start(100), look(110, 1.0), {"at": "yes"}, end='\n{"at": 12')
    (life,) = read(tmp_path)[0].lives
    assert [each.at for each in life.looks] == [110 * SECOND]
