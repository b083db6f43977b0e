"""Methods of the storage API without a socket: reads, buckets, copies, batches, and errors."""

from __future__ import annotations

import errno
import gzip
import os
from typing import Any
from unittest.mock import Mock

import pytest

from tests.open_files import find_open_files
from tests.unit.storage_api import ITEM, UPLOAD, Ask, ask, put_object, store
from trainshed.buckets.callers import Caller
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.rest import multipart
from trainshed.core.names import project_number

__all__ = ["ask", "store"]


def test_links_in_object_resources_use_the_address_in_the_request(ask: Ask) -> None:
    view = put_object(ask, "a%2Fb", b"hello", content_type="text/plain")
    assert view["selfLink"] == "http://h:1/storage/v1/b/bucket/o/a%2Fb"
    assert (view["size"], view["crc32c"], view["contentType"]) == ("5", "mnG7TA==", "text/plain")
    forwarded = ask("GET", ITEM + "a%2Fb", x_forwarded_proto="https")
    assert forwarded.json["selfLink"].startswith("https://h:1/")
    link = view["mediaLink"].removeprefix("http://h:1")
    assert ask("GET", link).body == b"hello"
    assert ask("GET", ITEM + "a%2Fb?alt=media").body == b"hello"
    assert ask("GET", ITEM + "a%2Fb?alt=json&prettyPrint=false&fields=name").json["name"] == "a/b"
    # The public form, and the form of the Node.js client with STORAGE_EMULATOR_HOST.
    for target in ("/bucket/a/b", "/b/bucket/o/a%2Fb?alt=media"):
        assert ask("GET", target).body == b"hello"
    # A page of another host name cannot read (DNS rebinding).
    assert ask("GET", link, host="evil.example").status == 421


@pytest.mark.parametrize(
    ("wanted", "status", "content", "header"),
    [
        ("bytes=0-0", 206, b"0", "bytes 0-0/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=5-99", 206, b"56789", "bytes 5-9/10"),
        ("bytes=3-2", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        ("bytes=10-", 416, None, "bytes */10"),
    ],
)
def test_request_with_a_byte_range_returns_only_the_requested_bytes(
    ask: Ask, wanted: str, status: int, content: bytes | None, header: str | None
) -> None:
    put_object(ask, "x", b"0123456789")
    answer = ask("GET", ITEM + "x?alt=media", range=wanted)
    assert answer.status == status
    assert answer.headers.get("content-range") == header
    if content is not None:
        assert answer.body == content
        assert answer.headers["content-length"] == str(len(content))


def test_range_request_with_an_outdated_if_range_header_returns_all_content(ask: Ask) -> None:
    """Otherwise a continued download would contain parts of two generations."""
    put_object(ask, "x", b"0123")
    tag = ask("GET", ITEM + "x?alt=media").headers["etag"]
    ranges = {"range": "bytes=2-", "if_range": f'"{tag}"'}
    assert ask("GET", ITEM + "x?alt=media", **ranges).body == b"23"
    put_object(ask, "x", b"abcd")
    assert ask("GET", ITEM + "x?alt=media", **ranges).body == b"abcd"


@pytest.mark.parametrize("fault", [(errno.ENOSPC, 503, "is full"), (errno.EXDEV, 403, "another file system")])
def test_full_disk_is_logged_in_a_single_line_without_a_traceback(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: tuple[int, int, str]
) -> None:
    """Each retry logs the error again, and the log may be on the full disk."""
    number, status, words = fault
    monkeypatch.setattr(os, "rename", Mock(side_effect=OSError(number, os.strerror(number))))
    refused = ask("POST", "/upload/storage/v1/b/bucket/o?uploadType=media&name=a", b"x")
    assert (refused.status, words in refused.body.decode()) == (status, True)
    logged = [(record.levelname, record.exc_info) for record in caplog.records]
    assert logged == [("WARNING", None)] * (number == errno.ENOSPC)


def test_gzip_object_is_decompressed_for_clients_that_do_not_accept_gzip(ask: Ask) -> None:
    content = b"text " * 500_000
    packed = gzip.compress(content[:7]) + gzip.compress(content[7:])  # two gzip members, as after a compose
    packed += bytes(3)
    answer = ask("POST", f"{UPLOAD}?uploadType=media&name=z&contentEncoding=gzip", packed)
    assert answer.json["size"] == str(len(packed))
    kept = ask("GET", ITEM + "z?alt=media", accept_encoding="gzip")
    assert (kept.body, kept.headers["content-encoding"]) == (packed, "gzip")
    plain = ask("GET", ITEM + "z?alt=media")
    assert plain.body == content
    assert "content-encoding" not in plain.headers
    assert "content-length" not in ask("HEAD", ITEM + "z?alt=media").headers
    # Content that is compressed only in transit (gsutil cp -J, gcloud storage cp --gzip-in-flight) is
    # decompressed.
    put_object(ask, "w", gzip.compress(content), content_encoding="gzip")
    assert ask("GET", ITEM + "w?alt=media", accept_encoding="gzip").body == content
    for wrong in (content, packed[:-9]):
        target = f"{UPLOAD}?uploadType=media&name=x"
        assert ask("POST", target, wrong, content_encoding="gzip").status == 400
    # A JSON body is also decompressed, with the same limit as an uncompressed one.
    for body, status in ((b'{"metadata": {"k": "v"}}', 200), (b" " * (2 << 20), 400)):
        patched = ask("PATCH", f"{ITEM}w", gzip.compress(body), content_encoding="gzip")
        assert patched.status == status
    assert ask("GET", f"{ITEM}w").json["metadata"] == {"k": "v"}
    # Java clients send only GET, POST, PUT and DELETE. A query in a body is not supported.
    java = {"x_http_method_override": "PATCH"}
    assert ask("POST", f"{ITEM}w", {"metadata": {"k": "w"}}, **java).json["metadata"] == {"k": "w"}
    form = {"x_http_method_override": "GET", "content_type": "application/x-www-form-urlencoded"}
    assert ask("POST", ITEM[:-1], b"prefix=x", **form).status == 400


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("POST", "/storage/v1/b/bucket/o/x/restore", 400),
        ("POST", "/storage/v1/b/bucket/notificationConfigs", 400),
        ("POST", "/storage/v1/b/bucket/o", 400),
        ("GET", "/storage/v1/projects/p/hmacKeys", 400),
        ("POST", UPLOAD + "?uploadType=other&name=x", 400),
        ("POST", UPLOAD + "?uploadType=media", 400),
        ("GET", "/storage/v1/b/no-such-bucket/o", 404),
        # An empty object name does not refer to the bucket.
        ("DELETE", ITEM, 404),
        ("PUT", ITEM, 404),
        ("GET", ITEM + "x?generation=abc", 400),
        ("PUT", UPLOAD + "?upload_id=abc", 404),
        ("PUT", f"{UPLOAD}?upload_id={300 * 'a'}", 404),
    ],
)
def test_unsupported_storage_requests_are_rejected_with_an_error_message(
    ask: Ask, method: str, target: str, status: int
) -> None:
    """spec/clients#storage: an unknown verb is never an empty 200, nor an error that gcloud retries for 30
    seconds."""
    answer = ask(method, target)
    assert (answer.status, answer.json["error"]["code"]) == (status, status)
    assert answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("POST", "/storage/v1/b", b'{"a":' * 100_000),
        ("POST", "/storage/v1/b", {"name": "another", "labels": [1]}),
        ("PATCH", "/storage/v1/b/bucket", {"labels": 5}),
        ("PUT", "/storage/v1/b/bucket/iam", {"bindings": [5]}),
        ("PUT", "/storage/v1/b/bucket/iam", {"bindings": [{"role": "r", "members": "m"}]}),
        ("PATCH", f"{ITEM}x", {"metadata": 5}),
        ("PATCH", f"{ITEM}x", {"contentType": {"a": "b"}, "customTime": 5}),
        ("PATCH", f"{ITEM}x", {"customTime": "soon"}),
        ("PATCH", f"{ITEM}x", {"storageClass": "FAST"}),
        ("PATCH", f"{ITEM}x", {"metadata": {"k": 9000 * "v"}}),
        ("PATCH", f"{ITEM}x", {"metadata": {"k": True}}),
        ("PATCH", f"{ITEM}x", {"temporaryHold": 1}),
        ("PATCH", "/storage/v1/b/bucket", {"versioning": {"enabled": 1}}),
        ("PATCH", "/storage/v1/b/bucket", {"storageClass": ["STANDARD"]}),
        ("PATCH", "/storage/v1/b/bucket", {"labels": {"k": {"a": "b"}}}),
        ("POST", f"{ITEM}y/compose", {"sourceObjects": [{"name": "x", "objectPreconditions": 1}]}),
        ("POST", f"{UPLOAD}?uploadType=resumable&name=x", {"metadata": [1]}),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_resource_property_with_a_wrong_type_causes_status_400(
    ask: Ask, method: str, target: str, body: bytes | dict[str, Any]
) -> None:
    """If the service stored the property, clients in typed languages could not parse a list with this
    object."""
    ask("POST", f"{UPLOAD}?uploadType=media&name=x", b"content")
    assert ask(method, target, body).status == 400


def test_custom_time_of_an_object_is_converted_to_utc(ask: Ask) -> None:
    """The Python client accepts only UTC."""
    ask("POST", f"{UPLOAD}?uploadType=media&name=x", b"content")
    patched = ask("PATCH", ITEM + "x", {"customTime": "2026-01-31T12:00:00.5+02:00"})
    assert patched.json["customTime"] == "2026-01-31T10:00:00.500000Z"


def test_object_copy_stops_when_the_client_disconnects(ask: Ask, store: ObjectStore) -> None:
    """Without this, copies of a sparse file of several terabytes block all threads for hours."""
    with (store.root / "bucket" / "sparse").open("wb") as file:
        file.truncate(4 << 20)
    copied = ask("PUT", "/bucket/copy", gone=True, x_goog_copy_source="bucket/sparse")
    assert (copied.status, ask("GET", ITEM + "copy").status) == (0, 404)


def test_storage_api_copies_rewrites_and_moves_objects(ask: Ask) -> None:
    put_object(ask, "x", b"1", content_type="t/x")
    done = ask("POST", ITEM + "x/rewriteTo/b/bucket/o/y%2Fz", {"metadata": {"k": "v"}}).json
    assert (done["done"], done["resource"]["name"]) == (True, "y/z")
    assert (done["resource"]["metadata"], done["resource"]["contentType"]) == ({"k": "v"}, "t/x")
    assert ask("POST", ITEM + "x/copyTo/b/bucket/o/c").json["contentType"] == "t/x"
    # Go's client library, and so rclone, sends this body for a copy without changes.
    nothing = ask("POST", ITEM + "x/rewriteTo/b/bucket/o/n", b"null\n").json
    assert (nothing["done"], nothing["resource"]["contentType"]) == (True, "t/x")
    assert ask("POST", ITEM + "x/copyTo/b/bucket/o/c?ifGenerationMatch=0").status == 412
    assert ask("POST", ITEM + "x/copyTo/b/bucket/o/d?ifSourceGenerationMatch=1").status == 412
    for way in ("copyTo/b/bucket", "moveTo"):
        assert ask("POST", f"{ITEM}x/{way}/o/d?ifSourceMetagenerationNotMatch=1").status == 412
    assert ask("POST", ITEM + "x/moveTo/o/m").json["name"] == "m"
    assert ask("GET", ITEM + "x").status == 404


def test_failed_object_copy_closes_the_source_file(
    ask: Ask, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_object(ask, "x", b"1")
    monkeypatch.setattr(store, "stage", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
    before = find_open_files(store.root)
    assert ask("POST", ITEM + "x/copyTo/b/bucket/o/c").status == 503
    assert find_open_files(store.root) == before


def test_bucket_deleted_while_buckets_are_listed_is_omitted(
    ask: Ask, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.catalog, "names", Mock(return_value=["bucket", "deleted"]))
    assert [item["name"] for item in ask("GET", "/storage/v1/b").json["items"]] == ["bucket"]


def test_bucket_methods_create_list_change_and_delete_buckets(ask: Ask) -> None:
    made = ask("POST", "/storage/v1/b?project=p", {"name": "second", "location": "eu"})
    assert (made.json["location"], made.json["locationType"]) == ("EU", "multi-region")
    assert ask("POST", "/storage/v1/b?project=p", {"name": "second"}).status == 409
    page = ask("GET", "/storage/v1/b?maxResults=1").json
    token = page["nextPageToken"]
    rest = ask("GET", f"/storage/v1/b?maxResults=1&pageToken={token}").json
    assert [item["name"] for item in page["items"] + rest["items"]] == ["bucket", "second"]
    assert "nextPageToken" not in rest
    of_p = ask("GET", "/storage/v1/b?project=p").json["items"]
    assert [item["name"] for item in of_p] == ["second"]
    for part in ("storageLayout", "managedFolders", "iam"):
        assert ask("GET", f"/storage/v1/b/second/{part}").status == 200
    policy = ask("GET", "/storage/v1/b/second/iam").json
    policy["bindings"] = [{"role": "r", "members": ["m"]}]
    assert ask("PUT", "/storage/v1/b/second/iam", policy).status == 200
    assert ask("GET", "/storage/v1/b/second/iam").json["bindings"] == policy["bindings"]
    # Without this check, one of two concurrent role changes would be lost.
    assert ask("PUT", "/storage/v1/b/second/iam", policy).status == 412
    wanted = ["storage.objects.get", "storage.objects.fly", "a", "storage.buckets.update"]
    query = "&".join(f"permissions={permission}" for permission in wanted)
    tested = ask("GET", f"/storage/v1/b/second/iam/testPermissions?{query}")
    assert tested.json["permissions"] == ["storage.objects.get", "storage.buckets.update"]
    put_object(ask, "x", b"")
    assert ask("DELETE", "/storage/v1/b/bucket").status == 409
    assert ask("DELETE", "/storage/v1/b/second").status == 204


DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("GET", ITEM + "x?alt=media", {"range": f"bytes={DIGITS}-"}),
        ("GET", ITEM + "x?alt=media", {"range": f"bytes=0-{DIGITS}"}),
        ("GET", ITEM + "x?alt=media", {"range": f"bytes=-{DIGITS}"}),
        ("GET", f"{ITEM}x?generation={DIGITS}", {}),
        ("GET", f"{ITEM}x?ifGenerationMatch=-{DIGITS}", {}),
        ("GET", f"/storage/v1/b/bucket/o?maxResults={DIGITS}", {}),
        ("POST", UPLOAD + "?uploadType=resumable&name=y", {"x_upload_content_length": DIGITS}),
        ("PUT", "", {"content_range": f"bytes 0-{DIGITS}/{DIGITS}"}),
        ("PUT", "", {"content_range": f"bytes {DIGITS}-*/5"}),
        ("PUT", "", {"content_range": f"bytes */{DIGITS}"}),
    ],
)
def test_number_with_thousands_of_digits_causes_status_400(
    ask: Ask, method: str, target: str, headers: dict[str, str]
) -> None:
    """Python converts at most 4,300 digits to an integer. An empty upload target selects the next chunk of an
    upload."""
    put_object(ask, "x", b"hello")
    started = ask("POST", UPLOAD + "?uploadType=resumable&name=y")
    place = started.headers["location"].removeprefix("http://h:1")
    answer = ask(method, target or place, **headers)
    assert answer.status == 400, answer.body
    assert b"5000 digits" in answer.body
    assert ask("PUT", place, b"hello", content_range="bytes 0-4/5").status == 200


def test_batch_request_within_a_batch_request_is_rejected(ask: Ask) -> None:
    head = b"--b%d\r\nContent-Type: multipart/mixed; boundary=b%d\r\n\r\n"
    nested = b"".join(head % (n, n + 1) for n in range(5000))
    answer = ask("POST", "/batch/storage/v1", nested, content_type="multipart/mixed; boundary=b0")
    assert answer.status == 400


def test_requests_of_a_batch_beyond_the_response_size_limit_are_rejected(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multipart, "_MAX_ANSWER_BYTES", 100)
    part = b"--b\r\n\r\nGET %sx\r\n\r\n" % ITEM.encode()
    sent = {"content_type": "multipart/mixed; boundary=b", "content_encoding": "gzip"}
    answer = ask("POST", "/batch/storage/v1", gzip.compress(2 * part + b"--b--"), **sent)
    assert (answer.body.count(b"HTTP/1.1 404"), answer.body.count(b"HTTP/1.1 400")) == (1, 1)


def test_storage_service_account_and_default_bucket_settings_are_returned(ask: Ask) -> None:
    number = project_number("p1")
    account = ask("GET", "/storage/v1/projects/p1/serviceAccount").json
    email = f"service-{number}@gs-project-accounts.iam.gserviceaccount.com"
    assert account == {"kind": "storage#serviceAccount", "email_address": email}
    refused = ask("GET", "/storage/v1/projects/p1/serviceAccount", caller=Caller("bo@test"))
    assert refused.status == 403
    assert ask("GET", "/storage/v1/projects/p1/hmacKeys").status == 400
    bucket = ask("GET", "/storage/v1/b/bucket").json
    assert (bucket["rpo"], bucket["hierarchicalNamespace"]) == ("DEFAULT", {"enabled": False})
