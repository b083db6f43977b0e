"""The buckets' access log: written line by line, read back from its end."""

import errno
import os
from pathlib import Path

import pytest

from tests.unit import test_buckets_http
from tests.unit.test_buckets_http import Ask
from trainshed.buckets.authentication import Listener
from trainshed.buckets.callers import Caller, Kind
from trainshed.buckets.local import LocalStore
from trainshed.buckets.rest.access_log import AccessLine, AccessLog, read_back
from trainshed.buckets.setup import PLAIN
from trainshed.core.resume.traffic import Access
from trainshed.serve.bucket_adapters import BucketAdapter, BucketHistory

_LONG = 1 << 20

ask, store = test_buckets_http.ask, test_buckets_http.store
"""The fixtures of the buckets over HTTP."""


def line(time: int, name: str = "x", **changes: object) -> AccessLine:
    facts: dict[str, object] = {
        "duration": 1,
        "method": "GET",
        "operation": "read",
        "bucket": "bucket",
        "object": name,
        "bytes": 5,
        "status": 200,
        "identity": "",
        "door": "replica",
    }
    return AccessLine(time, **(facts | changes))  # pyright: ignore[reportArgumentType] # by name


def write(path: Path, *lines: AccessLine, rotate_at: int = _LONG) -> None:
    log = AccessLog(path, rotate_at)
    for entry in lines:
        log.write(entry)


def times(path: Path, since: int = 0, *, read_at_most: int = _LONG) -> tuple[list[int], int]:
    page = read_back(path, since, lambda _: True, read_at_most=read_at_most)
    return [entry.time for entry in page.lines], page.since


def test_what_ended_since_is_found_in_its_order(tmp_path: Path) -> None:
    write(tmp_path / "log", *map(line, range(10)))
    assert times(tmp_path / "log") == (list(range(10)), 0)
    assert times(tmp_path / "log", 8) == ([7, 8, 9], 8), "7 ended at 8"


def test_what_was_thrown_away_is_not_said_to_be_known(tmp_path: Path) -> None:
    write(tmp_path / "log", *map(line, range(30)), rotate_at=500)
    kept, since = times(tmp_path / "log", 1)
    assert kept[0] > 1
    assert since == kept[0] + 1
    assert times(tmp_path / "log", 29)[1] == 29, "of late times all is known"


def test_each_way_in_is_told_apart(ask: Ask, tmp_path: Path) -> None:
    """Programs come by their replica's endpoint, which nothing else does."""
    target = "/upload/storage/v1/b/bucket/o?uploadType=media&name=x"
    program = Caller(Kind.REPLICA, "sa@p", project=PLAIN.project)
    ask("POST", target, b"1", listener=Listener.REPLICA, caller=program)
    ask("POST", target, b"2")
    ask("POST", target, b"3", listener=Listener.PORT)
    # No header makes a request another's.
    forged = {"x-forwarded-proto": "http", "x-trainshed-identity": '{"kind":"person"}'}
    ask("POST", target, b"4", listener=Listener.REPLICA, caller=program, **forged)
    lines = read_back(tmp_path / "access.log", 0, lambda _: True).lines
    assert [entry.door for entry in lines] == ["replica", "gateway", "port", "replica"]


@pytest.fixture
def history(tmp_path: Path) -> BucketHistory:
    root = tmp_path / "buckets"
    store = LocalStore(root)
    store.ensure_bucket("bucket")
    return BucketHistory(root, BucketAdapter(store))


def log_of(tmp_path: Path) -> Path:
    return tmp_path / "buckets.state" / "access.log"


def test_programs_reads_and_writes_are_told_as_accesses(
    history: BucketHistory, tmp_path: Path
) -> None:
    """spec/operations#resume-report: which checkpoint files were written and read. What people do meanwhile
    is not the job's doing."""
    write(
        log_of(tmp_path),
        line(1, "run/a", operation="write", status=308, bytes=7),
        line(2, "run/a", operation="write", status=200, bytes=3),
        line(3, "run/a"),
        line(4, "run/a", status=206),
        line(5, "run/a", status=404),
        line(6, "run/a", status=0),
        line(7, "run/a", door="port"),
        line(8, "run/a", door="gateway"),
        line(9, "run/a", operation="metadata"),
        line(10, "other/a"),
        line(11, "run/b", operation="write", status=412),
    )
    uri = "gs://bucket/run/a"
    assert history.accesses(("gs://bucket/run/",), 0) == (
        (Access(2, 3, True, uri, 10), Access(3, 4, False, uri, 5), Access(4, 5, False, uri, 5)),
        0,
    )
    assert history.accesses((), 0) == ((), 0)


def test_files_that_are_written_past_the_api_are_seen_by_their_times(
    history: BucketHistory, tmp_path: Path
) -> None:
    assert history.last_written("gs://bucket/run/") == 0
    place = tmp_path / "buckets" / "bucket" / "run"
    place.mkdir()
    (place / "a").write_text("x")
    assert history.last_written("gs://bucket/run/") == (place / "a").stat().st_mtime_ns
    assert history.last_written("gs://none/run/") == 0, "there is no such bucket"
    assert history.last_written("no uri at all") is None
    assert history.last_written("gs://bucket/run") == history.last_written("gs://bucket/run/")
    assert history.last_written("gs://bucket/ru") == 0
    assert (history.last_written("gs://bucket") or 0) > 0


def test_a_disk_that_became_read_only_fails_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AccessLog(tmp_path / "log")

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as read_only:
        read_only.setattr(os, "write", refuse)
        log.write(line(1))
    log.write(line(2))
    assert times(tmp_path / "log")[0] == [2]
