"""What replicas used, read from what their shims wrote down (spec/program#usage)."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.streams import FileStreams
from trainshed.store.logs.usage import GpuLook, Point, read_usage

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
    found: dict[str, Any] = {"at": at * SECOND, "cpu": cpu, "memory": memory, "peak": memory + 1}
    return found | {"processes": 2, "gpus": gpus} | ({"last": True} if last else {})


def read(root: Path) -> Any:
    return read_usage([FileStreams(root)], JobUid(7), 1)


def write(root: Path, *entries: Any, replica: ReplicaId = PRIMARY, end: str = "\n") -> None:
    directory = root / "7" / "1" / str(replica)
    directory.mkdir(parents=True)
    text = "\n".join(json.dumps(entry) for entry in entries)
    (directory / "usage.jsonl").write_text(text + end)


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    assert read(tmp_path / "nowhere") == ()
    (tmp_path / "7" / "1" / "workerpool0-0").mkdir(parents=True)
    (tmp_path / "7" / "1" / "something").mkdir()
    assert read(tmp_path) == ()


def test_looks_tell_what_was_used_between_them(tmp_path: Path) -> None:
    write(tmp_path, start(100), look(101, 0.5), look(103, 4.5, 300), look(113, 5.5, 200, last=True))
    ((usage,), (life,)) = read(tmp_path), read(tmp_path)[0].lives
    assert usage.replica == PRIMARY
    assert [(point.cpus, point.memory) for point in life.points()] == [
        (0.5, 100),
        (2.0, 300),
        (0.1, 200),
    ]
    assert (usage.peak, usage.most_cpus, usage.seconds, usage.cpu) == (301, 2.0, 13.0, 5.5)
    assert usage.mean_cpus == pytest.approx(5.5 / 13)
    assert (life.limit, life.cpus, life.over) == (1000, 4, True)


def test_incarnations_add_up(tmp_path: Path) -> None:
    """spec/failures#lost-replicas: a replica that was restarted in place has begun to count anew."""
    write(
        tmp_path,
        start(100),
        look(110, 10.0, 500, last=True),
        start(200, 2),
        look(210, 5.0, 100),
    )
    (usage,) = read(tmp_path)
    assert [(life.incarnation, life.cpu, life.over) for life in usage.lives] == [
        (1, 10.0, True),
        (2, 5.0, False),
    ]
    assert (usage.cpu, usage.seconds, usage.peak, usage.mean_cpus) == (15.0, 20.0, 501, 0.75)


def test_gpus_are_told_by_the_part_of_the_time_that_they_were_at_work(tmp_path: Path) -> None:
    write(
        tmp_path,
        start(100, 1, "GPU-a", "MIG-b"),
        look(110, 1.0, 1, [5.0, 7, 16, 8], [None, 3, 16, 3]),
        look(120, 2.0, 1, [15.5, 7, 16, 8], [None, 3, 16, 3]),
    )
    (life,) = read(tmp_path)[0].lives
    assert life.gpus == ("GPU-a", "MIG-b")
    assert [point.gpus for point in life.points()] == [(0.5, None), (1.0, None)]
    assert life.looks[0].gpus == (GpuLook(5.0, 7, 16, 8), GpuLook(None, 3, 16, 3))


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


def test_replicas_come_in_their_order(tmp_path: Path) -> None:
    for replica in (ReplicaId(1, 10), ReplicaId(1, 2), ReplicaId(0, 0)):
        write(tmp_path, start(100), replica=replica)
    assert [str(usage.replica) for usage in read(tmp_path)] == [
        "workerpool0-0",
        "workerpool1-2",
        "workerpool1-10",
    ]
    assert [(u.peak, u.mean_cpus, u.most_cpus) for u in read(tmp_path)] == [(0, 0, 0)] * 3
