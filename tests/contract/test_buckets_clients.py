"""Unmodified clients with the bucket process, directly and through the API's gateway. Only the address is
configured (spec/clients#recipes)."""

from __future__ import annotations

import http.client
import io
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import Forbidden, NotFound, PreconditionFailed

from tests.contract.buckets_service import MIB, Service, client_at, front, send_request, serving
from trainshed.buckets.callers import Caller, Reach, encode_caller


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        yield made


@pytest.fixture
def port(service: Service) -> Iterator[int]:
    """The port of the gateway."""
    with serving(service.gateway()) as gateway_port:
        yield gateway_port


@pytest.fixture
def client(service: Service, port: int) -> Any:
    return client_at(service.address(port))


def test_python_client_uses_remote_buckets(client: Any) -> None:
    bucket = client.create_bucket("bucket-1", location="europe-west4")
    assert bucket.location == "EUROPE-WEST4"
    assert [listed.name for listed in client.list_buckets()] == ["bucket-1"]
    assert client.get_bucket("bucket-1").exists()
    for name in ("a", "a/", "a/b:c é.txt", "d/e/f"):
        bucket.blob(name).upload_from_string(name, content_type="text/plain")
    assert [blob.name for blob in bucket.list_blobs()] == ["a", "a/", "a/b:c é.txt", "d/e/f"]
    listed = bucket.list_blobs(delimiter="/")
    assert ([blob.name for blob in listed], set(listed.prefixes)) == (["a"], {"a/", "d/"})
    assert [blob.name for blob in bucket.list_blobs(page_size=1, prefix="a/")][-1] == "a/b:c é.txt"
    blob = bucket.get_blob("a/b:c é.txt")
    assert blob.download_as_text() == "a/b:c é.txt"
    assert blob.download_as_bytes(start=2, end=3) == b"b:"
    blob.metadata, blob.content_type = {"k": "v"}, "x/y"
    blob.patch()
    again = bucket.get_blob(blob.name)
    assert (again.metadata, again.content_type, again.metageneration) == ({"k": "v"}, "x/y", 2)
    with pytest.raises(PreconditionFailed):
        bucket.blob("a").upload_from_string("no", if_generation_match=0)
    bucket.blob("j").compose([bucket.blob("a"), bucket.blob("d/e/f")])
    assert bucket.blob("j").download_as_bytes() == b"ad/e/f"
    assert bucket.copy_blob(bucket.blob("j"), bucket, "k").exists()
    assert bucket.rename_blob(bucket.get_blob("k"), "l").exists()
    with pytest.raises(NotFound):
        bucket.blob("k").download_as_bytes()
    bucket.delete_blobs([bucket.blob("a"), bucket.blob("a/")])
    with client.batch():
        bucket.delete_blob("j")
        bucket.delete_blob("l")
    assert [left.name for left in bucket.list_blobs()] == ["a/b:c é.txt", "d/e/f"]
    assert bucket.test_iam_permissions(["storage.objects.get"]) == ["storage.objects.get"]
    bucket.delete(force=True)
    assert not client.bucket("bucket-1").exists()


def test_large_objects_use_little_memory(client: Any, service: Service) -> None:
    bucket = client.create_bucket("bucket-1")
    content = os.urandom(MIB) * 100
    bucket.blob("x").upload_from_string(content, checksum="crc32c")
    assert bucket.blob("x").download_as_bytes(checksum="md5") == content
    assert service.process is not None
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    assert int(peak.split()[1]) < 100 * 1024


def test_resumable_upload_survives_a_crash(client: Any, service: Service, port: int) -> None:
    """The unmodified client continues at the last stored byte."""
    bucket = client.create_bucket("bucket-1")
    content = os.urandom(24 * MIB)
    reader = CrashingReader(content, service, at=[6 * MIB, 17 * MIB])
    bucket.blob("big", chunk_size=MIB).upload_from_file(reader, size=len(content))
    assert reader.kills == 2
    assert bucket.get_blob("big").download_as_bytes(checksum="md5") == content


class CrashingReader(io.BytesIO):
    """A file that kills and restarts the service during a read, between two chunks."""

    def __init__(self, content: bytes, service: Service, at: list[int]) -> None:
        super().__init__(content)
        self._service = service
        self._at = at
        self.kills = 0

    def read(self, size: int | None = -1, /) -> bytes:
        if self._at and self.tell() >= self._at[0]:
            self._at.pop(0)
            self.kills += 1
            self._service.stop(signal.SIGKILL)
            self._service.start()
        return super().read(size)


def test_google_python_client_can_use_object_versions_and_holds(client: Any) -> None:
    bucket = client.bucket("bucket-1")
    bucket.versioning_enabled = True
    bucket.create()
    assert client.get_bucket("bucket-1").versioning_enabled
    blob = bucket.blob("x")
    generations: list[int] = []
    for content in ("one", "two"):
        blob.upload_from_string(content)
        generations.append(blob.generation)
    assert [blob.generation for blob in bucket.list_blobs(versions=True)] == generations
    assert bucket.blob("x", generation=generations[0]).download_as_text() == "one"
    blob.temporary_hold = True
    blob.patch()
    for refused in (blob.delete, lambda: bucket.blob("x").upload_from_string("three")):
        with pytest.raises(Forbidden, match="active Temporary hold"):
            refused()
    blob.temporary_hold = False
    blob.patch()
    bucket.delete(force=True)
    assert not bucket.exists()


def test_new_bucket_process_waits_until_the_previous_process_has_ended(service: Service) -> None:
    """A new process waits until the previous one has finished its last request."""
    bucket = client_at(service.address()).create_bucket("bucket-1")
    busy = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    busy.putrequest("POST", "/upload/storage/v1/b/bucket-1/o?uploadType=media&name=last")
    busy.putheader("Content-Length", "2")
    busy.putheader("Authorization", f"Bearer {service.token}")
    busy.putheader("Expect", "100-continue")
    busy.endheaders()
    # Connections that are not yet accepted at the stop signal need no answer.
    go_on = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert busy.sock.recv(len(go_on), socket.MSG_WAITALL) == go_on
    busy.send(b"o")
    assert service.process is not None
    before = service.process
    before.send_signal(signal.SIGTERM)
    successor = threading.Thread(target=service.start)
    successor.start()
    busy.send(b"k")
    assert busy.getresponse().status == 200
    assert before.wait(60) == 0
    successor.join(60)
    assert bucket.blob("last").download_as_bytes() == b"ok"
    busy.close()


class TestGateway:
    def test_gateway_continues_after_a_restart_of_the_bucket_process(self, service: Service) -> None:
        with serving(service.gateway()) as port:
            assert send_request(port, "GET", "/storage/v1/b", headers=service.bearer)[0] == 200
            service.stop(signal.SIGKILL)
            status, answered, body = send_request(port, "GET", "/storage/v1/b", headers=service.bearer)
            assert (status, answered["retry-after"]) == (503, "1")
            assert "restarting" in json.loads(body)["error"]["message"]
            service.start()
            assert send_request(port, "GET", "/storage/v1/b", headers=service.bearer)[0] == 200

    def test_gateway_sets_the_caller_and_drops_forged_headers(self, service: Service) -> None:
        """An identity header of the client is ignored."""
        owner = Caller("forged", {"": Reach.ADMIN})
        forged = {"x-trainshed-identity": encode_caller(owner).decode()}
        known = forged | service.bearer
        with serving(service.gateway()) as port:
            assert send_request(port, "GET", "/storage/v1/b/open-1", headers=forged)[0] == 401
            assert send_request(port, "GET", "/storage/v1/b/open-1", headers=known)[0] == 404

    def test_gateway_preserves_addresses_header_case_and_chunked_bodies(self, service: Service) -> None:
        """spec/clients#tensorflow: libcurl-based clients require capital letters in Location and Range."""
        client_at(service.address()).create_bucket("bucket-1")
        with serving(service.gateway()) as port:
            target = "/upload/storage/v1/b/bucket-1/o?uploadType=resumable&name=x"
            sent = {"Host": "storage.example:77", **service.bearer}
            _, headers, _ = send_request(port, "POST", target, headers=sent, lower=False)
            location = headers["Location"]
            assert location.startswith("http://storage.example:77/upload/storage/v1/")
            session = location.removeprefix("http://storage.example:77")
            part = {"Content-Range": "bytes 0-2/*", **service.bearer}
            status, headers, _ = send_request(port, "PUT", session, b"abc", part, lower=False)
            assert (status, headers["Range"]) == (308, "bytes=0-2")
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request(
                "PUT",
                session,
                iter([b"d" * 100_000, b"e"]),
                {"Content-Range": "bytes 3-100003/100004", **service.bearer},
                encode_chunked=True,
            )
            assert json.loads(connection.getresponse().read())["size"] == "100004"
            head_of = "/download/storage/v1/b/bucket-1/o/x?alt=media"
            connection.request("HEAD", head_of, headers=service.bearer)
            head = connection.getresponse()
            assert (head.read(), head.headers["Content-Length"]) == (b"", "100004")
            connection.close()


@pytest.mark.parametrize("way", ["port", "gateway"])
@pytest.mark.parametrize("closes", [True, False])
def test_early_rejection_reaches_clients_that_send_the_whole_body(
    service: Service, way: str, closes: bool
) -> None:
    """A client sends its whole body before it reads the response. Earlier, under load, such clients received
    a 503 or no response instead of a 400, 403, 404 or 412, and repeated the request for minutes."""
    service.call("POST", "/storage/v1/b?project=p", {"name": "refusing"})
    service.put("refusing", "x", b"old")
    media = "/upload/storage/v1/b/{}/o?uploadType=media&name=x"
    targets: list[tuple[int, str, dict[str, str]]] = [
        (404, media.format("nowhere"), service.bearer),
        (401, media.format("refusing"), {}),
        (412, media.format("refusing") + "&ifGenerationMatch=0", service.bearer),
        (400, media.format("refusing") + "&kmsKeyName=k", service.bearer),
    ]
    body = b"x" * (8 * MIB)

    def send(number: int) -> tuple[int, int]:
        status, target, headers = targets[number % len(targets)]
        last = {"Connection": "close"} if closes else {}
        return status, send_request(port, "POST", target, body, {**headers, **last})[0]

    with ExitStack() as stack:
        port = service.port if way == "port" else stack.enter_context(front(service.gateway()))
        with ThreadPoolExecutor(24) as pool:
            for expected, status in pool.map(send, range(96)):
                assert status == expected
