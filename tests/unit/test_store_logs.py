"""The log reader: pages, following and incomplete lines, at a cost that is independent of the log's
length."""

import asyncio
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.streams import FileStreams, ServiceStreams
from trainshed.store.logs import segments
from trainshed.store.logs.lines import LogLine, LogPage, Severity, Stream
from trainshed.store.logs.reader import LogReader

UID = JobUid(5)
T0 = 1_763_612_345_000_000_000
PRIMARY, WORKER = ReplicaId(0, 0), ReplicaId(1, 0)


def stored_line(n: int, t: int, text: str = "", **extra: Any) -> bytes:
    entry = {"n": n, "t": t, "s": "o", "m": text or f"line {n}"} | extra
    return json.dumps(entry, ensure_ascii=False).encode() + b"\n"


def write(
    root: Path, replica: ReplicaId, lines: Iterable[bytes], *, attempt: int = 1, first: int = 0
) -> Path:
    directory = root / str(UID) / str(attempt) / str(replica)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{first:012d}.jsonl"
    with path.open("ab") as file:
        file.write(b"".join(lines))
    return path


def reader_of(root: Path) -> LogReader:
    return LogReader(FileStreams(root), ServiceStreams(root))


def page_of(root: Path, **arguments: Any) -> LogPage:
    return asyncio.run(reader_of(root).page(UID, **arguments))


def page_keys(root: Path, **arguments: Any) -> list[tuple[str, int, int]]:
    return keys(page_of(root, **arguments).lines)


def keys(lines: Iterable[LogLine]) -> list[tuple[str, int, int]]:
    return [(str(line.replica), line.attempt, line.n) for line in lines]


def read_new(root: Path, seen: dict[ReplicaId, tuple[int, int]]) -> list[str]:
    """Return the keys of all new lines, and advance the positions in `seen`."""
    names: list[str] = []
    for entry, source in reader_of(root).new_entries(UID, seen):
        names.append(f"{source.replica}/{source.attempt}/{entry.n}")
        seen[source.replica] = (source.attempt, entry.n)
    return names


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=60))
@settings(max_examples=30)
def test_followed_lines_of_two_replicas_are_merged_by_time(steps: list[tuple[bool, int]]) -> None:
    """The test covers runs of lines of the same replica, single lines, and lines with equal times."""
    with tempfile.TemporaryDirectory() as directory:
        clocks: dict[ReplicaId, list[int]] = {PRIMARY: [T0], WORKER: [T0]}
        for is_worker, step in steps:
            clock = clocks[WORKER if is_worker else PRIMARY]
            clock.append(max(clock[-1] + 1, T0 + step * len(steps)))
        for replica, clock in clocks.items():
            write(Path(directory), replica, (stored_line(n, t) for n, t in enumerate(clock)))
        lines = [(t, str(replica), n) for replica in clocks for n, t in enumerate(clocks[replica])]
        assert read_new(Path(directory), {}) == [f"{who}/1/{n}" for _, who, n in sorted(lines)]


def test_stored_log_line_is_read_with_all_fields(tmp_path: Path) -> None:
    write(
        tmp_path,
        PRIMARY,
        [
            stored_line(0, T0, "ready", s="b"),
            stored_line(1, T0 + 1, '{"severity":"ERROR","message":"é","k":1}', s="e"),
            stored_line(2, T0 + 2, "x" * 65536, p=1),
        ],
    )
    lines = page_of(tmp_path).lines
    assert lines[0] == LogLine(UID, 1, PRIMARY, 0, T0, Stream.SERVICE, "ready", Severity.NOTICE)
    assert (lines[1].text, lines[1].severity) == ("é", Severity.ERROR)
    assert lines[1].payload == {"message": "é", "k": 1}
    assert [line.partial for line in lines] == [False, False, True]


def test_job_without_log_files_has_an_empty_log(tmp_path: Path) -> None:
    (tmp_path / str(UID) / "1" / "workerpool0-0").mkdir(parents=True)
    (tmp_path / str(UID) / "1" / "something else").mkdir()
    (tmp_path / str(UID) / "notes").mkdir()
    for root in (tmp_path, tmp_path / "absent"):
        page = page_of(root)
        assert (page.lines, page.next) == ((), None)
        assert read_new(root, {}) == []
        assert asyncio.run(reader_of(root).tail(UID, 3, replicas={PRIMARY})) == ()


def test_log_page_merges_replicas_and_attempts_by_time(tmp_path: Path) -> None:
    write(tmp_path, PRIMARY, [stored_line(0, T0), stored_line(1, T0 + 20)])
    write(tmp_path, WORKER, [stored_line(0, T0), stored_line(1, T0 + 10)])
    write(tmp_path, PRIMARY, [stored_line(0, T0 + 15)], attempt=2)
    expected = [
        ("workerpool0-0", 1, 0),
        ("workerpool1-0", 1, 0),
        ("workerpool1-0", 1, 1),
        ("workerpool0-0", 2, 0),
        ("workerpool0-0", 1, 1),
    ]
    assert page_keys(tmp_path) == expected
    assert page_keys(tmp_path, descending=True) == expected[::-1]
    assert page_keys(tmp_path, replicas={WORKER}) == expected[1:3]
    assert page_keys(tmp_path, start=T0 + 10, end=T0 + 20) == expected[2:4]
    assert page_keys(tmp_path, start=T0 + 10, end=T0 + 20, descending=True) == expected[3:1:-1]
    lines = page_of(tmp_path).lines
    order = [(line.at, line.insert_id) for line in lines]
    assert order == sorted(order)
    assert keys(asyncio.run(reader_of(tmp_path).tail(UID, 2))) == expected[-2:]


def test_incomplete_last_log_line_is_read_when_complete(tmp_path: Path) -> None:
    whole = stored_line(1, T0 + 1)
    path = write(tmp_path, PRIMARY, [stored_line(0, T0), whole[:-9]])
    assert page_keys(tmp_path) == page_keys(tmp_path, descending=True) == [("workerpool0-0", 1, 0)]
    seen: dict[ReplicaId, tuple[int, int]] = {}
    assert read_new(tmp_path, seen) == ["workerpool0-0/1/0"]
    assert read_new(tmp_path, seen) == []
    with path.open("ab") as file:
        file.write(whole[-9:])
    assert read_new(tmp_path, seen) == ["workerpool0-0/1/1"]


def test_corrupt_log_lines_are_skipped(tmp_path: Path) -> None:
    garbled = [b'{"n":1,"t":17\x00\x00\xff\n', b"\n", stored_line(1, T0 + 1)[:12] + stored_line(2, T0 + 2)]
    write(tmp_path, PRIMARY, [stored_line(0, T0), *garbled, stored_line(3, T0 + 3)])
    expected = [("workerpool0-0", 1, 0), ("workerpool0-0", 1, 3)]
    assert page_keys(tmp_path) == expected
    assert page_keys(tmp_path, descending=True) == expected[::-1]
    assert read_new(tmp_path, {}) == ["workerpool0-0/1/0", "workerpool0-0/1/3"]


def test_log_follower_returns_only_lines_after_the_given_position(tmp_path: Path) -> None:
    """Attempts are returned in order, even if the clock was set back between them."""
    for attempt in (1, 2, 3):
        write(tmp_path, PRIMARY, [stored_line(n, T0 + n) for n in range(3)], attempt=attempt)
        write(tmp_path, PRIMARY, [stored_line(3, T0 + 3)], attempt=attempt, first=3)
    write(tmp_path, WORKER, [stored_line(0, T0 + 9)])
    seen = {PRIMARY: (2, 1)}
    expected = [*(f"2/{n}" for n in (2, 3)), *(f"3/{n}" for n in range(4))]
    lines = [f"workerpool0-0/{line}" for line in expected]
    assert read_new(tmp_path, seen) == [*lines, "workerpool1-0/1/0"]
    write(tmp_path, PRIMARY, [stored_line(4, T0 + 4)], attempt=3, first=4)
    assert read_new(tmp_path, seen) == ["workerpool0-0/3/4"]
    assert read_new(tmp_path, {PRIMARY: (3, 3)}) == ["workerpool0-0/3/4", "workerpool1-0/1/0"]


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[ReplicaId, int, list[tuple[int, int]]]]:
    """Generate (replica, attempt, [(time step, length of the text)]) for up to five small logs."""
    step = st.tuples(st.integers(1, 3), st.sampled_from([1, 30, 5000, 70_000]))
    places = draw(
        st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(1, 2)), unique=True, max_size=5)
    )
    return [
        (ReplicaId(pool, index), attempt, draw(st.lists(step, max_size=12)))
        for pool, index, attempt in places
    ]


@settings(max_examples=60)
@given(logs(), st.integers(1, 7), st.integers(1, 5), st.booleans())
def test_pages_and_follower_return_every_log_line_once_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[tuple[ReplicaId, int, list[tuple[int, int]]]],
    limit: int,
    per_segment: int,
    descending: bool,
) -> None:
    root = tmp_path_factory.mktemp("logs")
    expected: list[tuple[int, int, int, int, int]] = []
    for replica, attempt, steps in drawn:
        at = T0
        for n, (wait, length) in enumerate(steps):
            at += wait
            write(
                root, replica, [stored_line(n, at, "x" * length)], attempt=attempt, first=n - n % per_segment
            )
            expected.append((at, replica.pool, replica.index, attempt, n))
    expected.sort(reverse=descending)
    reader = reader_of(root)

    async def read_pages() -> list[LogLine]:
        lines: list[LogLine] = []
        after = None
        while True:
            page = await reader.page(UID, after=after, limit=limit, descending=descending)
            lines.extend(page.lines)
            after = page.next
            if after is None:
                return lines

    assert [line.key for line in asyncio.run(read_pages())] == expected
    by_replica = sorted(expected, key=lambda key: (key[1:4], key[4]))
    names = [f"{ReplicaId(pool, index)}/{attempt}/{n}" for _, pool, index, attempt, n in by_replica]
    assert sorted(read_new(root, {}), key=lambda name: name.partition("/")[0]) == names


def test_page_of_a_long_log_parses_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, per_segment = 60_000, 20_000
    for first in range(0, count, per_segment):
        lines = (stored_line(n, T0 + n * 10, "step " + "x" * 80) for n in range(first, first + per_segment))
        assert write(tmp_path, PRIMARY, lines, first=first).stat().st_size > 2_000_000
    parsed: list[bytes] = []
    decode = segments.decode_entry

    def record_and_decode(raw: bytes) -> segments.Entry | None:
        parsed.append(raw)
        return decode(raw)

    monkeypatch.setattr(segments, "decode_entry", record_and_decode)
    for n in (0, 777, 33_333, 59_999):
        parsed.clear()
        expected = [("workerpool0-0", 1, number) for number in range(n, min(n + 10, count))]
        assert page_keys(tmp_path, start=T0 + n * 10, limit=10) == expected
        entry, _ = next(reader_of(tmp_path).new_entries(UID, {PRIMARY: (1, n - 1)}))
        assert entry.n == n
        assert page_keys(tmp_path, end=T0 + n * 10, limit=1, descending=True) == (
            [("workerpool0-0", 1, n - 1)] if n else []
        )
        assert len(parsed) < 500
    assert read_new(tmp_path, {PRIMARY: (1, count - 1)}) == []
