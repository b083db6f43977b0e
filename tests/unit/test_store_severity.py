"""Severities and payloads of log lines (spec/logs#severity, facts/lifecycle#executor,
facts/program#files)."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainshed.store.logs import lines
from trainshed.store.logs.lines import Reading, Severity, Stream, read_line, severity_of
from trainshed.store.logs.segments import display_lines

OUT, ERR, SERVICE = Stream.STDOUT, Stream.STDERR, Stream.SERVICE
DEBUG, INFO, NOTICE = Severity.DEBUG, Severity.INFO, Severity.NOTICE
WARNING, ERROR, CRITICAL = Severity.WARNING, Severity.ERROR, Severity.CRITICAL


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("ERROR:root:boom", ERROR),
        ("WARNING:tensorflow:From x.py:12: deprecated", WARNING),
        ("INFO:     Started server process [12]", INFO),
        ("CRITICAL:trainer:gone", CRITICAL),
        ("DEBUG:matplotlib:loaded", DEBUG),
        ("I1120 12:00:00.123456 12 trainer.py:7] step", INFO),
        ("W1120 12:00:00.123456 140 torch/elastic.py:66] ", WARNING),
        ("E1120 12:00:00.123456 12 file.cc:7] failed", ERROR),
        ("F1120 12:00:00.123456 12 file.cc:7] check failed", CRITICAL),
        ("[rank0]:[W1120 12:00:00.123 Functions.cpp:47] late", WARNING),
        ("2026-11-20 12:00:00.123456: I tensorflow/core/cpu_feature_guard.cc:210] AVX", INFO),
        ("2026-11-20 12:00:00.123456: E tensorflow/stream_executor/cuda.cc:1] no device", ERROR),
        ("2026-11-20 12:00:00,123 - trainer - INFO - epoch 1", INFO),
        ("2026-11-20 12:00:00,123 WARNING trainer.task: slow", WARNING),
        ("2026-11-20 12:00:00.123 | INFO     | __main__:<module>:1 - hello", INFO),
        ("[2026-11-20 12:00:00,123] [ERROR] [launch.py:10] dead", ERROR),
        ("[2026-11-20 12:00:00 ERROR trainer] dead", ERROR),
        ("[2026-11-20T12:00:00Z WARN  crate::module] careful", WARNING),
        ("2026-11-20T12:00:00.000Z\tDEBUG\tmain.go:1\thello", DEBUG),
        ("26/11/20 12:00:00 INFO SparkContext: Running", INFO),
        ("12:00:00 ERROR name: text", ERROR),
        ("[11/20/26 12:00:00] WARNING  a message          task.py:3", WARNING),
        ("                    INFO     the same second    task.py:4", INFO),
        ("2026-11-20 12:00:00 [info     ] event          key=1", INFO),
        ("2026/11/20 12:00:00 [error] 12#12: upstream", ERROR),
        ("[warning] careful", WARNING),
        ("[INFO] hello", INFO),
        ("ts=2026-11-20T12:00:00Z level=warn msg=slow", WARNING),
        ('time="12:00" level="error" msg="x"', ERROR),
        ("[I 2026-11-20 12:00:00,123] Trial 3 finished", INFO),
        ("[W NNPACK.cpp:64] Could not initialize", WARNING),
        ("host-a:123:456 [0] NCCL INFO Bootstrap : Using eth0", INFO),
        ("host-a:123:456 [0] misc/socket.cc:1 NCCL WARN Net : failed", WARNING),
        ("\x1b[32mINFO\x1b[0m:     Application startup complete.", INFO),
        ("NOTICE: service", NOTICE),
    ],
)
def test_log_level_in_a_line_decides_the_severity_of_the_log_entry(text: str, severity: Severity) -> None:
    assert read_line(OUT, text) == Reading(severity, text)
    assert read_line(ERR, text) == Reading(severity, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "Traceback (most recent call last):",
        '  File "task.py", line 3, in <module>',
        "ValueError: INFO is not a number",
        "INFORMATION wants to be free",
        "loss 0.12 at 2026-11-20 12:00:00",
        "2026-11-20 12:00:00 epoch 1 of 10 done without a word of ERROR",
        "{not json}",
        "[1, 2, 3]",
        "[ERRORS] 0",
        "noise_level=high",
        "reached level=7",
    ],
)
def test_line_without_a_log_level_has_the_default_severity_of_stdout_or_stderr(text: str) -> None:
    assert read_line(OUT, text).severity is INFO
    assert read_line(ERR, text).severity is ERROR
    assert read_line(SERVICE, text).severity is NOTICE


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("Warning: low disk", WARNING),
        ("info: loading", INFO),
        ("error: no such file", ERROR),
        ("/lib/x.py:12: UserWarning: deprecated", WARNING),
        ("sklearn.exceptions.ConvergenceWarning: no", WARNING),
        ("Epoch 1:  45%|####5     | 45/100 [00:10<00:12,  4.50it/s]", INFO),
        (" 12%|█▏        | 12/100", INFO),
        ("37it [00:02, 17.2it/s]", INFO),
    ],
)
def test_warning_and_progress_texts_change_severity_only_on_stderr(text: str, severity: Severity) -> None:
    assert read_line(ERR, text).severity is severity
    assert read_line(OUT, text).severity is INFO


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ('{"severity": "WARNING", "message": "slow"}', Reading(WARNING, "slow")),
        (
            '{"severity": "error", "message": "boom", "step": 3}',
            Reading(ERROR, "boom", {"message": "boom", "step": 3}),
        ),
        ('{"severity": 300, "message": "m"}', Reading(NOTICE, "m")),
        ('{"level": "warn", "message": "m"}', Reading(WARNING, "m", {"level": "warn", "message": "m"})),
        ('{"step": 1, "loss": 0.5}', Reading(INFO, '{"step": 1, "loss": 0.5}', {"step": 1, "loss": 0.5})),
        ('{"message": "ERROR:root:x"}', Reading(ERROR, "ERROR:root:x")),
        ('{"severity": [], "message": 7}', Reading(INFO, '{"severity": [], "message": 7}', {"message": 7})),
        ('{"broken": }', Reading(INFO, '{"broken": }')),
    ],
)  # fmt: skip
def test_severity_and_message_are_taken_from_a_json_line(text: str, reading: Reading) -> None:
    """facts/program#files: a JSON line becomes the payload, without `severity` and `message`."""
    assert read_line(OUT, text) == reading


def test_json_line_without_severity_has_the_default_severity_of_the_stream() -> None:
    assert read_line(ERR, '{"a": 1}').severity is ERROR


def test_deeply_nested_or_long_log_lines_are_parsed_quickly() -> None:
    for text in (
        "{" * 100_000 + "}",
        '{"a":' * 5_000 + "1" + "}" * 5_000,
        "2026-11-20 12:00:00 " + "- " * 60_000,
    ):
        assert read_line(OUT, text).severity is INFO


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


@settings(max_examples=500)
@given(st.sampled_from((Stream.STDOUT, Stream.STDERR)), TEXTS)
def test_fast_severity_detection_returns_the_severity_of_the_full_parser(stream: Stream, text: str) -> None:
    severity = severity_of(stream, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "begins_plainly", never)
        assert severity_of(stream, text) == severity


@pytest.mark.parametrize("stream", list(Stream))
@pytest.mark.parametrize(
    "line",
    [
        *("", "a", "A", "Epoch 1", "Ep=1 level=warn", "loss=0.5", "ERROR: x", "E1120 05:54:33 x"),
        *("\x1b[31mERROR: x", "Red \x1b[31mERROR", "host:12:34 [0] NCCL WARN x", "1 of 2", "Ärger"),
        *("error: 0.03", "5%| | x", "[INFO] x", '{"severity": "ERROR", "message": "m"}', "{x", "{}"),
        *("2026-11-20 05:54:33 WARN x", " indented", "Traceback (most", "UserWarning: x", "INFO x"),
    ],
)
def test_fast_parser_for_streamed_lines_returns_the_results_of_the_normal_parser(
    stream: Stream, line: str
) -> None:
    """The fast parser returns the same result for any surrounding lines."""
    reading = read_line(stream, line)
    own = _stored_line(7, stream, line)
    for block, numbers in (
        (own, [7]),
        (b"\n".join((_stored_line(6, OUT, "plain"), own, _stored_line(8, OUT, "plain"))), [6, 7, 8]),
    ):
        shown = display_lines(block)
        assert [int(n) for n, *_ in shown] == numbers
        ((at, text, severity),) = (row for n, *row in shown if n == b"7")
        assert (severity or b"INFO").decode() == reading.severity
        assert (json.loads(text), at) == (reading.text, b"1763612345000000007")


def _stored_line(n: int, stream: Stream, text: str) -> bytes:
    line = {"n": n, "t": 1763612345000000000 + n, "s": stream, "m": text}
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode()
