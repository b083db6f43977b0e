"""Measurements of a trial, read from the metrics file of its primary's shim (spec/tuning#measurements)."""

import json
from pathlib import Path

from trainshed.core.names import JobUid
from trainshed.core.study.records import Measurement
from trainshed.engines.streams import FileStreams
from trainshed.store.logs.metrics import read_metrics

JOB = JobUid(7)
SECOND = 10**9


def start(at: int, incarnation: int = 1) -> dict[str, object]:
    return {"started": at * SECOND, "incarnation": incarnation}


def report(at: int, step: int, incarnation: int = 1, **values: float) -> dict[str, object]:
    return {"at": at * SECOND, "step": step, "values": values, "incarnation": incarnation}


def write(root: Path, *entries: dict[str, object], attempt: int = 1, replica: str = "workerpool0-0") -> Path:
    directory = root / str(JOB) / str(attempt) / replica
    directory.mkdir(parents=True)
    path = directory / "metrics.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def read(root: Path) -> tuple[Measurement, ...]:
    return read_metrics(FileStreams(root), JOB)


def test_newest_measurement_of_a_step_wins_across_attempts(tmp_path: Path) -> None:
    """spec/tuning#measurements, spec/failures#lost-replicas: a restarted trial repeats measurements of its
    previous attempt."""
    attempt_ten = [start(300), report(310, 1, loss=0.3)]
    write(tmp_path, start(100), report(110, 1, loss=0.9), report(111, 1, loss=0.8), report(112, 2, loss=0.7))
    write(tmp_path, *attempt_ten, attempt=10)
    write(tmp_path, start(200), report(210, 1, loss=0.4), attempt=2)
    assert read(tmp_path) == (
        Measurement((("loss", 0.3),), 1, 210 * SECOND),
        Measurement((("loss", 0.7),), 2, 12 * SECOND),
    )


def test_incomplete_measurement_line_is_read_after_its_completion(tmp_path: Path) -> None:
    path = write(tmp_path, start(100), report(110, 1, loss=0.9))
    line = json.dumps(report(111, 2, loss=0.1))
    with path.open("a") as file:
        file.write("not json\n" + line)
        file.flush()
        assert [m.step for m in read(tmp_path)] == [1]
        file.write("\n")
    assert [m.step for m in read(tmp_path)] == [1, 2]


def test_newest_measurement_of_a_step_wins_in_any_order(tmp_path: Path) -> None:
    """spec/tuning#measurements: this includes several attempts, and a start that is recorded late."""
    write(
        tmp_path,
        report(150, 1, loss=0.5),
        report(140, 1, loss=0.4),
        report(160, 2, loss=0.3, acc=0.1),
        report(160, 2, loss=0.9),
        start(90),
    )
    write(tmp_path, start(120), report(160, 2, loss=0.2), report(130, 3, acc=0.7), attempt=2)
    assert read(tmp_path) == (
        Measurement((("loss", 0.5),), 1, 60 * SECOND),
        Measurement((("acc", 0.1), ("loss", 0.2)), 2, 70 * SECOND),
        Measurement((("acc", 0.7),), 3, 40 * SECOND),
    )
    assert read_metrics(FileStreams(tmp_path), JOB, 125 * SECOND)[2].elapsed == 5 * SECOND
    assert read_metrics(FileStreams(tmp_path), JobUid(8)) == ()
