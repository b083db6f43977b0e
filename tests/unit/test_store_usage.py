"""Resource usage of replicas, read from the usage files of their shims (spec/program#usage)."""

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.usage import Use
from trainshed.engines.streams import FileStreams
from trainshed.store.logs.usage import Point, read_usage, with_busy_processors

SECOND = 10**9
PRIMARY = ReplicaId(0, 0)


def start(at: int, number: int = 1, *gpus: str) -> dict[str, Any]:
    """Return the start record of an incarnation."""
    return {"started": at * SECOND, "incarnation": number, "limit": 1000, "cpus": 4, "gpus": gpus}


def look(at: int, cpu: float, memory: int = 100, *gpus: list[float | None], last: bool = False) -> Any:
    entry: dict[str, Any] = {"at": at * SECOND, "cpu": cpu, "memory": memory, "peak": memory + 1}
    return entry | {"processes": 2, "gpus": gpus} | ({"last": True} if last else {})


def read(root: Path) -> Any:
    return read_usage([FileStreams(root)], JobUid(7), 1)


def write(root: Path, *entries: Any, replica: ReplicaId = PRIMARY, end: str = "\n") -> None:
    directory = root / "7" / "1" / str(replica)
    directory.mkdir(parents=True)
    text = "\n".join(json.dumps(entry) for entry in entries)
    (directory / "usage.jsonl").write_text(text + end)


def test_usage_of_a_restarted_replica_is_the_sum_over_all_incarnations(tmp_path: Path) -> None:
    """spec/failures#lost-replicas: the usage counters of a restarted replica start at zero."""
    write(tmp_path, start(100), look(110, 10.0, 500, last=True), start(200, 2), look(210, 5.0, 100))
    (usage,) = read(tmp_path)
    assert [(life.incarnation, life.cpu, life.over) for life in usage.lives] == [
        (1, 10.0, True),
        (2, 5.0, False),
    ]
    assert (usage.cpu, usage.seconds, usage.peak, usage.mean_cpus) == (15.0, 20.0, 501, 0.75)


def test_gpu_usage_is_unknown_until_the_driver_has_responded_twice(tmp_path: Path) -> None:
    write(
        tmp_path,
        start(100, 1, "GPU-a"),
        look(101, 0.0, 1),
        look(110, 0.0, 1, [4.0, 7, 16, 8]),
        look(120, 0.0, 1, [9.0, 7, 16, 8]),
    )
    (life,) = read(tmp_path)[0].lives
    assert [point.gpus for point in life.points()] == [(), (None,), (0.5,)]


def test_measured_cpu_and_gpu_usage_includes_only_replicas_with_records(tmp_path: Path) -> None:
    """The usage includes restarts. The time before the start of a program counts as idle."""
    own = (ReplicaId(0, 0), ReplicaId(0, 1))
    use = Use("p", "", (), "job", "a", own, 0, 100 * SECOND, "n1", "L4", 2, 8.0, 0, 2)
    gpu: list[float | None] = [20.0, 7, 16, 8]
    silent: list[float | None] = [None, 7, 16, 8]
    write(tmp_path, start(10), look(30, 40.0, 1, gpu, last=True), start(40, 2), look(90, 60.0, 1, gpu))
    write(tmp_path, start(10), look(90, 9.0, 1, silent), replica=ReplicaId(1, 0))
    used = with_busy_processors(use, read(tmp_path))
    assert (used.busy_cpus, used.busy_gpus) == (1.0, 0.4)
    assert with_busy_processors(replace(use, vcpus=0.5), read(tmp_path)).busy_cpus == 0.5
    blind = with_busy_processors(replace(use, replicas=(ReplicaId(1, 0),)), read(tmp_path))
    assert (blind.busy_cpus, blind.busy_gpus) == (0.09, None)
    elsewhere = replace(use, replicas=(ReplicaId(2, 0),))
    assert with_busy_processors(elsewhere, read(tmp_path)) == elsewhere


def test_usage_sample_with_a_decreasing_time_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, start(100), look(110, 1.0), look(90, 2.0), look(120, 3.0))
    (life,) = read(tmp_path)[0].lives
    assert [point.at for point in life.points()] == [110 * SECOND, 120 * SECOND]
    assert life.points()[0] == Point(110 * SECOND, 0.1, 100)


def test_corrupt_usage_records_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, start(100), look(110, 1.0), {"at": "yes"}, end='\n{"at": 12')
    (life,) = read(tmp_path)[0].lives
    assert [look.at for look in life.looks] == [110 * SECOND]
