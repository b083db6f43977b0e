"""Objects in buckets with versioning: which generations are kept, listed, read and removed, and what is left
of them when the process is killed."""

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


def moved(store: ObjectStore, name: str, to: str) -> int:
    """The generation that a move makes, which keeps no properties."""
    steps = move(store, ObjectRef(BUCKET, name), ObjectRef(BUCKET, to), lambda _: Draft())
    return next(filter(None, steps)).generation


def all_of(store: ObjectStore, **query: Any) -> list[tuple[str, int]]:
    """Every (name, generation) of the bucket, page by page."""
    rows: list[tuple[str, int]] = []
    token = ""
    while True:
        page = store.list(BUCKET, Query(versions=True, page_token=token, **query))
        rows += [(name, record.generation) for name, record in page.objects]
        token = page.next_page_token
        if not token:
            return rows


def contents(store: ObjectStore) -> list[bytes]:
    return [get(store, "x", generation) for _, generation in all_of(store)]


def test_what_is_replaced_or_removed_is_kept_and_can_be_read(store: ObjectStore) -> None:
    first = put(store, "a/b", b"one", Draft({"contentType": "text/plain"}, {"key": "value"}))
    second = put(store, "a/b", b"two")
    assert get(store, "a/b") == get(store, "a/b", second) == b"two"
    assert get(store, "a/b", first) == b"one"
    record = store.read_record(ObjectRef(BUCKET, "a/b", first))
    assert (record.fields, record.metadata) == ({"contentType": "text/plain"}, {"key": "value"})
    assert record.deleted_ns > record.created_ns
    assert all_of(store) == [("a/b", first), ("a/b", second)]
    store.delete(ObjectRef(BUCKET, "a/b"))
    with pytest.raises(NotFound):
        store.read_record(ObjectRef(BUCKET, "a/b"))
    assert store.list(BUCKET, Query()).objects == []
    assert get(store, "a/b", second) == b"two"
    assert all_of(store) == [("a/b", first), ("a/b", second)]
    with pytest.raises(NotFound):
        store.delete(ObjectRef(BUCKET, "a/b"))


def test_a_generation_that_is_named_is_removed_for_good(store: ObjectStore) -> None:
    first, second, third = (put(store, "x", content) for content in (b"1", b"2", b"3"))
    store.delete(ObjectRef(BUCKET, "x", second))
    store.delete(ObjectRef(BUCKET, "x", third))
    assert all_of(store) == [("x", first)]
    with pytest.raises(NotFound):
        store.read_record(ObjectRef(BUCKET, "x"))
    # What is removed with a condition alone is kept.
    fourth = put(store, "x", b"4")
    with pytest.raises(PreconditionFailed):
        store.delete(ObjectRef(BUCKET, "x", conditions=Conditions(generation_match=first)))
    store.delete(ObjectRef(BUCKET, "x", conditions=Conditions(generation_match=fourth)))
    assert all_of(store) == [("x", first), ("x", fourth)]
    with pytest.raises(NotFound):
        store.delete(ObjectRef(BUCKET, "x", third))


def test_a_move_keeps_what_it_takes_away(store: ObjectStore) -> None:
    generation = put(store, "from", b"x")
    to = moved(store, "from", "to")
    assert all_of(store) == [("from", generation), ("to", to)]
    assert get(store, "from", generation) == b"x"


def test_a_list_of_versions_is_in_order_whatever_lives(store: ObjectStore) -> None:
    """Names of live objects, of removed ones, and of both, in the order of their bytes, over pages of any
    size."""
    names = ["a", "a\x01", "a-b", "a/b", "a/b/c", "a/c", "b/", "b/x", "ä"]
    expected: list[tuple[str, int]] = []
    for number, name in enumerate(names):
        for _ in range(1 + number % 3):
            expected.append((name, put(store, name, b"x")))
        if number % 2:
            store.delete(ObjectRef(BUCKET, name))
    expected.sort(key=lambda row: (row[0].encode(), row[1]))
    for limit in (1, 2, 3, 100):
        assert all_of(store, max_results=limit) == expected
    below = [row for row in expected if row[0].startswith("a/")]
    assert all_of(store, prefix="a/") == below
    assert all_of(store, start_offset="a/b", end_offset="a/c") == [r for r in below if r[0] < "a/c"]
    page = store.list(BUCKET, Query(versions=True, delimiter="/"))
    assert page.prefixes == ["a/", "b/"]
    assert {name for name, _ in page.objects} == {"a", "a\x01", "a-b", "ä"}


def test_a_bucket_with_noncurrent_generations_is_not_empty(store: ObjectStore) -> None:
    generation = put(store, "x", b"one")
    store.delete(ObjectRef(BUCKET, "x"))
    with pytest.raises(Conflict, match="versions"):
        store.catalog.delete(BUCKET)
    store.delete(ObjectRef(BUCKET, "x", generation))
    store.catalog.delete(BUCKET)
    store.catalog.create(BUCKET, settings=VERSIONING)
    assert all_of(store) == []


def test_a_file_of_a_program_is_kept_too(store: ObjectStore) -> None:
    """Of another user's file there is no second name, but a copy."""
    (store.catalog.directory(BUCKET) / "x").write_bytes(b"by a program")
    written = store.read_record(ObjectRef(BUCKET, "x"))
    put(store, "x", b"by a client")
    assert get(store, "x", written.generation) == b"by a program"


def test_programs_do_not_see_such_a_bucket_as_a_directory(tmp_path: Path) -> None:
    """They could remove there what the bucket promises to keep."""
    store = ObjectStore(tmp_path / "store")
    buckets = {"plain": {}, "kept": VERSIONING, "held": {"defaultEventBasedHold": True}}
    for name, settings in buckets.items():
        store.catalog.create(name, settings=settings, project="p")
    assert [name for name, _ in store.catalog.visible_buckets("p")] == ["plain"]
    unmounted = [name for name in (*buckets, "none") if store.catalog.is_unmounted(name)]
    assert unmounted == ["kept", "held"]


# --- holds ---


@pytest.mark.parametrize("hold", [TEMPORARY_HOLD, EVENT_BASED_HOLD])
def test_what_is_held_can_be_neither_removed_nor_replaced(store: ObjectStore, hold: str) -> None:
    generation = put(store, "x", b"one", Draft(holds=(hold,)))
    put(store, "y", b"y")
    for attempt in (
        lambda: store.delete(ObjectRef(BUCKET, "x")),
        lambda: store.delete(ObjectRef(BUCKET, "x", generation)),
        lambda: put(store, "x", b"two"),
        lambda: store.precheck(ObjectRef(BUCKET, "x", conditions=Conditions())),
        lambda: moved(store, "x", "z"),
        lambda: moved(store, "y", "x"),
    ):
        with pytest.raises(Held):
            attempt()
    assert {name for name, _ in all_of(store)} == {"x", "y"}
    store.patch(ObjectRef(BUCKET, "x"), lambda r: replace(r, holds=()))
    put(store, "x", b"two")
    assert get(store, "x") == b"two"


# --- kill -9 ---

_WATCHED = ("generations.py", "files.py", "objects.py")


def _act(root: Path, action: str) -> None:
    store = ObjectStore(root)
    if action == "delete":
        store.delete(ObjectRef(BUCKET, "x"))
    else:
        put(store, "x", b"three")


def _act_until(step: int, root: Path, action: str) -> None:
    """Kill this process before the `step`-th line of the store's code."""
    left, has_begun = step, False

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left, has_begun
        # Before this nothing is changed that anybody sees.
        has_begun = has_begun or frame.f_code.co_name == "keep"
        if not frame.f_code.co_filename.endswith(_WATCHED):
            return None
        if event == "line" and has_begun:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    # A killed process loses nothing that it has written, and waiting for the disk takes minutes here.
    os.fsync = _do_not_wait
    sys.settrace(trace)
    _act(root, action)
    sys.settrace(None)


def _killed_at(step: int, root: Path, action: str) -> bool:
    """Returns whether it was killed, and the action not done."""
    # What has threads, as a worker of pytest has, cannot be forked.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    process = processes.Process(target=_act_until, args=(step, root, action))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.mark.parametrize("action", ["overwrite", "delete"])
def test_no_generation_is_lost_however_it_is_killed(
    tmp_path: Path, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before any line: what was live is there, exactly once, with its content; and the same request
    succeeds afterwards."""
    monkeypatch.setattr(os, "fsync", _do_not_wait)
    for step in range(1, 1000):
        root = tmp_path / str(step)
        store = ObjectStore(root)
        store.catalog.create(BUCKET, settings=VERSIONING)
        first = put(store, "x", b"one")
        second = put(store, "x", b"two")
        store.close()

        if not _killed_at(step, root, action):
            break
        after = ObjectStore(root)
        after.clean()
        rows = all_of(after)
        assert rows[:2] == [("x", first), ("x", second)]
        assert len(rows) <= (3 if action == "overwrite" else 2)
        assert contents(after) == [b"one", b"two", b"three"][: len(rows)]
        with_live = _live(after)
        assert with_live in (
            (None, second) if action == "delete" else (second, *dict(rows[2:]).values())
        )
        if action == "overwrite":
            put(after, "x", b"three")
        elif with_live is not None:
            after.delete(ObjectRef(BUCKET, "x"))
            assert _live(after) is None
        assert contents(after)[:2] == [b"one", b"two"]
        after.close()
    else:
        pytest.fail("the work never ended")
    assert step > 30


def _do_not_wait(_: int) -> None:
    """In place of a sync."""


def _live(store: ObjectStore) -> int | None:
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
def test_two_stars_and_a_slash_are_any_directories(pattern: str, names: list[str]) -> None:
    glob = listing.compile_glob(pattern)
    every = ["foo/bar", "foo/baz", "foo/foobar", "foobar", "x/y/foobar", "xfoobar"]
    assert [name for name in every if glob.is_all_of(name)] == names


def test_versioning_can_be_suspended(store: ObjectStore) -> None:
    first = put(store, "x", b"one")
    second = put(store, "x", b"two")
    store.catalog.patch(BUCKET, {"versioning": {"enabled": False}})
    third = put(store, "x", b"three")
    assert all_of(store) == [("x", first), ("x", third)]
    with pytest.raises(NotFound):
        get(store, "x", second)
