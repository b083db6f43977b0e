"""What a trial has measured, read from what its primary's shim took down (spec/tuning#measurements)."""

import json
from pathlib import Path

import pytest

from trainshed.core.names import JobUid
from trainshed.core.study.records import Measurement
from trainshed.engines.streams import FileStreams
from trainshed.store.logs import metrics
from trainshed.store.logs.metrics import MetricsReader

JOB = JobUid(7)
SECOND = 10**9


def start(at: int, incarnation: int = 1) -> dict[str, object]:
    return {"started": at * SECOND, "incarnation": incarnation}


def report(at: int, step: int, incarnation: int = 1, **values: float) -> dict[str, object]:
    return {"at": at * SECOND, "step": step, "values": values, "incarnation": incarnation}


def write(
    root: Path, *entries: dict[str, object], attempt: int = 1, replica: str = "workerpool0-0"
) -> Path:
    directory = root / str(JOB) / str(attempt) / replica
    directory.mkdir(parents=True)
    path = directory / "metrics.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


@pytest.fixture
def reader(tmp_path: Path) -> MetricsReader:
    return MetricsReader(FileStreams(tmp_path))


def test_the_newest_value_wins_over_all_attempts(tmp_path: Path, reader: MetricsReader) -> None:
    """spec/tuning#measurements, spec/failures#lost-replicas: a trial whose job was restarted has measured
    again what its last attempt measured."""
    attempt_ten = [start(300), report(310, 1, loss=0.3)]
    write(
        tmp_path,
        start(100),
        report(110, 1, loss=0.9),
        report(111, 1, loss=0.8),
        report(112, 2, loss=0.7),
    )
    write(tmp_path, *attempt_ten, attempt=10)
    write(tmp_path, start(200), report(210, 1, loss=0.4), attempt=2)
    assert reader.measurements(JOB) == (
        Measurement((("loss", 0.3),), 1, 210 * SECOND),
        Measurement((("loss", 0.7),), 2, 12 * SECOND),
    )


def test_a_torn_end_counts_once_it_is_whole(tmp_path: Path, reader: MetricsReader) -> None:
    path = write(tmp_path, start(100), report(110, 1, loss=0.9))
    line = json.dumps(report(111, 2, loss=0.1))
    with path.open("a") as file:
        file.write("not json\n" + line)
        file.flush()
        assert [m.step for m in reader.measurements(JOB)] == [1]
        file.write("\n")
    assert [m.step for m in reader.measurements(JOB)] == [1, 2]


# --- what is remembered between two looks ---


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every line that is decoded from now on."""
    seen: list[bytes] = []

    class Counting:
        def decode(self, line: bytes) -> object:
            seen.append(line)
            return plain.decode(line)

    plain = metrics._decoder  # pyright: ignore[reportPrivateUsage] # nothing else shows what is read
    monkeypatch.setattr(metrics, "_decoder", Counting())
    return seen


def append(path: Path, *entries: dict[str, object]) -> None:
    with path.open("a") as file:
        file.write("".join(json.dumps(entry) + "\n" for entry in entries))


def test_what_is_appended_counts_as_if_all_were_read_at_once(
    tmp_path: Path, reader: MetricsReader
) -> None:
    """spec/tuning#measurements: the newest value of a step, whatever the order; several attempts; the start
    that is told later."""
    path = write(tmp_path, report(150, 1, loss=0.5))
    other = write(tmp_path, start(120), attempt=2)
    more: list[tuple[Path, dict[str, object]]] = [
        (path, report(140, 1, loss=0.4)),
        (path, report(160, 2, loss=0.3, acc=0.1)),
        (other, report(160, 2, loss=0.2)),
        (path, report(160, 2, loss=0.9)),
        (other, report(130, 3, acc=0.7)),
        (path, start(90)),
    ]
    for where, entry in more:
        append(where, entry)
        fresh = MetricsReader(FileStreams(tmp_path))
        assert reader.measurements(JOB) == fresh.measurements(JOB)
        assert reader.measurements(JOB, 125 * SECOND) == fresh.measurements(JOB, 125 * SECOND)
        assert reader.tags(JOB) == fresh.tags(JOB)
    assert reader.measurements(JOB) == (
        Measurement((("loss", 0.5),), 1, 60 * SECOND),
        Measurement((("acc", 0.1), ("loss", 0.2)), 2, 70 * SECOND),
        Measurement((("acc", 0.7),), 3, 40 * SECOND),
    )
    assert reader.tags(JOB) == ("acc", "loss")


def test_a_file_that_became_shorter_or_went_is_read_anew(
    tmp_path: Path, reader: MetricsReader
) -> None:
    path = write(tmp_path, start(100), report(110, 1, loss=0.9), report(111, 2, loss=0.8))
    assert len(reader.measurements(JOB)) == 2
    path.write_text(json.dumps(report(110, 1, loss=0.7)) + "\n")
    assert reader.measurements(JOB) == (Measurement((("loss", 0.7),), 1),)
    path.unlink()
    assert reader.measurements(JOB) == ()


def test_what_is_remembered_is_bounded_and_forgotten_with_the_job(
    tmp_path: Path, decoded: list[bytes]
) -> None:
    path = write(tmp_path, *(report(100 + n, n, loss=0.5) for n in range(10)))
    small = MetricsReader(FileStreams(tmp_path), most=9)
    for looks in (1, 2):
        assert len(small.measurements(JOB)) == 10
        assert len(decoded) == 10 * looks
    decoded.clear()
    large = MetricsReader(FileStreams(tmp_path), most=10)
    large.measurements(JOB)
    large.measurements(JOB)
    assert len(decoded) == 10
    large.forget(JOB)
    append(path, report(200, 20, loss=0.1))
    assert len(large.measurements(JOB)) == 11
    assert len(decoded) == 21
