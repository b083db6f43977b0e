"""Exports of models through a real bucket process: with the rights of the model's project, of files that
programs wrote, past a process that is killed (facts/models#export)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.contract.buckets_service import MIB, Service, client_at
from trainshed.buckets.setup import BucketRules
from trainshed.controller.exports import CopyingBuckets
from trainshed.core.errors import NotFound, PermissionDenied, Unavailable
from trainshed.core.pipelines import ModelExport
from trainshed.serve.bucket_adapters import BucketCopies

EXPORT = ModelExport("gs://bucket-p/m/", "gs://bucket-p/out/", "p", "a@example.com")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """With a bucket of each of two projects, and a shared one."""
    with Service(tmp_path, BucketRules("own", frozenset({"shared-1"}))) as made:
        client = client_at(made.address())
        for bucket, project in (("bucket-p", "p"), ("bucket-q", "q"), ("shared-1", "own")):
            client.create_bucket(bucket, project=project)
        yield made


async def copied(buckets: CopyingBuckets, source: str, target: str) -> list[str]:
    objects = await buckets.objects(source)
    for stored in objects:
        await buckets.copy(stored, target + stored.uri.removeprefix(source))
    return [stored.uri for stored in objects]


async def test_objects_and_files_of_programs_are_copied_whole(service: Service) -> None:
    client = client_at(service.address())
    client.bucket("bucket-p").blob("m/ä b?#.pt").upload_from_string(b"x" * (3 * MIB))
    visible = service.root / "bucket-p" / "m" / "deep"
    visible.mkdir(parents=True)
    (visible / "file").write_bytes(b"by a program")
    buckets = BucketCopies(service.uds, EXPORT)
    for target in ("gs://bucket-p/out/", "gs://shared-1/out/"):
        uris = await copied(buckets, EXPORT.source, target)
        assert uris == ["gs://bucket-p/m/deep/file", "gs://bucket-p/m/ä b?#.pt"]
    (first, _) = await buckets.objects("gs://bucket-p/out/")
    assert client.bucket("bucket-p").blob("out/ä b?#.pt").download_as_bytes() == b"x" * (3 * MIB)
    with pytest.raises(NotFound):
        await buckets.copy(replace(first, generation="1"), "gs://bucket-p/again")
    assert (service.root / "shared-1" / "out" / "deep" / "file").read_bytes() == b"by a program"


async def test_an_export_does_what_programs_of_its_project_may(service: Service) -> None:
    client = client_at(service.address())
    for bucket in ("bucket-p", "bucket-q"):
        client.bucket(bucket).blob("m/x").upload_from_string(b"x")
    buckets = BucketCopies(service.uds, EXPORT)
    for source, target in (
        ("gs://bucket-p/m/", "gs://bucket-q/out/"),
        ("gs://bucket-q/m/", "gs://bucket-p/out/"),
    ):
        with pytest.raises(PermissionDenied, match="bucket-q"):
            await copied(buckets, source, target)
    with pytest.raises(NotFound):
        await buckets.objects("gs://nowhere-1/m/")
    service.stop()
    with pytest.raises(Unavailable):
        await buckets.objects(EXPORT.source)
    assert not (service.root / "bucket-q" / "out").exists()
