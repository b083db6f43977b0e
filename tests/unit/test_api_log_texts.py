"""The stream of a log: stored lines are sent as what their records encode to, byte for byte."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from tests.unit.jobs import job
from trainshed.api.trainshed_v1 import views
from trainshed.api.trainshed_v1.logs import AT, log_texts
from trainshed.core.names import ReplicaId
from trainshed.core.streams import StreamSource
from trainshed.replica.observe.segments import quoted
from trainshed.store.logs import lines
from trainshed.store.logs.lines import LogLine, Stream, read_line, severity_of
from trainshed.wire.trainshed_v1 import timeline as records
from trainshed.wire.trainshed_v1.record import encoded

JOB = job()
SOURCE = StreamSource(JOB.uid, 2, ReplicaId(1, 3))
T0 = 1_763_612_344_999_999_990
BEGINNINGS = (
    "E1120 12:00:00.123456 12 file.cc:7] ", "[info] ", "[INFO] ", "ERROR:root:", "12:00:00 WARN x: ",
    "2026-11-20 12:00:00,123 - a - DEBUG - ", "host:1:2 [0] NCCL WARN ", "ts=1 level=warn ", "1.25 ",
    "\x1b[31mERROR\x1b[0m: ", "        INFO  ", "Error: ", "10%|# | 1/10 ", "x.py:1: UserWarning: ", "Epoch ",
    '{"severity":"ALERT","message":"', "[rank0]: [W1120 12:00:00.1 f.cpp:1] ", "", '"', "\\", "\t", "é", "٣",
)  # fmt: skip
TEXTS = st.tuples(
    st.sampled_from(BEGINNINGS),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
    st.sampled_from(("", '"}', "}", " level=error", "\n", "z" * 500)),
).map("".join)


def never(_: str) -> bool:
    return False


def stored(n: int, t: int, stream: str, text: str) -> bytes:
    return f'{{"n":{n},"t":{t},"s":"{stream}","m":{quoted(text)}}}\n'.encode()


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(tuple(Stream)), TEXTS), min_size=1, max_size=6))
@example([(Stream.STDOUT, "{}"), (Stream.STDOUT, '{"message":"a\\"b","k":1}')])
def test_lines_are_sent_as_their_records(found: list[tuple[Stream, str]]) -> None:
    times = [T0 + 9 * n for n in range(len(found))]
    data = b"".join(stored(n, times[n], *each) for n, each in enumerate(found))
    expected: list[str] = []
    for n, (stream, text) in enumerate(found):
        reading = read_line(stream, text)
        line = LogLine(
            JOB.uid, 2, SOURCE.replica, n, times[n], stream, reading.text, reading.severity
        )
        members = asdict(views.paged_line(JOB.name.api, line))
        del members["place"]
        expected.append(encoded(records.LogLine(**members)).decode() + "\n")
    texts = log_texts(JOB, SOURCE, data)
    assert list(texts) == expected
    assert [json.loads(text[:AT] + '"}')["at"] for text in texts] == [
        json.loads(text)["at"] for text in expected
    ]


def test_damaged_lines_are_left_out_and_others_sent() -> None:
    whole = [stored(n, T0 + n, "o", f"line {n}") for n in range(4)]
    damage = [
        b"\xff",
        whole[1][:12],
        b'{"n":1,"t":17\x00\x00\n',
        whole[1].replace(b"line", b"l\xffne"),
    ]
    for garbled in damage:
        data = whole[0] + garbled + whole[2] + whole[3]
        kept = [json.loads(text)["message"] for text in log_texts(JOB, SOURCE, data)]
        assert kept[-1] == "line 3"
        assert kept[0] == "line 0"
        assert "line 1" not in kept


@settings(max_examples=500)
@given(st.sampled_from((Stream.STDOUT, Stream.STDERR)), TEXTS)
def test_a_line_is_as_bad_as_if_all_expressions_were_tried(stream: Stream, text: str) -> None:
    severity = severity_of(stream, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "begins_plainly", never)
        assert severity_of(stream, text) == severity
