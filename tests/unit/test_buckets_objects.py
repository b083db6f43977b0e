"""Objects on the local disk: durable writes, preconditions, writes through the directory, and lists."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.unit.stored import BUCKET, get, put
from trainshed.buckets import listing
from trainshed.buckets.content import Checksums, Digest, digest_file
from trainshed.buckets.disk import objects, records, tree
from trainshed.buckets.disk.catalog import state_directory
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.disk.records import direct_record
from trainshed.buckets.errors import (
    BucketsError,
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    NotModified,
    PreconditionFailed,
)
from trainshed.buckets.port import Conditions, Draft, FileIdentity, ObjectRef, Query
from trainshed.buckets.rest import uploads
from trainshed.buckets.rest.uploads import CommittedUpload, UploadSessions, UploadSpec, UploadWriter
from trainshed.buckets.rest.views import object_view

ABSENT = Conditions(generation_match=0)


@pytest.fixture(params=[True, False], ids=["attributes", "sidecars"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    made = ObjectStore(tmp_path / "store", attributes=request.param)
    made.catalog.create(BUCKET)
    return made


def names(store: ObjectStore, query: Query | None = None) -> list[str]:
    return [name for name, _ in store.list(BUCKET, query or Query()).objects]


def path_of(store: ObjectStore, name: str = "") -> Path:
    return store.catalog.directory(BUCKET) / name


def test_interrupted_bucket_creation_leaves_no_bucket(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket with the wrong mode would not be writable for programs of other users."""
    monkeypatch.setattr(Path, "chmod", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.catalog.create("new")
    monkeypatch.undo()
    assert not store.catalog.exists("new")
    store.catalog.create("new")
    assert store.catalog.directory("new").stat().st_mode & 0o777 == 0o777


def test_metadata_larger_than_an_extended_attribute_is_stored(store: ObjectStore) -> None:
    metadata = {f"key{number}": "v" * 100 for number in range(70)}
    record = put(store, "x", draft=Draft({}, metadata))
    assert store.read_record(ObjectRef(BUCKET, "x")).metadata == metadata
    small = store.patch(ObjectRef(BUCKET, "x"), lambda old: replace(old, metadata={}))
    assert (small.generation, small.metageneration) == (record.generation, 2)
    assert store.read_record(ObjectRef(BUCKET, "x")) == small


def test_preconditions_are_checked_against_the_current_generation_of_the_object(store: ObjectStore) -> None:
    first = put(store, "x", b"1", ABSENT)
    with pytest.raises(PreconditionFailed):
        put(store, "x", b"2", ABSENT)
    second = put(store, "x", b"2", Conditions(generation_match=first.generation))
    assert second.generation > first.generation
    with pytest.raises(PreconditionFailed):
        store.delete(ObjectRef(BUCKET, "x", conditions=Conditions(generation_match=first.generation)))
    with pytest.raises(NotFound):
        store.open_object(ObjectRef(BUCKET, "x", first.generation))
    with pytest.raises(NotModified):
        store.open_object(
            ObjectRef(BUCKET, "x", conditions=Conditions(generation_not_match=second.generation))
        )
    assert get(store, "x") == b"2"
    store.delete(ObjectRef(BUCKET, "x", second.generation))
    with pytest.raises(NotFound):
        get(store, "x")
    assert list((state_directory(store.root) / "tmp").iterdir()) == []


def test_concurrent_conditional_updates_lose_no_write(store: ObjectStore) -> None:
    """Of concurrent creations, exactly one creates the object."""
    barrier = threading.Barrier(6)

    def add(_: int) -> int:
        barrier.wait()
        done = 0
        for _try in range(400):
            try:
                opened = store.open_object(ObjectRef(BUCKET, "n"))
                value, held = int(os.pread(opened.fd, 20, 0)), opened.record.generation
                opened.close()
            except NotFound:
                value, held = 0, 0
            try:
                put(store, "n", str(value + 1).encode(), Conditions(generation_match=held))
            except PreconditionFailed:
                continue
            done += 1
            if done == 5:
                break
        return done

    with ThreadPoolExecutor(6) as pool:
        total = sum(pool.map(add, range(6)))
    assert int(get(store, "n")) == total


class TestWritesThroughTheDirectory:
    """spec/program#storage: /gcs/BUCKET and the API show the same objects."""

    def test_file_created_by_a_program_is_an_object_with_checksums(self, store: ObjectStore) -> None:
        path_of(store, "d").mkdir()
        path_of(store, "d/f").write_bytes(b"hello")
        record = store.read_record(ObjectRef(BUCKET, "d/f"))
        assert (record.crc32c, record.size) == ("mnG7TA==", 5)
        assert store.read_record(ObjectRef(BUCKET, "d/f")) == record
        with pytest.raises(PreconditionFailed):
            put(store, "d/f", b"mine", ABSENT)
        assert names(store) == ["d/f"]

    @pytest.mark.parametrize("is_copy", [False, True])
    def test_metadata_change_is_kept_if_a_read_computes_checksums_at_the_same_time(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, is_copy: bool
    ) -> None:
        """A read stores the computed checksums, or the link between a copied file and its record. That write
        must not overwrite a concurrent change of the metadata."""
        if is_copy:
            put(store, "f", b"hello")
            path_of(store, "f").unlink()
        path_of(store, "f").write_bytes(b"hello")
        os.utime(path_of(store, "f"), (1, 1))

        def change_and_hash(fd: int) -> Digest:
            monkeypatch.undo()
            store.patch(ObjectRef(BUCKET, "f"), lambda old: replace(old, metadata={"k": "v"}))
            return digest_file(fd)

        monkeypatch.setattr(records if is_copy else objects, "digest_file", change_and_hash)
        store.read_record(ObjectRef(BUCKET, "f"))
        record = store.read_record(ObjectRef(BUCKET, "f"))
        assert (record.metadata, record.crc32c) == ({"k": "v"}, "mnG7TA==")

    @pytest.mark.parametrize("how", ["in place", "replaced", "removed and made"])
    def test_file_rewritten_by_a_program_has_a_new_object_generation(
        self, store: ObjectStore, how: str
    ) -> None:
        record = put(store, "f", b"12345", draft=Draft({}, {"k": "v"}))
        path = path_of(store, "f")
        if how == "in place":
            with path.open("r+b") as file:
                file.write(b"54321")
        elif how == "replaced":
            other = path_of(store, "other")
            other.write_bytes(b"54321")
            other.replace(path)
        else:
            path.unlink()
            path.write_bytes(b"54321")
        now = store.read_record(ObjectRef(BUCKET, "f"))
        assert now.generation != record.generation
        assert now.metadata == {}
        assert now.md5 == base64.b64encode(hashlib.md5(b"54321").digest()).decode()
        with pytest.raises(PreconditionFailed):
            put(store, "f", b"x", Conditions(generation_match=record.generation))
        put(store, "f", b"x", Conditions(generation_match=now.generation))

    def test_symbolic_links_and_pipes_in_a_bucket_are_not_objects(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        (tmp_path / "secret").write_bytes(b"secret")
        path_of(store, "link").symlink_to(tmp_path / "secret")
        path_of(store, "dir").symlink_to(tmp_path)
        os.mkfifo(path_of(store, "pipe"))
        for name in ("link", "dir/secret", "pipe"):
            with pytest.raises(NotFound):
                get(store, name)
        assert names(store) == []
        with pytest.raises(Conflict):
            put(store, "dir/new")
        assert not (tmp_path / "new").exists()
        put(store, "link", b"mine")  # replaces the link itself, not its target
        assert (tmp_path / "secret").read_bytes() == b"secret"


class TestConflictingNames:
    @pytest.mark.parametrize("order", [["a", "a/b", "a/"], ["a/", "a/b", "a"], ["a/b", "a", "a/"]])
    def test_object_may_have_the_name_of_a_directory(self, store: ObjectStore, order: list[str]) -> None:
        for name in order:
            put(store, name, name.encode(), ABSENT)
        assert names(store) == ["a", "a/", "a/b"]
        for name in order:
            assert get(store, name) == name.encode()
            with pytest.raises(PreconditionFailed):
                put(store, name, b"", ABSENT)
        generation = store.read_record(ObjectRef(BUCKET, "a")).generation
        assert put(store, "a", b"2").generation > generation
        store.delete(ObjectRef(BUCKET, "a/b"))
        store.delete(ObjectRef(BUCKET, "a/"))
        assert get(store, "a") == b"2"
        put(store, "a", b"3")
        assert names(store) == ["a"]
        store.delete(ObjectRef(BUCKET, "a"))
        assert names(store) == []
        assert list(path_of(store).iterdir()) == []

    def test_object_stays_visible_during_its_move_out_of_the_shadow_directory(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened = tree.open_directory

        def after_a_write(base: int, components: tuple[str, ...]) -> int:
            if tree.SHADOW_DIR in components:
                monkeypatch.undo()
                put(store, "a", b"a")
            return opened(base, components)

        for status_of in (lambda: names(store), lambda: [get(store, "a").decode()]):
            for name in ("a", "a/b"):
                put(store, name)
            store.delete(ObjectRef(BUCKET, "a/b"))
            monkeypatch.setattr(tree, "open_directory", after_a_write)
            assert status_of() == ["a"]

    def test_unusual_object_names_are_preserved(self, store: ObjectStore) -> None:
        strange = ["//", "/x", "a//b", "a/../b", "./x", "é" * 127 + "/x", "x" * 255, ".gs~" + "y" * 246,
                   ".gs~file/x", ".gs~=", ".gs~+y", "a:b*?[]", " ", "%2F", "a/b/c/"]  # fmt: skip
        for name in strange:
            put(store, name, name.encode(), ABSENT)
        assert names(store) == sorted(strange, key=str.encode)
        for name in strange:
            assert get(store, name) == name.encode()
            store.delete(ObjectRef(BUCKET, name))
        assert list(path_of(store).iterdir()) == []

    def test_concurrent_writes_of_objects_with_nested_names_succeed(self, store: ObjectStore) -> None:
        wanted = ["p", "p/q", "p/q/r", "p/q/s", "p/t", "p/"]

        def work(number: int) -> None:
            name = wanted[number % len(wanted)]
            put(store, name, name.encode())
            if number < 30:
                store.delete(ObjectRef(BUCKET, name)) if number % 2 else None

        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(work, number) for number in range(48)]
        for future in futures:
            error = future.exception()
            assert error is None or isinstance(error, NotFound)
        for name in wanted:
            put(store, name, name.encode())
        assert names(store) == sorted(wanted)


@settings(max_examples=40)
@given(
    st.sets(st.text("ab/-.\U0001f600", min_size=1, max_size=6).filter(lambda n: n not in {".", ".."}),
            max_size=12),
    st.text("ab/-", max_size=3),
    st.sampled_from(["", "/", "-", "ab"]),
    st.integers(1, 4),
    st.booleans(),
)  # fmt: skip
def test_concatenated_list_pages_equal_the_sorted_list_of_all_objects(
    tmp_path_factory: pytest.TempPathFactory,
    objects: set[str],
    prefix: str,
    delimiter: str,
    page_size: int,
    trailing: bool,
) -> None:
    store = ObjectStore(tmp_path_factory.mktemp("list") / "store")
    store.catalog.create(BUCKET)
    for name in objects:
        put(store, name)
    items: list[str] = []
    prefixes: list[str] = []
    for name in sorted(objects, key=str.encode):
        if not name.startswith(prefix):
            continue
        at = name.find(delimiter, len(prefix)) if delimiter else -1
        common = name[: at + len(delimiter)] if at >= 0 else None
        if common is None or (trailing and common == name):
            items.append(name)
        if common is not None and common not in prefixes:
            prefixes.append(common)
    query = Query(prefix, delimiter, max_results=page_size, include_trailing_delimiter=trailing)
    seen_items: list[str] = []
    seen_prefixes: list[str] = []
    while True:
        page = store.list(BUCKET, query)
        assert len(page.objects) + len(page.prefixes) <= page_size + 1
        seen_items += [name for name, _ in page.objects]
        seen_prefixes += page.prefixes
        if not page.next_page_token:
            break
        query = structs.replace(query, page_token=page.next_page_token)
    assert (seen_items, seen_prefixes) == (items, prefixes)


def test_slow_glob_search_continues_on_the_next_page(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SEARCH_TIMEOUT", 0.0)
    for name in ("a", "b", "c", "d"):
        put(store, name)
    matching: list[str] = []
    pages, token = 0, ""
    while pages == 0 or token:
        page = store.list("bucket", Query(match_glob="[bd]", page_token=token))
        matching += [name for name, _ in page.objects]
        pages, token = pages + 1, page.next_page_token
    assert matching == ["b", "d"]
    assert pages == 4


class TestUploadSessions:
    """Resumable uploads, also after a crash at each step."""

    @staticmethod
    def writer(sessions: UploadSessions, upload_id: str) -> UploadWriter:
        writer = sessions.resume(BUCKET, upload_id)
        assert isinstance(writer, UploadWriter)
        return writer

    @pytest.mark.parametrize("conditions", [Conditions(), ABSENT])
    @pytest.mark.parametrize("point", ["announced", "renamed"])
    def test_upload_can_be_completed_after_a_crash_during_the_commit(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, conditions: Conditions, point: str
    ) -> None:
        spec = UploadSpec(BUCKET, "big", conditions=conditions)
        upload_id = UploadSessions(store).start(spec)
        writer = self.writer(UploadSessions(store), upload_id)
        writer.write(b"hello")

        def crashing(real: Callable[..., None]) -> Callable[..., None]:
            def call(*args: object, **kwargs: object) -> None:
                if point == "renamed":
                    real(*args, **kwargs)
                raise KeyboardInterrupt

            return call

        monkeypatch.setattr(os, "rename", crashing(os.rename))
        monkeypatch.setattr(os, "link", crashing(os.link))
        with pytest.raises(KeyboardInterrupt):
            writer.commit()
        monkeypatch.undo()
        after = UploadSessions(store).resume(BUCKET, upload_id)
        if point == "announced":
            assert isinstance(after, UploadWriter)
            after.commit()
        else:
            assert isinstance(after, CommittedUpload)
        assert get(store, "big") == b"hello"
        assert isinstance(UploadSessions(store).resume(BUCKET, upload_id), CommittedUpload)

    def test_new_request_takes_over_an_upload_session_and_older_writers_fail(
        self, store: ObjectStore
    ) -> None:
        sessions = UploadSessions(store)
        upload_id = sessions.start(UploadSpec(BUCKET, "x"))
        first = self.writer(sessions, upload_id)
        first.write(b"1")
        second = self.writer(sessions, upload_id)
        with pytest.raises(BucketsError, match="taken over"):
            first.write(b"stale")
        second.write(b"2")
        second.commit()
        assert get(store, "x") == b"12"

    def test_received_bytes_of_an_upload_are_hashed_only_once(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(uploads, "_MAX_DIGESTS", 1)
        sessions = UploadSessions(store)
        for name in ("abandoned", "x"):
            upload_id = sessions.start(UploadSpec(BUCKET, name))
            writer = self.writer(sessions, upload_id)
            writer.write(b"1")
            sessions.release(writer)
        # Hashing a large upload again takes minutes, so its client would time out and take over again.
        monkeypatch.setattr(Digest, "update", None)
        assert self.writer(sessions, upload_id).offset == 1
        assert self.writer(sessions, upload_id).offset == 1

    def test_closing_an_upload_request_does_not_deadlock_with_a_running_commit(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A running commit holds its writer's lock, and deletes the session if it fails."""
        sessions = UploadSessions(store)
        writer = self.writer(sessions, sessions.start(UploadSpec(BUCKET, "x")))
        dropping = threading.Thread(target=sessions.drop, args=(Path("none"),))

        def wait_for_the_commit() -> None:
            dropping.start()
            dropping.join(60)
            assert not dropping.is_alive()

        monkeypatch.setattr(writer, "close", wait_for_the_commit)
        sessions.release(writer)

    def test_failed_cancelled_and_expired_upload_sessions_are_not_found(self, store: ObjectStore) -> None:
        sessions = UploadSessions(store)
        bad = sessions.start(UploadSpec(BUCKET, "x", expected=Checksums("AA", "")))
        with pytest.raises(InvalidRequest):
            self.writer(sessions, bad).commit()
        cancelled = sessions.start(UploadSpec(BUCKET, "x"))
        sessions.cancel(BUCKET, cancelled)
        old = sessions.start(UploadSpec(BUCKET, "x"))
        os.utime(state_directory(store.root) / "uploads" / old, (0, 0))
        sessions.expire()
        foreign = sessions.start(UploadSpec(BUCKET, "x"))
        for unknown in (bad, cancelled, old, "../../etc", "0" * 48, foreign):
            with pytest.raises(NotFound):
                sessions.resume("theirs" if unknown is foreign else BUCKET, unknown)
        put(store, "x")
        with pytest.raises(PreconditionFailed):
            sessions.start(UploadSpec(BUCKET, "x", conditions=ABSENT))


ordinary = pytest.mark.skipif(
    os.geteuid() == 0, reason="nothing is closed to root; test_buckets_callers.py runs it as another user"
)


@pytest.mark.parametrize("path", ["line\nfeed", "/".join(["d" * 200] * 6)], ids=["line", "long"])
def test_invalid_file_name_does_not_break_the_list(store: ObjectStore, path: str) -> None:
    """Any program may create such a file in a bucket that it shares with other programs."""
    put(store, "good", b"x")
    file = store.catalog.directory(BUCKET) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"y")
    assert [name for name, _ in store.list(BUCKET, Query()).objects] == ["good"]


@pytest.mark.parametrize("forged", [
    {"fields": {"mediaLink": "http://elsewhere.example/"}}, {"md5": "x\r\nset-cookie: y"},
    {"created_ns": 10**30}, {"generation": -1}, {"holds": ["kind"]}, {"deleted_ns": 1},
    b'{"md5":"\xff"}',
], ids=str)  # fmt: skip
def test_program_cannot_forge_object_metadata_by_extended_file_attributes(
    tmp_path: Path, forged: dict[str, object] | bytes
) -> None:
    """A program may write the extended attributes of its own files. Clients send their tokens to the
    `mediaLink` of an object, so a forged link would steal tokens."""
    store = ObjectStore(tmp_path / "store")
    store.catalog.create(BUCKET)
    record = put(store, "x")
    (attribute,) = os.listxattr(path_of(store, "x")) or pytest.skip("files have no attributes")
    if isinstance(forged, dict):
        written = json.loads(os.getxattr(path_of(store, "x"), attribute))
        forged = json.dumps({**written, **forged}).encode()
    os.setxattr(path_of(store, "x"), attribute, forged)
    assert store.list(BUCKET, Query()).objects == [("x", record)]


def test_file_with_any_modification_time_is_listed() -> None:
    for moment in (-(10**30), 10**30):
        view = object_view("", BUCKET, "x", direct_record(FileIdentity(1, 1, moment)))
        assert view["updated"] in ("1970-01-01T00:00:00.000Z", "2262-04-11T23:47:16.854Z")


@ordinary
def test_unreadable_file_is_listed_and_the_error_of_a_read_contains_the_cause(store: ObjectStore) -> None:
    """A program has removed all permissions (`chmod 000`) of a file or of a directory."""
    for name in ("a", "b", "c/d", "e"):
        put(store, name, b"content")
    directory = store.catalog.directory(BUCKET)
    (directory / "b").chmod(0)
    (directory / "c").chmod(0)
    try:
        listed = store.list(BUCKET, Query()).objects
        sizes = [(name, record.size) for name, record in listed]
        assert sizes == [("a", 7), ("b", 7), ("e", 7)]
        assert store.list(BUCKET, Query(delimiter="/")).prefixes == []
        assert store.last_written(BUCKET, "") > 0
        with pytest.raises(Forbidden, match="a program removed the permission"):
            store.open_object(ObjectRef(BUCKET, "b"))
        assert get(store, "e") == b"content"
    finally:
        (directory / "c").chmod(0o700)
