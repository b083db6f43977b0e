"""Generations of objects in buckets with versioning: storage, lists, reads, deletion, and recovery after a
crash."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.unit import stored
from tests.unit.stored import BUCKET, get
from trainshed.buckets import listing
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.errors import Conflict, Held, NotFound, PreconditionFailed
from trainshed.buckets.port import Conditions, Draft, ObjectRef, Query
from trainshed.buckets.settings import EVENT_BASED_HOLD, TEMPORARY_HOLD
from trainshed.buckets.transfers import move

VERSIONING = {"versioning": {"enabled": True}}


@pytest.fixture(params=[True, False], ids=["attributes", "sidecars"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    made = ObjectStore(tmp_path / "store", attributes=request.param)
    made.catalog.create(BUCKET, settings=VERSIONING)
    return made


def put(store: ObjectStore, name: str, content: bytes, draft: Draft = Draft()) -> int:  # noqa: B008
    return stored.put(store, name, content, draft=draft).generation


def move_object(store: ObjectStore, name: str, to: str) -> int:
    """Move an object and return the generation of the new one, which has no properties."""
    steps = move(store, ObjectRef(BUCKET, name), ObjectRef(BUCKET, to), lambda _: Draft())
    return next(filter(None, steps)).generation


def list_generations(store: ObjectStore, **query: Any) -> list[tuple[str, int]]:
    """Return (name, generation) of all generations in the bucket, from all pages."""
    rows: list[tuple[str, int]] = []
    token = ""
    while True:
        page = store.list(BUCKET, Query(versions=True, page_token=token, **query))
        rows += [(name, record.generation) for name, record in page.objects]
        token = page.next_page_token
        if not token:
            return rows


def noncurrent_contents(store: ObjectStore) -> list[bytes]:
    return [get(store, "x", generation) for _, generation in list_generations(store)]


def test_noncurrent_generations_remain_readable(store: ObjectStore) -> None:
    first = put(store, "a/b", b"one", Draft({"contentType": "text/plain"}, {"key": "value"}))
    second = put(store, "a/b", b"two")
    assert get(store, "a/b") == get(store, "a/b", second) == b"two"
    assert get(store, "a/b", first) == b"one"
    record = store.read_record(ObjectRef(BUCKET, "a/b", first))
    assert (record.fields, record.metadata) == ({"contentType": "text/plain"}, {"key": "value"})
    assert record.deleted_ns > record.created_ns
    assert list_generations(store) == [("a/b", first), ("a/b", second)]
    store.delete(ObjectRef(BUCKET, "a/b"))
    with pytest.raises(NotFound):
        store.read_record(ObjectRef(BUCKET, "a/b"))
    assert store.list(BUCKET, Query()).objects == []
    assert get(store, "a/b", second) == b"two"
    assert list_generations(store) == [("a/b", first), ("a/b", second)]
    with pytest.raises(NotFound):
        store.delete(ObjectRef(BUCKET, "a/b"))


def test_deletion_of_a_specified_generation_is_permanent(store: ObjectStore) -> None:
    first, second, third = (put(store, "x", content) for content in (b"1", b"2", b"3"))
    store.delete(ObjectRef(BUCKET, "x", second))
    store.delete(ObjectRef(BUCKET, "x", third))
    assert list_generations(store) == [("x", first)]
    with pytest.raises(NotFound):
        store.read_record(ObjectRef(BUCKET, "x"))
    # A deletion with only a condition keeps the generation.
    fourth = put(store, "x", b"4")
    with pytest.raises(PreconditionFailed):
        store.delete(ObjectRef(BUCKET, "x", conditions=Conditions(generation_match=first)))
    store.delete(ObjectRef(BUCKET, "x", conditions=Conditions(generation_match=fourth)))
    assert list_generations(store) == [("x", first), ("x", fourth)]
    with pytest.raises(NotFound):
        store.delete(ObjectRef(BUCKET, "x", third))


def test_source_of_a_moved_object_becomes_noncurrent(store: ObjectStore) -> None:
    generation = put(store, "from", b"x")
    to = move_object(store, "from", "to")
    assert list_generations(store) == [("from", generation), ("to", to)]
    assert get(store, "from", generation) == b"x"


def test_version_list_is_sorted_across_pages(store: ObjectStore) -> None:
    """The bucket contains live and deleted objects, and objects with several generations. The order is that
    of UTF-8 bytes, for any page size."""
    names = ["a", "a\x01", "a-b", "a/b", "a/b/c", "a/c", "b/", "b/x", "ä"]
    expected: list[tuple[str, int]] = []
    for number, name in enumerate(names):
        for _ in range(1 + number % 3):
            expected.append((name, put(store, name, b"x")))
        if number % 2:
            store.delete(ObjectRef(BUCKET, name))
    expected.sort(key=lambda row: (row[0].encode(), row[1]))
    for limit in (1, 2, 3, 100):
        assert list_generations(store, max_results=limit) == expected
    below = [row for row in expected if row[0].startswith("a/")]
    assert list_generations(store, prefix="a/") == below
    assert list_generations(store, start_offset="a/b", end_offset="a/c") == [r for r in below if r[0] < "a/c"]
    page = store.list(BUCKET, Query(versions=True, delimiter="/"))
    assert page.prefixes == ["a/", "b/"]
    assert {name for name, _ in page.objects} == {"a", "a\x01", "a-b", "ä"}


def test_bucket_with_noncurrent_generations_cannot_be_deleted(store: ObjectStore) -> None:
    generation = put(store, "x", b"one")
    store.delete(ObjectRef(BUCKET, "x"))
    with pytest.raises(Conflict, match="versions"):
        store.catalog.delete(BUCKET)
    store.delete(ObjectRef(BUCKET, "x", generation))
    store.catalog.delete(BUCKET)
    store.catalog.create(BUCKET, settings=VERSIONING)
    assert list_generations(store) == []


def test_file_written_by_a_program_becomes_noncurrent(store: ObjectStore) -> None:
    """The store copies files of other users, because it cannot link them."""
    (store.catalog.directory(BUCKET) / "x").write_bytes(b"by a program")
    written = store.read_record(ObjectRef(BUCKET, "x"))
    put(store, "x", b"by a client")
    assert get(store, "x", written.generation) == b"by a program"


def test_bucket_with_versioning_or_holds_is_not_mounted(tmp_path: Path) -> None:
    """Programs could delete protected objects through the directory."""
    store = ObjectStore(tmp_path / "store")
    buckets = {"plain": {}, "kept": VERSIONING, "held": {"defaultEventBasedHold": True}}
    for name, settings in buckets.items():
        store.catalog.create(name, settings=settings, project="p")
    assert [name for name, _ in store.catalog.visible_buckets("p")] == ["plain"]
    unmounted = [name for name in (*buckets, "none") if store.catalog.is_unmounted(name)]
    assert unmounted == ["kept", "held"]


# --- holds ---


@pytest.mark.parametrize("hold", [TEMPORARY_HOLD, EVENT_BASED_HOLD])
def test_object_under_hold_cannot_be_deleted_or_replaced(store: ObjectStore, hold: str) -> None:
    generation = put(store, "x", b"one", Draft(holds=(hold,)))
    put(store, "y", b"y")
    for attempt in (
        lambda: store.delete(ObjectRef(BUCKET, "x")),
        lambda: store.delete(ObjectRef(BUCKET, "x", generation)),
        lambda: put(store, "x", b"two"),
        lambda: store.precheck(ObjectRef(BUCKET, "x", conditions=Conditions())),
        lambda: move_object(store, "x", "z"),
        lambda: move_object(store, "y", "x"),
    ):
        with pytest.raises(Held):
            attempt()
    assert {name for name, _ in list_generations(store)} == {"x", "y"}
    store.patch(ObjectRef(BUCKET, "x"), lambda r: replace(r, holds=()))
    put(store, "x", b"two")
    assert get(store, "x") == b"two"


# --- kill -9 ---

_WATCHED = ("generations.py", "files.py", "objects.py")


def perform_action(root: Path, action: str) -> None:
    store = ObjectStore(root)
    if action == "delete":
        store.delete(ObjectRef(BUCKET, "x"))
    else:
        put(store, "x", b"three")


def perform_until_killed(step: int, root: Path, action: str) -> None:
    """Perform the action, and kill this process before the `step`-th line of the store's code."""
    left, has_begun = step, False

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left, has_begun
        # Steps before this call have no visible effect.
        has_begun = has_begun or frame.f_code.co_name == "keep"
        if not frame.f_code.co_filename.endswith(_WATCHED):
            return None
        if event == "line" and has_begun:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    # A killed process loses no written data, and syncing would take minutes.
    os.fsync = skip_sync
    sys.settrace(trace)
    perform_action(root, action)
    sys.settrace(None)


def is_killed_at(step: int, root: Path, action: str) -> bool:
    """Return whether the process was killed before the action was complete."""
    # A process with threads, such as a pytest worker, cannot be forked safely.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    process = processes.Process(target=perform_until_killed, args=(step, root, action))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.mark.parametrize("action", ["overwrite", "delete"])
def test_crash_of_the_service_during_a_write_or_deletion_loses_no_generation(
    tmp_path: Path, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test crashes the service before each executed line. Afterwards the live generation exists exactly
    once with its content, and the repeated request succeeds."""
    monkeypatch.setattr(os, "fsync", skip_sync)
    for step in range(1, 1000):
        root = tmp_path / str(step)
        store = ObjectStore(root)
        store.catalog.create(BUCKET, settings=VERSIONING)
        first = put(store, "x", b"one")
        second = put(store, "x", b"two")
        store.close()

        if not is_killed_at(step, root, action):
            break
        after = ObjectStore(root)
        after.clean()
        rows = list_generations(after)
        assert rows[:2] == [("x", first), ("x", second)]
        assert len(rows) <= (3 if action == "overwrite" else 2)
        assert noncurrent_contents(after) == [b"one", b"two", b"three"][: len(rows)]
        with_live = live_generation(after)
        assert with_live in ((None, second) if action == "delete" else (second, *dict(rows[2:]).values()))
        if action == "overwrite":
            put(after, "x", b"three")
        elif with_live is not None:
            after.delete(ObjectRef(BUCKET, "x"))
            assert live_generation(after) is None
        assert noncurrent_contents(after)[:2] == [b"one", b"two"]
        after.close()
    else:
        pytest.fail("the work never ended")
    assert step > 30


def skip_sync(_: int) -> None:
    """Replaces fsync."""


def live_generation(store: ObjectStore) -> int | None:
    try:
        return store.read_record(ObjectRef(BUCKET, "x")).generation
    except NotFound:
        return None


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("**/foobar", ["foo/foobar", "foobar", "x/y/foobar"]),
        ("**/{foobar,baz}", ["foo/baz", "foo/foobar", "foobar", "x/y/foobar"]),
        ("foo/**/baz", ["foo/baz"]),
        ("x/**/foobar", ["x/y/foobar"]),
        ("foo**bar", ["foo/bar", "foo/foobar", "foobar"]),
        ("foo**/bar", ["foo/bar"]),
    ],
)
def test_double_star_in_a_glob_matches_any_number_of_directories(pattern: str, names: list[str]) -> None:
    glob = listing.compile_glob(pattern)
    every = ["foo/bar", "foo/baz", "foo/foobar", "foobar", "x/y/foobar", "xfoobar"]
    assert [name for name in every if glob.is_all_of(name)] == names


def test_suspended_versioning_keeps_earlier_generations(store: ObjectStore) -> None:
    first = put(store, "x", b"one")
    second = put(store, "x", b"two")
    store.catalog.patch(BUCKET, {"versioning": {"enabled": False}})
    third = put(store, "x", b"three")
    assert list_generations(store) == [("x", first), ("x", third)]
    with pytest.raises(NotFound):
        get(store, "x", second)
