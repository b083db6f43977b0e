"""Uploads to the storage API without a socket: resumable ones, sizes, and checksums."""

from __future__ import annotations

import pytest

from tests.unit.storage_api import ITEM, UPLOAD, Ask, ask, crc, md5, store
from trainshed.buckets.disk.catalog import state_directory
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.rest.calls import VerbatimName

__all__ = ["ask", "store"]


def test_resumable_upload_accepts_chunks(ask: Ask) -> None:
    """spec/clients#uploads: sessions also exist below /resumable/upload, at the request's own host."""
    start = ask(
        "POST",
        "/resumable" + UPLOAD + "?uploadType=resumable",
        {"name": "big", "metadata": {"k": "v"}},
        x_upload_content_type="t/x",
    )
    address = start.headers["location"]
    assert address.startswith("http://h:1/resumable/upload/storage/v1/b/bucket/o?")
    target = address.removeprefix("http://h:1")
    assert ask("PUT", target, content_range="bytes */*").status == 308
    part = ask("PUT", target, [b"he", b"l"], content_range="bytes 0-2/*")
    assert (part.status, part.headers["range"]) == (308, "bytes=0-2")
    assert VerbatimName(b"Range") in part.raw_names
    cut = ask("PUT", target, [b"l"], gone=True, content_range="bytes 3-4/5")
    assert cut.status == 0
    status = ask("PUT", target, content_range="bytes */5")
    assert status.headers["range"] == "bytes=0-3"
    gap = ask("PUT", target, b"!", content_range="bytes 9-9/10")
    assert (gap.status, gap.headers["range"]) == (308, "bytes=0-3")
    last = ask("PUT", target, b"llo", content_range="bytes 2-4/5")  # overlaps stored bytes
    assert (last.status, last.json["size"], last.json["contentType"]) == (200, "5", "t/x")
    assert last.json["metadata"] == {"k": "v"}
    assert ask("PUT", target, b"llo", content_range="bytes 2-4/5").json == last.json
    assert ask("PUT", target, content_range="bytes */5").json == last.json
    assert ask("GET", ITEM + "big?alt=media").body == b"hello"


def test_upload_whose_size_differs_from_the_announced_size_is_rejected(ask: Ask) -> None:
    start = ask("POST", UPLOAD + "?uploadType=resumable&name=x", x_upload_content_length="5")
    target = start.headers["location"].removeprefix("http://h:1")
    part = ask("PUT", target, b"hel")
    assert (part.status, part.headers["range"]) == (308, "bytes=0-2")
    assert ask("GET", ITEM + "x").status == 404
    assert ask("PUT", target, b"", content_range="bytes 3-2/3").status == 400
    assert ask("PUT", target, b"hello!").status == 400


def test_upload_of_unknown_size_is_complete_at_the_end_of_its_last_request(ask: Ask) -> None:
    """The client for Node.js uploads content above 5 MB without announcing the size."""
    start = ask("POST", UPLOAD + "?uploadType=resumable&name=x")
    target = start.headers["location"].removeprefix("http://h:1")
    assert ask("PUT", target, [b"he"], gone=True, content_range="bytes 0-*/*").status == 0
    assert ask("PUT", target, b"o", content_range="bytes 4-*/*").status == 308, "a gap"
    assert ask("PUT", target, b"llo", content_range="bytes 2-*/*").json["size"] == "5"


def test_client_may_request_a_response_header_in_place_of_the_status_308(ask: Ask) -> None:
    """Go's client libraries request the header, because they treat the status 308 as a failure
    (google.golang.org/api, gensupport)."""
    start = ask("POST", UPLOAD + "?uploadType=resumable&name=big")
    target = start.headers["location"].removeprefix("http://h:1")
    part = ask("PUT", target, b"hel", content_range="bytes 0-2/*", x_guploader_no_308="yes")
    assert (part.status, part.headers["x-http-status-code-override"]) == (200, "308")
    assert part.headers["range"] == "bytes=0-2"
    last = ask("PUT", target, b"lo", content_range="bytes 3-4/5", x_guploader_no_308="yes")
    assert (last.status, last.json["size"]) == (200, "5")
    assert "x-http-status-code-override" not in last.headers


def test_interrupted_upload_leaves_no_object(ask: Ask, store: ObjectStore) -> None:
    assert ask("POST", f"{UPLOAD}?uploadType=media&name=x", [b"torn"], gone=True).status == 0
    assert ask("GET", ITEM + "x").status == 404
    assert list((state_directory(store.root) / "tmp").iterdir()) == []


def start_resumable_upload(ask: Ask, resource: dict[str, str], **headers: str) -> str:
    """Return the address of a new session."""
    started = ask("POST", f"{UPLOAD}?uploadType=resumable&name=a", {**resource}, **headers)
    assert started.status == 200, started.body
    return "/" + started.headers["location"].split("/", 3)[3]


@pytest.mark.parametrize("kind", ["crc32c", "md5"])
@pytest.mark.parametrize("place", ["metadata", "start", "first", "last", "none"])
@pytest.mark.parametrize("is_right", [True, False])
def test_every_checksum_of_a_resumable_upload_is_verified(
    ask: Ask, kind: str, place: str, is_right: bool
) -> None:
    """Both checksums count: the checksum in the first request, and the checksum that the Python client sends
    with the last chunk."""
    digest = (crc if kind == "crc32c" else md5)(b"hello" if is_right else b"other")
    wrong = {"x_goog_hash": f"{kind}={digest}"}
    # The client's checksum at the end is always correct.
    right = {"x_goog_hash": f"crc32c={crc(b'hello')}"}
    field = "crc32c" if kind == "crc32c" else "md5Hash"
    at = start_resumable_upload(
        ask, {field: digest} if place == "metadata" else {}, **(wrong if place == "start" else {})
    )
    first = ask("PUT", at, b"he", content_range="bytes 0-1/*", **(wrong if place == "first" else {}))
    assert first.status == 308
    sent = wrong if place == "last" else right
    last = ask("PUT", at, b"llo", content_range="bytes 2-4/5", **sent)
    assert last.status == (200 if is_right or place == "none" else 400), last.body
    assert ask("GET", f"{ITEM}a").status == (200 if last.status == 200 else 404)


PARTS = (
    b"--x\r\nContent-Type: application/json\r\n\r\n%b\r\n"
    b"--x\r\nContent-Type: text/plain\r\n%b\r\nhello\r\n--x--\r\n"
)


def test_every_checksum_of_a_single_request_upload_is_verified(ask: Ask) -> None:
    """The checksums are in single or repeated headers, in a part, or in the metadata. Some contradict each
    other."""
    good, bad = crc(b"hello"), crc(b"other")
    kinds = {"content_type": "multipart/related; boundary=x"}
    media, multipart_ = f"{UPLOAD}?uploadType=media&name=a", f"{UPLOAD}?uploadType=multipart&name=a"
    whole = PARTS % (b"{}", b"")
    wrong: list[tuple[str, str, bytes, dict[str, str]]] = [
        ("POST", media, b"hello", {"content_md5": md5(b"other")}),
        ("POST", media, b"hello", {"x_goog_hash": f"crc32c={good},crc32c={bad}"}),
        ("POST", media, b"hello", {"x_goog_hash": f"crc32c={good}, md5={md5(b'other')}"}),
        ("POST", media, b"hello", {"x_goog_hash": "sha256=abc"}),
        ("POST", media, b"hello", {"x_goog_hash": "crc32c=?"}),
        ("POST", multipart_, whole, {**kinds, "content_md5": md5(b"hello")}),
        ("POST", multipart_, PARTS % (b'{"crc32c":"%b"}' % bad.encode(), b""), kinds),
        (
            "POST",
            multipart_,
            PARTS % (b'{"crc32c":"%b"}' % bad.encode(), b""),
            {**kinds, "x_goog_hash": f"crc32c={good}"},
        ),
        ("POST", multipart_, PARTS % (b"{}", b"Content-MD5: abc\r\n"), kinds),
        ("POST", multipart_, PARTS % (b"{}", b"X-Goog-Hash: md5=abc\r\n"), kinds),
        ("PUT", "/bucket/a", b"hello", {"x_goog_hash": f"crc32c={good},md5=abc"}),
    ]
    for number, (method, target, body, headers) in enumerate(wrong):
        refused = ask(method, target, body, **headers)
        assert (refused.status, ask("GET", f"{ITEM}a").status) == (400, 404), number
    for headers in ({"content_md5": md5(whole)}, {"x_goog_hash": f"crc32c={good}"}):
        assert ask("POST", multipart_, whole, **kinds, **headers).status == 200
    for action in ("compose", "rewriteTo/b/bucket/o/b"):
        body = {"sourceObjects": [{"name": "a"}]}
        target = f"{ITEM}{'b/compose' if action == 'compose' else 'a/' + action}"
        assert ask("POST", target, body, x_goog_hash=f"crc32c={bad}").status == 400
        assert ask("GET", f"{ITEM}b").status == 404
    copied = {"x_goog_copy_source": "bucket/a"}
    assert ask("PUT", "/bucket/b", **copied, x_goog_hash=f"crc32c={bad}").status == 400
    assert ask("PUT", "/bucket/b", **copied, x_goog_hash=f"crc32c={good}").status == 200


def test_multipart_upload_checksum_is_verified_at_completion(ask: Ask) -> None:
    """XML API clients send the checksum at the start or the end of the upload."""
    for at_start, at_end in ((True, False), (False, True)):
        wrong = {"x_goog_hash": f"crc32c={crc(b'other')}"}
        started = ask("POST", "/bucket/m?uploads", **(wrong if at_start else {}))
        upload_id = started.body.decode().partition("<UploadId>")[2].partition("<")[0]
        part = ask("PUT", f"/bucket/m?partNumber=1&uploadId={upload_id}", b"hello")
        assert part.status == 200
        listed = "<M><Part><PartNumber>1</PartNumber></Part></M>"
        ended = ask("POST", f"/bucket/m?uploadId={upload_id}", listed.encode(), **(wrong if at_end else {}))
        assert (ended.status, ask("GET", f"{ITEM}m").status) == (400, 404)
