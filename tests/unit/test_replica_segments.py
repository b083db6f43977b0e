"""Tests of the log format (spec/invariants#shims; spec/logs)."""

import errno
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.commands import disk_of
from trainshed.replica.observe import growing_files, segments
from trainshed.replica.observe.segments import LINE_BYTES, Segments, Stream


def read(directory: Path) -> list[dict[str, object]]:
    return [
        json.loads(line)
        for path in sorted(directory.iterdir())
        for line in path.read_text("utf-8").split("\n")
        if line
    ]


def write_pieces(directory: Path, *pieces: bytes) -> list[object]:
    """Write the pieces to a log, and return its lines."""
    log = Segments(str(directory))
    stream = Stream(log, "o")
    for piece in pieces:
        stream.feed(piece)
    stream.close()
    log.seal()
    return [line["m"] for line in read(directory)]


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"a\nb\n"], ["a", "b"]),
        ([b"a", b"b\nc"], ["ab", "c"]),
        ([b"\n\n"], ["", ""]),
        ([b"caf\xc3", b"\xa9\n"], ["café"]),
        ([b"bad \xff byte\n"], ["bad \ufffd byte"]),
        ([b'quote " back \\ tab \t nul \0\n'], ['quote " back \\ tab \t nul \0']),
        (["one\u2028line\x0bstill\n".encode()], ["one\u2028line\x0bstill"]),
        ([b"windows\r\nline\r\n"], ["windows", "line"]),
        ([b"\r 10%\r 50%", b"\r 100%\n"], [" 100%"]),
        ([b"\r 10%", b"\r 20%"], [" 20%"]),
    ],
)
def test_program_output_written_in_pieces_is_logged_as_complete_lines(
    tmp_path: Path, pieces: list[bytes], lines: list[str]
) -> None:
    assert write_pieces(tmp_path, *pieces) == lines


def test_progress_bar_without_newline_is_logged_only_in_its_last_state(tmp_path: Path) -> None:
    log = Segments(str(tmp_path))
    stream = Stream(log, "e")
    for step in range(10_000):
        stream.feed(b"\r%5d of 10000 ##########" % step)
    assert log.lines == 0
    stream.close()
    log.seal()
    assert [line["m"] for line in read(tmp_path)] == [" 9999 of 10000 ##########"]


@pytest.mark.parametrize("state", ["\r%d%%", "%d%%\r"], ids=["before", "behind"])
def test_states_of_a_long_progress_bar_are_logged_at_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """A progress bar without a newline is visible in the log for hours (docs/clients.md)."""
    at = 0.0
    monkeypatch.setattr("time.monotonic", lambda: at)
    log = Segments(str(tmp_path))
    stream = Stream(log, "e")
    for step in range(101):
        at = step * segments.PROGRESS_SECONDS / 20
        stream.feed((state % step).encode())
    stream.close()
    log.seal()
    assert [line["m"] for line in read(tmp_path)] == ["19%", "39%", "59%", "79%", "99%", "100%"]


def test_long_log_line_is_split_between_characters(tmp_path: Path) -> None:
    text = "é" * LINE_BYTES + "end"
    data = text.encode() + b"\nnext\n"
    pieces = [data[i : i + LINE_BYTES] for i in range(0, len(data), LINE_BYTES)]
    write_pieces(tmp_path, *pieces)
    lines = read(tmp_path)
    assert [line.get("p") for line in lines] == [1, 1, None, None]
    assert "".join(str(line["m"]) for line in lines[:3]) == text
    assert lines[3]["m"] == "next"


def truncate_last_line(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"n":2,"t":9999999999999999999,"s":"o","m":"to')


def empty(path: Path) -> None:
    """Leave the log unchanged, without a crash."""


@pytest.mark.parametrize("crash", [truncate_last_line, empty])
def test_log_numbering_continues_after_a_crash_with_a_damaged_last_line(
    tmp_path: Path, crash: Callable[[Path], None]
) -> None:
    first = Segments(str(tmp_path))
    first.write("o", ["a", "b"])
    first.seal()
    crash(next(tmp_path.iterdir()))
    second = Segments(str(tmp_path))
    assert second.lines == 2
    second.write("o", ["c"])
    second.seal()
    lines = read(tmp_path)
    assert [(line["n"], line["m"]) for line in lines] == [(0, "a"), (1, "b"), (2, "c")]
    times = [int(str(line["t"])) for line in lines]
    assert times == sorted(set(times))


def test_restart_continues_a_long_log_file_without_reading_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/failures#lost-replicas: A restart in place is fast for a log of any length."""
    monkeypatch.setattr(growing_files, "_READ_BACK", 300)
    first = Segments(str(tmp_path))
    first.write("o", [f"line {number}" for number in range(100)])
    first.seal()
    truncate_last_line(next(tmp_path.iterdir()))
    second = Segments(str(tmp_path))
    assert second.lines == 100
    second.write("o", ["next"])
    second.seal()
    lines = read(tmp_path)
    assert [line["n"] for line in lines] == list(range(101))
    assert lines[-1]["m"] == "next"


def test_each_log_segment_file_is_named_by_the_number_of_the_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a new segment cannot be opened, for example without a free file descriptor, the log continues in the
    old segment."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 200)
    log = Segments(str(tmp_path))
    refusal = OSError(errno.ENFILE, "Too many open files in system")
    with monkeypatch.context() as without_handles:
        without_handles.setattr(log, "_open", Mock(side_effect=refusal))
        log.write("o", ["x" * 300])
    for number in range(1, 10):
        log.write("o", [f"line {number} " + "x" * 40])
    log.seal()
    for path in tmp_path.iterdir():
        content = path.read_text()
        if content:
            assert json.loads(content.split("\n")[0])["n"] == int(path.stem)
    assert len(list(tmp_path.iterdir())) > 3
    assert [line["n"] for line in read(tmp_path)] == list(range(10))


def test_log_tail_in_the_exit_record_contains_the_last_eight_kibibytes(tmp_path: Path) -> None:
    log = Segments(str(tmp_path))
    log.write("e", ["ü" * 4000, "ü" * 1000])
    lines, tail = log.seal()
    assert lines == 2
    assert len(tail.encode()) <= 8192
    assert tail.startswith("…ü")
    assert tail.endswith("ü" * 1000)


def test_log_tail_omits_the_tensorflow_1_stack_of_operation_creation(tmp_path: Path) -> None:
    log = Segments(str(tmp_path))
    log.write("e", ["NotFoundError: no data", "", "Original stack trace for 'Next':", "  File 1"])
    log.write("e", ["    next()", "", "bye"])
    assert log.seal() == (7, "NotFoundError: no data\n\n\nbye")


@pytest.fixture
def two_files(tmp_path: Path) -> Iterator[Path]:
    """A file system with space for 64 kB and two files, including its directory."""
    with disk_of("size=64k,nr_inodes=2", tmp_path / "small") as place:
        yield place


def test_log_lines_wait_in_order_while_the_disk_is_full(two_files: Path) -> None:
    log = Segments(str(two_files))
    write_pieces = 0
    while not log.waits:
        log.write("o", [f"{write_pieces} {'x' * 3000}"])
        write_pieces += 1
    assert log.readable == write_pieces - 1
    log.write("e", ["behind it"])
    assert not log.flush()
    assert [line["n"] for line in complete_lines(two_files)] == list(range(write_pieces - 1))
    subprocess.run(["mount", "-o", "remount,size=1m", str(two_files)], check=True, timeout=60)
    assert log.flush()
    assert log.readable == log.lines == write_pieces + 1
    log.seal()
    lines = read(two_files)
    assert [line["n"] for line in lines] == list(range(write_pieces + 1))
    assert lines[-1]["m"] == "behind it"


def complete_lines(directory: Path) -> list[dict[str, object]]:
    """Return the readable lines of a log whose last line is incomplete."""
    text = (directory / "000000000000.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.split("\n")[:-1]]


def test_log_lines_wait_while_the_disk_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may become writable again. The program must not be killed and restarted in the meantime."""
    log = Segments(str(tmp_path))

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as read_only:
        read_only.setattr(growing_files.os, "write", refuse)
        read_only.setattr(growing_files.os, "fdatasync", refuse)
        log.write("o", ["one", "two"])
        assert log.waits
        assert not log.flush()
    assert log.flush()
    assert log.sync()
    assert [line["m"] for line in read(tmp_path)] == ["one", "two"]
