"""Copies of a buckets directory. Every way of copying preserves the objects' records, and later writes are
detected."""

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


def copy_with(*options: str) -> Way:
    def copy(source: Path, target: Path) -> None:
        subprocess.run(["cp", *options, source, target], check=True, capture_output=True)

    return copy


def restore_under_old_name(source: Path, target: Path) -> None:
    """Copy, delete the original, and restore it under its name. The file system may reuse the old inodes."""
    copy_with("-r")(source, target)
    shutil.rmtree(source)
    copy_with("-r")(target, source)
    shutil.rmtree(target)
    source.rename(target)


WAYS: dict[str, Way] = {
    "plain": copy_with("-r"),
    "with all": copy_with("-a"),
    "without attributes": copy_with("-r", "--preserve=timestamps"),
    "hard links": copy_with("-al"),
    "moved": Path.rename,
    "put back": restore_under_old_name,
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@pytest.fixture(params=[True, False], ids=["attributes", "sidecars"])
def attributes(request: pytest.FixtureRequest) -> bool:
    return request.param


def create_objects(data: Path, attributes: bool) -> dict[str, ObjectRecord]:
    store = ObjectStore(data / "buckets", attributes=attributes)
    store.catalog.create(BUCKET)
    for name, content in CONTENTS.items():
        put(store, name, content)
    put(store, "a/b", b"makes a shadow of a")
    store.patch(ObjectRef(BUCKET, "plain.txt"), lambda record: record)
    records = list_records(store)
    store.close()
    assert records["plain.txt"].metageneration == 2
    return records


def put(store: ObjectStore, name: str, content: bytes) -> ObjectRecord:
    draft = Draft({"contentType": f"t/{name}"}, {"of": name})
    return stored.put(store, name, content, draft=draft)


def list_records(store: ObjectStore) -> dict[str, ObjectRecord]:
    return dict(store.list(BUCKET, Query()).objects)


def without_file_identities(records: dict[str, ObjectRecord]) -> dict[str, ObjectRecord]:
    """Return the records without the identities of their files."""
    return {name: replace(record, file=FileIdentity(0, record.size, 0)) for name, record in records.items()}


@every_way
def test_copied_data_directory_keeps_the_metadata_of_every_object(
    tmp_path: Path, attributes: bool, way: Way
) -> None:
    before = create_objects(tmp_path / "data", attributes)
    way(tmp_path / "data", tmp_path / "copy")
    for _ in range(2):  # On the second start, the records are already bound.
        store = ObjectStore(tmp_path / "copy" / "buckets", attributes=attributes)
        after = list_records(store)
        store.close()
        assert without_file_identities(after) == without_file_identities(before)


@every_way
def test_file_modified_in_a_copied_data_directory_gets_a_new_generation(
    tmp_path: Path, attributes: bool, way: Way
) -> None:
    before = create_objects(tmp_path / "data", attributes)
    way(tmp_path / "data", tmp_path / "copy")
    path = tmp_path / "copy" / "buckets" / BUCKET / "plain.txt"
    path.write_bytes(b"HELLO")
    store = ObjectStore(tmp_path / "copy" / "buckets", attributes=attributes)
    first = store.read_record(ObjectRef(BUCKET, "plain.txt"))
    assert first.generation != before["plain.txt"].generation
    assert first.metadata == {}
    # After a record is bound, a write of the same size also causes a new generation.
    bound = store.read_record(ObjectRef(BUCKET, "dir//double"))
    assert bound.generation == before["dir//double"].generation
    next((path.parent / "dir").rglob("double")).write_bytes(b"ESCAPED")
    assert store.read_record(ObjectRef(BUCKET, "dir//double")).generation != bound.generation


def test_damaged_metadata_database_is_recreated_from_the_objects(tmp_path: Path) -> None:
    before = create_objects(tmp_path / "data", attributes=True)
    table = state_directory(tmp_path / "data" / "buckets") / FILE
    table.write_bytes(b"no database at all" * 1000)
    store = ObjectStore(tmp_path / "data" / "buckets")
    assert list_records(store) == before
    record = put(store, "later", b"noted in the new one")
    store.close()
    assert table.with_name(f"{FILE}.damaged").exists()
    copy_with("-r")(tmp_path / "data", tmp_path / "copy")
    copied = list_records(ObjectStore(tmp_path / "copy" / "buckets"))
    assert copied["later"].generation == record.generation
