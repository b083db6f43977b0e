"""A copied directory of buckets: every way of copying keeps each object's record, and none hides a write."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit import stored
from tests.unit.stored import BUCKET
from trainshed.buckets.disk.catalog import state_directory
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.disk.records import FILE
from trainshed.buckets.port import Draft, ObjectRecord, ObjectRef, Query

CONTENTS = {
    "plain.txt": b"hello",
    "deep/er/object": b"x" * 3_000_000,
    "a": b"shadowed later",
    "empty": b"",
    "dir//double": b"escaped",
}


def run(*argv: str | Path) -> None:
    subprocess.run(argv, check=True, capture_output=True)


def cp_r(source: Path, target: Path) -> None:
    run("cp", "-r", source, target)


def cp_a(source: Path, target: Path) -> None:
    run("cp", "-a", source, target)


def cp_without_attributes(source: Path, target: Path) -> None:
    run("cp", "-r", "--preserve=timestamps", source, target)


def hard_links(source: Path, target: Path) -> None:
    run("cp", "-al", source, target)


def moved(source: Path, target: Path) -> None:
    source.rename(target)


def put_back(source: Path, target: Path) -> None:
    """Restored under the old name, where the file system may give out the old inodes."""
    run("cp", "-r", source, target)
    shutil.rmtree(source)
    run("cp", "-r", target, source)
    shutil.rmtree(target)
    source.rename(target)


WAYS = [cp_r, cp_a, cp_without_attributes, hard_links, moved, put_back]


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


def properties(record: ObjectRecord) -> tuple[object, ...]:
    return (
        record.generation,
        record.metageneration,
        record.created_ns,
        record.updated_ns,
        record.md5,
        record.crc32c,
        record.fields,
        record.metadata,
        record.size,
    )


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_copy_keeps_every_record(
    tmp_path: Path, attributes: bool, way: Callable[[Path, Path], None]
) -> None:
    before = make(tmp_path / "data", attributes)
    way(tmp_path / "data", tmp_path / "copy")
    for _ in range(2):  # The second start finds them bound.
        store = ObjectStore(tmp_path / "copy" / "buckets", attributes=attributes)
        after = everything(store)
        store.close()
        assert {name: properties(record) for name, record in after.items()} == {
            name: properties(record) for name, record in before.items()
        }


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_was_rewritten_in_a_copy_is_noticed(
    tmp_path: Path, attributes: bool, way: Callable[[Path, Path], None]
) -> None:
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
    inner = next((tmp_path / "copy" / "buckets" / BUCKET / "dir").rglob("double"))
    inner.write_bytes(b"ESCAPED")
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
    cp_r(tmp_path / "data", tmp_path / "copy")
    copied = everything(ObjectStore(tmp_path / "copy" / "buckets"))
    assert copied["later"].generation == record.generation
