"""Buckets in an S3-compatible store, with the same clients and methods as local buckets. The store is a
separate server on loopback, with signed requests over HTTP."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import BadRequest, NotFound, PreconditionFailed
from msgspec.structs import replace

from tests.commands import running
from tests.contract.buckets_service import MIB, Service, client_at, send_request
from tests.ports import free_port
from trainshed.buckets import remote, remote_access
from trainshed.buckets.content import Digest, Staged
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.port import Conditions, Draft, ObjectRef, Query
from trainshed.buckets.setup import BucketRules, BucketTable
from trainshed.serve.bucket_adapters import BucketAdapter

# Imported only by its tests, since every pytest worker reads this file.
for _library, _what in (("obstore", "the library for remote buckets"), ("moto", "an S3 server")):
    if importlib.util.find_spec(_library) is None:
        pytest.skip(f"{_what} is not installed: NOT TESTED", allow_module_level=True)

KEYS = {"TEST_STORE_KEY": "key-of-a-test", "TEST_STORE_SECRET": "canary-secret-of-a-test"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """An S3-compatible server with the bucket `corp`."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    # The test server checks for an object and creates it without a lock.
    begin = "import sys; sys.setswitchinterval(60); from moto.server import main; main()"
    words = (sys.executable, "-c", begin, "-H", "127.0.0.1", "-p", str(port))
    with running(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        _make_bucket(f"{address}/corp", server)
        yield address


def _make_bucket(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=60):
                return
        except OSError:
            # The server does not report when it listens.
            assert server.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)


@pytest.fixture
def table(s3: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> BucketTable:
    """The bucket `far-1` below a separate prefix per test."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return BucketTable(
        "far-1",
        "s3",
        bucket="corp",
        prefix=f"tests/{hashlib.md5(request.node.nodeid.encode()).hexdigest()}",
        endpoint=s3,
        project="theirs",
        access_key_env="TEST_STORE_KEY",
        secret_key_env="TEST_STORE_SECRET",
    )


@pytest.fixture
def service(table: BucketTable, tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, BucketRules("own", tables=(table,))) as made:
        yield made


@pytest.fixture
def bucket(service: Service) -> Any:
    return client_at(service.address()).bucket("far-1")


@pytest.fixture
def object_store(service: Service, table: BucketTable) -> ObjectStore:
    """The same buckets for other parts of the service."""
    return ObjectStore(service.root, rules=BucketRules("own", tables=(table,)))


def test_python_client_uses_remote_buckets(bucket: Any, service: Service) -> None:
    """spec/program#storage: gs:// works the same for local and remote buckets."""
    names = ["a b#1%é:c.txt", "d/e", "d/f/g", "d.txt", "z"]
    for name in names:
        blob = bucket.blob(name)
        blob.metadata = {"k": "v"}
        blob.upload_from_string(f"<{name}>", content_type="text/plain")
    assert [blob.name for blob in bucket.list_blobs()] == sorted(names, key=str.encode)
    assert [blob.name for blob in bucket.list_blobs(page_size=2)] == sorted(names, key=str.encode)
    level = bucket.list_blobs(delimiter="/", prefix="d")
    assert ([blob.name for blob in level], set(level.prefixes)) == (["d.txt"], {"d/"})
    pages = bucket.list_blobs(delimiter="/", page_size=1)
    assert [blob.name for blob in pages] == ["a b#1%é:c.txt", "d.txt", "z"]
    assert set(pages.prefixes) == {"d/"}
    assert [b.name for b in bucket.list_blobs(start_offset="d/f", end_offset="z")] == ["d/f/g"]
    assert [b.name for b in bucket.list_blobs(match_glob="d/*")] == ["d/e"]
    blob = bucket.get_blob("a b#1%é:c.txt")
    assert (blob.metadata, blob.content_type) == ({"k": "v"}, "text/plain")
    assert blob.download_as_bytes(checksum="crc32c") == "<a b#1%é:c.txt>".encode()
    assert blob.download_as_bytes(start=1, end=1) == b"a"
    listed = {blob.name: blob.generation for blob in bucket.list_blobs()}
    assert listed[blob.name] == blob.generation
    bucket.blob("joined").compose([bucket.blob("d/e"), bucket.blob("z")])
    assert bucket.blob("joined").download_as_bytes() == b"<d/e><z>"
    assert bucket.copy_blob(bucket.blob("z"), bucket, "copy").exists()
    assert bucket.rename_blob(bucket.get_blob("copy"), "moved").download_as_bytes() == b"<z>"
    here = client_at(service.address()).create_bucket("near-1")
    assert bucket.copy_blob(bucket.blob("z"), here).download_as_bytes() == b"<z>"
    assert here.copy_blob(here.blob("z"), bucket, "back").download_as_bytes() == b"<z>"
    with pytest.raises(NotFound):
        bucket.blob("copy").download_as_bytes()
    with pytest.raises(NotFound):
        bucket.blob("copy").delete()
    bucket.blob("moved").delete()
    assert not bucket.blob("moved").exists()
    assert not (service.root / "far-1").exists()


def test_list_with_a_prefix_reads_few_names_without_the_prefix(
    bucket: Any, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "bb1", "bb2", "c", "d"):
        bucket.blob(name).upload_from_string("")
    read: list[str] = []

    def list_all(*place: Any) -> Iterator[Any]:
        for meta in remote_access.list_all(*place):
            read.append(meta["path"])
            yield meta

    monkeypatch.setattr(remote, "list_all", list_all)
    listed = object_store.bucket_store("far-1").list("far-1", Query(prefix="bb"))
    assert [name for name, _ in listed.objects] == ["bb1", "bb2"]
    assert read == ["bb1", "bb2", "c"]


def test_preconditions_apply_in_remote_buckets(bucket: Any) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string("1", if_generation_match=0)
    with pytest.raises(PreconditionFailed):
        bucket.blob("x").upload_from_string("2", if_generation_match=0)
    first = bucket.get_blob("x").generation
    bucket.blob("x").upload_from_string("three", if_generation_match=first)
    second = bucket.get_blob("x").generation
    assert second != first
    with pytest.raises(PreconditionFailed):
        bucket.blob("x").upload_from_string("4", if_generation_match=first)
    with pytest.raises(PreconditionFailed):
        bucket.blob("x").delete(if_generation_match=first)
    with pytest.raises(NotFound):
        bucket.blob("x", generation=first).download_as_bytes()
    assert bucket.blob("x", generation=second).download_as_bytes() == b"three"


def test_exactly_one_of_several_concurrent_object_creations_succeeds(bucket: Any, service: Service) -> None:
    """The store decides, so this is also true for several services."""

    def create(number: int) -> bool:
        try:
            client_at(service.address()).bucket("far-1").blob("one").upload_from_string(
                str(number), if_generation_match=0
            )
        except PreconditionFailed:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(16)))
    assert won.count(True) == 1
    assert bucket.blob("one").download_as_text() == str(won.index(True))


@pytest.mark.parametrize("condition", ["", "&ifGenerationMatch=0"])
def test_remote_upload_survives_a_crash_at_any_point(service: Service, condition: str) -> None:
    """The crash is between two chunks, or between the last chunk and its response."""
    target = f"/upload/storage/v1/b/far-1/o?uploadType=resumable&name=big{condition}"
    _, headers, _ = send_request(service.port, "POST", target, headers=service.bearer)
    session = headers["location"].removeprefix(f"http://127.0.0.1:{service.port}")
    half = os.urandom(MIB)
    part = {**service.bearer, "Content-Range": f"bytes 0-{MIB - 1}/{2 * MIB}"}
    assert send_request(service.port, "PUT", session, half, part)[0] == 308
    service.stop(signal.SIGKILL)
    service.start()
    ask = {**service.bearer, "Content-Range": f"bytes */{2 * MIB}"}
    status, headers, _ = send_request(service.port, "PUT", session, b"", ask)
    assert (status, headers["range"]) == (308, f"bytes=0-{MIB - 1}")
    last = {**service.bearer, "Content-Range": f"bytes {MIB}-{2 * MIB - 1}/{2 * MIB}"}
    status, _, body = send_request(service.port, "PUT", session, half, last)
    assert status == 200, body
    service.stop(signal.SIGKILL)
    service.start()
    status, _, again = send_request(service.port, "PUT", session, b"", ask)
    assert (status, json.loads(again)["generation"]) == (200, json.loads(body)["generation"])
    blob = client_at(service.address()).bucket("far-1").blob("big")
    assert blob.download_as_bytes(checksum="md5") == half * 2


def test_interrupted_commit_to_a_remote_bucket_is_repeated(
    service: Service, object_store: ObjectStore
) -> None:
    """The object is in the store, but the process crashed before it recorded that. This includes
    creations."""
    far, path = object_store.bucket_store("far-1"), service.root.with_name("data")
    created = ObjectRef("far-1", "x", conditions=Conditions(generation_match=0))

    def stage_content() -> Staged:
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        staged = Staged(path, fd, Digest())
        if not os.fstat(fd).st_size:
            staged.write(b"content")
        else:
            staged.digest.update(b"content")
        return staged

    def dies(record: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        far.commit(created, stage_content(), Draft(), announce=dies)
    assert path.exists()
    record = far.commit(created, stage_content(), Draft())
    assert record == far.read_record(ObjectRef("far-1", "x"))
    assert not path.exists()


def test_object_properties_that_the_remote_store_does_not_support_are_rejected(bucket: Any) -> None:
    for name in ("dir/", "a//b", "a/../b", "new\tline"):
        with pytest.raises(BadRequest, match="remote store"):
            bucket.blob(name).upload_from_string("")
        # gcloud requests `dir/` before it lists the objects below, and expects a 404.
        assert not bucket.blob(name).exists()
    loud = bucket.blob("x")
    loud.metadata = {"Upper": "é"}
    with pytest.raises(BadRequest, match=r"metadata\.Upper"):
        loud.upload_from_string("")
    loud = bucket.blob("x")
    loud.upload_from_string("")
    loud.metadata = {"k": "v"}
    with pytest.raises(BadRequest, match="Write the object again"):
        loud.patch()
    with pytest.raises(BadRequest, match="configuration"):
        bucket.delete()


def test_output_checks_and_package_downloads_of_the_service_use_remote_buckets(
    bucket: Any, object_store: ObjectStore
) -> None:
    """spec/submit#job-directory: output directories are probed, and packages are fetched from such a bucket.
    It has no directory below /gcs."""
    before = time.time_ns() - 2 * 10**9
    parts, package = BucketAdapter(object_store), "gs://far-1/out/p.tar.gz"
    assert parts.last_written("gs://far-1/out") == 0
    bucket.blob("out/p.tar.gz").upload_from_string(b"package")
    assert parts.open(package).read() == b"package"
    first = parts.fingerprint(package)
    bucket.blob("out/p.tar.gz").upload_from_string(b"changed")
    assert parts.fingerprint(package) != first
    assert parts.has_object(package)
    assert not parts.has_object("gs://far-1/out/q")
    with pytest.raises(FileNotFoundError):
        parts.open("gs://far-1/out/q")
    parts.write_probe("gs://far-1/out", "theirs", "sa@theirs")
    with pytest.raises(ValueError, match=r"does not have storage\.objects\.create"):
        parts.write_probe("gs://far-1/out", "own", "sa@own")
    assert [blob.name for blob in bucket.list_blobs()] == ["out/p.tar.gz"]
    assert (parts.last_written("gs://far-1/out") or 0) > before
    assert parts.visible_buckets("theirs") == ()
    assert parts.is_closed("far-1", "own")
    assert not parts.is_closed("far-1", "theirs")


def test_unreachable_remote_store_causes_a_503_response_without_secrets(
    tmp_path: Path, table: BucketTable, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # a bound port without a listener
        gone = replace(table, endpoint=f"http://127.0.0.1:{nobody.getsockname()[1]}")
        lost = replace(table, name="lost-1", bucket="no-such-bucket")
        with Service(tmp_path, BucketRules("own", tables=(gone, lost))) as service:
            status, body = service.call("GET", "/storage/v1/b/far-1/o/x")
            assert (status, "returned an invalid response" in str(body)) == (503, True)
            target = "/upload/storage/v1/b/lost-1/o?uploadType=media&name=x"
            status, lost = service.call("POST", target, b"1")
            assert (status, "[[buckets]]" in str(lost)) == (404, True)
    output = "".join(capfd.readouterr()) + str(body) + str(lost)
    assert KEYS["TEST_STORE_SECRET"] not in output
    assert not any(
        KEYS["TEST_STORE_SECRET"] in path.read_text(errors="replace")
        for path in tmp_path.rglob("*")
        if path.is_file()
    )


def test_client_library_is_not_loaded_without_remote_buckets(tmp_path: Path) -> None:
    """The memory of the bucket process counts for an idle service."""
    script = (
        "import sys; from pathlib import Path; from trainshed.buckets.disk.objects import ObjectStore\n"
        "import trainshed.buckets.process, trainshed.serve.service\n"
        f"ObjectStore(Path({str(tmp_path / 'r')!r})).bucket_store('any')\n"
        "assert 'obstore' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_xml_api_uses_remote_buckets(service: Service, bucket: Any, tmp_path: Path) -> None:
    """Polars, Delta Lake and parallel chunk uploads use the XML API."""
    key = service.address().partition("/with/")[2]

    def ask(method: str, target: str, body: bytes = b"", **headers: str) -> Any:
        sent = {name.replace("_", "-"): text for name, text in headers.items()}
        return send_request(service.port, method, f"/with/{key}/far-1{target}", body, sent)

    assert ask("PUT", "/a%2Fb", b"hello")[0] == 200
    status, headers, content = ask("GET", "/a/b")
    assert (status, content, "last-modified" in headers) == (200, b"hello", True)
    assert ask("PUT", "/a/b", b"x", x_goog_if_generation_match="0")[0] == 412
    assert b"<Key>a/b</Key>" in ask("GET", "?list-type=2&prefix=a%2F")[2]
    assert b"<Key>" not in ask("GET", "?list-type=2&prefix=a%2F&start-after=a%2Fb")[2]
    assert ask("PUT", "/c", x_goog_copy_source="far-1/a%2Fb")[0] == 200
    # Imported here, since each pytest worker loads this file and the import takes 0.3 s.
    from google.cloud.storage import transfer_manager  # pyright: ignore[reportMissingTypeStubs]

    whole = os.urandom(3 * MIB + 5)
    (tmp_path / "content").write_bytes(whole)
    transfer_manager.upload_chunks_concurrently(  # pyright: ignore[reportUnknownMemberType]
        str(tmp_path / "content"), bucket.blob("big"), chunk_size=MIB, worker_type=transfer_manager.THREAD
    )
    assert bucket.blob("big").download_as_bytes() == whole
    assert ask("DELETE", "/big")[0] == 204


def test_error_names_unsupported_protections_of_remote_buckets(bucket: Any) -> None:
    client = bucket.client
    for promise in ("versioning", "defaultEventBasedHold"):
        asking = client.bucket(bucket.name)
        asking.versioning_enabled = promise == "versioning"
        asking.default_event_based_hold = promise == "defaultEventBasedHold"
        with pytest.raises(BadRequest, match=f"{promise} of the bucket, whose objects are"):
            asking.patch()
    bucket.blob("x").upload_from_string("content")
    copied = "/b/far-1/o/x/rewriteTo/b/far-1/o/y"
    with pytest.raises(BadRequest, match="temporaryHold of the object"):
        client._post_resource(copied, {"temporaryHold": True})
    assert not bucket.blob("y").exists()
    bucket.versioning_enabled = False
    bucket.patch()
