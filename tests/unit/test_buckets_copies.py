"""A copied directory of buckets: every way of copying keeps each object's record, and none hides a write."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit import stored
from tests.unit.stored import BUCKET
from trainshed.buckets.disk.catalog import state_directory
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.disk.records import FILE
from trainshed.buckets.port import Draft, FileIdentity, ObjectRecord, ObjectRef, Query

CONTENTS = {
    "plain.txt": b"hello",
    "deep/er/object": b"x" * 3_000_000,
    "a": b"shadowed later",
    "empty": b"",
    "dir//double": b"escaped",
}


Way = Callable[[Path, Path], object]


def cp(*options: str) -> Way:
    def copy(source: Path, target: Path) -> None:
        subprocess.run(["cp", *options, source, target], check=True, capture_output=True)

    return copy


def put_back(source: Path, target: Path) -> None:
    """Restored under the old name, where the file system may give out the old inodes."""
    cp("-r")(source, target)
    shutil.rmtree(source)
    cp("-r")(target, source)
    shutil.rmtree(target)
    source.rename(target)


WAYS: dict[str, Way] = {
    "plain": cp("-r"),
    "with all": cp("-a"),
    "without attributes": cp("-r", "--preserve=timestamps"),
    "hard links": cp("-al"),
    "moved": Path.rename,
    "put back": put_back,
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@pytest.fixture(params=[True, False], ids=["attributes", "sidecars"])
def attributes(request: pytest.FixtureRequest) -> bool:
    return request.param


def make(data: Path, attributes: bool) -> dict[str, ObjectRecord]:
    store = ObjectStore(data / "buckets", attributes=attributes)
    store.catalog.create(BUCKET)
    for name, content in CONTENTS.items():
        put(store, name, content)
    put(store, "a/b", b"makes a shadow of a")
    store.patch(ObjectRef(BUCKET, "plain.txt"), lambda record: record)
    records = everything(store)
    store.close()
    assert records["plain.txt"].metageneration == 2
    return records


def put(store: ObjectStore, name: str, content: bytes) -> ObjectRecord:
    draft = Draft({"contentType": f"t/{name}"}, {"of": name})
    return stored.put(store, name, content, draft=draft)


def everything(store: ObjectStore) -> dict[str, ObjectRecord]:
    return dict(store.list(BUCKET, Query()).objects)


def unbound(records: dict[str, ObjectRecord]) -> dict[str, ObjectRecord]:
    """The records without the identities of their files."""
    return {
        name: replace(record, file=FileIdentity(0, record.size, 0))
        for name, record in records.items()
    }


@every_way
def test_a_copy_keeps_every_record(tmp_path: Path, attributes: bool, way: Way) -> None:
    before = make(tmp_path / "data", attributes)
    way(tmp_path / "data", tmp_path / "copy")
    for _ in range(2):  # The second start finds them bound.
        store = ObjectStore(tmp_path / "copy" / "buckets", attributes=attributes)
        after = everything(store)
        store.close()
        assert unbound(after) == unbound(before)


@every_way
def test_what_is_rewritten_in_a_copy_is_noticed(tmp_path: Path, attributes: bool, way: Way) -> None:
    before = make(tmp_path / "data", attributes)
    way(tmp_path / "data", tmp_path / "copy")
    path = tmp_path / "copy" / "buckets" / BUCKET / "plain.txt"
    path.write_bytes(b"HELLO")
    store = ObjectStore(tmp_path / "copy" / "buckets", attributes=attributes)
    first = store.read_record(ObjectRef(BUCKET, "plain.txt"))
    assert first.generation != before["plain.txt"].generation
    assert first.metadata == {}
    # And once the record is bound, a write of the same size is a new generation as well.
    bound = store.read_record(ObjectRef(BUCKET, "dir//double"))
    assert bound.generation == before["dir//double"].generation
    next((path.parent / "dir").rglob("double")).write_bytes(b"ESCAPED")
    assert store.read_record(ObjectRef(BUCKET, "dir//double")).generation != bound.generation


def test_a_damaged_table_is_made_anew(tmp_path: Path) -> None:
    before = make(tmp_path / "data", attributes=True)
    table = state_directory(tmp_path / "data" / "buckets") / FILE
    table.write_bytes(b"no database at all" * 1000)
    store = ObjectStore(tmp_path / "data" / "buckets")
    assert everything(store) == before
    record = put(store, "later", b"noted in the new one")
    store.close()
    assert table.with_name(f"{FILE}.damaged").exists()
    cp("-r")(tmp_path / "data", tmp_path / "copy")
    copied = everything(ObjectStore(tmp_path / "copy" / "buckets"))
    assert copied["later"].generation == record.generation
