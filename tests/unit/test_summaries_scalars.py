"""Event files of TensorFlow 1.15, 2.1, 2.17, Keras and PyTorch, intact and damaged."""

import io
import struct
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.e2e.programs import event_writer
from tests.e2e.programs.event_writer import frame_record
from tests.summary_writers import GOLDEN, WRITERS
from trainshed.summaries.reading import NotEvents, read_records
from trainshed.summaries.scalars import read_scalars


def records(data: bytes, start: int = 0, longest: int = 1 << 20) -> list[tuple[bytes, int]]:
    return list(read_records(io.BytesIO(data), start, longest=longest))


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.tfevents").read_bytes()


def test_event_writer_of_the_test_programs_writes_the_bytes_of_tensorflow(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Tests that use this writer are therefore valid for TensorFlow."""
    data = golden("tensorflow-1.15-plain")
    times = iter([0.0, *(struct.unpack_from("<d", record, 1)[0] for record, _ in records(data))])
    place = tmp_path_factory.mktemp("events")
    writer = event_writer.EventWriter(place, lambda: next(times))
    for step, value in WRITERS["tensorflow-1.15-plain"].scalars["accuracy"].items():
        writer.scalar("accuracy", value, step)
    (path,) = place.iterdir()
    assert path.read_bytes() == data


# --- damage


def complete_records(most: int) -> bytes:
    return b"".join(frame_record(b"record %d" % number) for number in range(most))


@given(st.integers(0, 220), st.integers(1, 255))
def test_damaged_event_records_are_rejected(at: int, flipped: int) -> None:
    data = bytearray(complete_records(10))
    data[at] ^= flipped
    intact: list[bytes] = []
    try:
        for record, _ in read_records(io.BytesIO(bytes(data)), 0, longest=1 << 20):
            intact.append(record)
    except NotEvents as damaged:
        assert damaged.offset <= at
    assert len(intact) < 10
    assert set(intact) <= {b"record %d" % number for number in range(10)}


@given(st.binary(max_size=200))
def test_arbitrary_bytes_in_an_event_file_are_read_or_rejected_without_a_crash(data: bytes) -> None:
    try:
        for record, end in read_records(io.BytesIO(data), 0, longest=1 << 20):
            assert len(record) < end <= len(data)
    except NotEvents as refused:
        assert 0 <= refused.offset <= len(data)
    list(read_scalars(data))


@given(st.sampled_from(sorted(WRITERS)), st.data())
def test_malformed_event_with_a_valid_checksum_is_skipped(name: str, data: st.DataObject) -> None:
    """A program may frame any bytes with a valid checksum."""
    whole = records(golden(name))
    record = bytearray(data.draw(st.sampled_from(whole))[0])
    for _ in range(data.draw(st.integers(1, 5))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    for scalar in read_scalars(bytes(record[: data.draw(st.integers(0, len(record)))])):
        assert isinstance(scalar.value, float)


# --- events that current libraries do not write


def event(tag: bytes, value: bytes) -> bytes:
    message = event_writer.field(1, event_writer.field(1, tag) + value)
    return b"\x10" + event_writer.varint(1) + event_writer.field(5, message)


def tensor(dtype: int, values: bytes) -> bytes:
    return event_writer.field(8, b"\x08" + bytes([dtype]) + values)


def read(data: bytes) -> Mapping[str, float]:
    return {scalar.tag: scalar.value for scalar in read_scalars(data)}


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (1, b"\x2d" + struct.pack("<f", 0.5), 0.5),
        (2, event_writer.field(4, struct.pack("<d", 0.25)), 0.25),
        (1, b"", 0.0),
        (7, event_writer.field(8, b"text"), None),
        (1, event_writer.field(4, b"odd"), None),
        (1, event_writer.field(2, event_writer.field(2, b"\x08\x01")) + b"\x2d" + b"\0" * 4, None),
        (1, event_writer.field(5, struct.pack("<ff", 1, 2)), None),
        (19, event_writer.field(13, event_writer.varint(1 << 20)), None),
    ],
    ids=["list", "bytes", "zero", "text", "torn", "vector", "two", "no half"],
)
def test_scalar_tensors_of_all_data_types_are_read_from_event_files(
    dtype: int, values: bytes, expected: float | None
) -> None:
    values_read = read(event(b"tag", tensor(dtype, values)))
    assert values_read == ({} if expected is None else {"tag": expected})
