"""The XML API without a socket, with the requests of Rust's `object_store` and google-cloud-storage."""

from __future__ import annotations

import base64
import hashlib
from email.utils import parsedate_to_datetime
from functools import partial
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from tests.unit.storage_api import Ask, ask, put_object, store
from trainshed.access.job_tokens import JobClaims
from trainshed.buckets.authentication import Listener
from trainshed.buckets.callers import Caller
from trainshed.buckets.disk.catalog import state_directory
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.rest.uploads import UploadWriter

__all__ = ["ask", "store"]

OTHER_PROJECTS_PROGRAM = Caller("sa@q", program=JobClaims(7, 1, "workerpool0-0", "q", "sa@q"))


def element_texts(body: bytes, name: str) -> list[str]:
    """Return the texts of all elements with this name."""
    root = ElementTree.fromstring(body)
    return [e.text or "" for e in root.iter() if e.tag.rpartition("}")[2] == name]


def start_multipart_upload(ask: Ask, **headers: str) -> str:
    begun = ask("POST", "/bucket/big?uploads", **headers)
    assert begun.status == 200
    return element_texts(begun.body, "UploadId")[0]


def put_part(ask: Ask, upload: str, number: int, content: bytes) -> str:
    answer = ask("PUT", f"/bucket/big?partNumber={number}&uploadId={upload}", content)
    assert answer.status == 200
    md5 = hashlib.md5(content).digest()
    assert answer.headers["etag"] == f'"{md5.hex()}"'
    assert base64.b64encode(md5).decode() in answer.headers["x-goog-hash"]
    return answer.headers["etag"]


def part_list(*parts: tuple[int, str]) -> bytes:
    inner = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>" for n, etag in parts)
    return f"<CompleteMultipartUpload>{inner}</CompleteMultipartUpload>".encode()


def test_xml_api_writes_reads_and_deletes_an_object(ask: Ask) -> None:
    sent = {"content_type": "text/plain", "x_goog_meta_owner": "me", "cache_control": "no-cache"}
    written = ask("PUT", "/bucket/a%2Fb", b"hello", **sent)
    assert (written.status, written.body) == (200, b"")
    read = ask("GET", "/bucket/a/b?userProject=p&X-Goog-Date=d", range="bytes=1-2")
    assert (read.status, read.body) == (206, b"el")
    # `object_store` treats an answer without one of these as a server error.
    assert read.headers["x-goog-meta-owner"] == "me"
    for name in ("etag", "x-goog-generation"):
        assert read.headers[name] == written.headers[name]
    assert parsedate_to_datetime(read.headers["last-modified"]).tzinfo is not None
    view = ask("GET", "/storage/v1/b/bucket/o/a%2Fb").json
    assert (view["contentType"], view["metadata"]) == ("text/plain", {"owner": "me"})
    assert ask("HEAD", "/bucket/a/b").headers["content-length"] == "5"
    assert ask("PUT", "/bucket/a/b", x_goog_meta_owner=9000 * "v").status == 400
    assert ask("DELETE", "/bucket/a/b").status == 204
    assert ask("DELETE", "/bucket/a/b").status == 404


def test_xml_preconditions_are_read_from_headers(ask: Ask) -> None:
    """With such headers, Delta Lake and Lance prevent two concurrent writers of the same version."""
    only_new = {"x_goog_if_generation_match": "0"}
    first = ask("PUT", "/bucket/log", b"1", **only_new)
    assert first.status == 200
    assert ask("PUT", "/bucket/log", b"2", **only_new).status == 412
    generation = first.headers["x-goog-generation"]
    assert ask("PUT", "/bucket/log", b"3", x_goog_if_generation_match=generation).status == 200
    assert ask("DELETE", "/bucket/log", x_goog_if_generation_match=generation).status == 412
    assert ask("GET", "/bucket/log", if_match=first.headers["etag"]).status == 412
    replaced = {"x_goog_copy_source": "bucket/log", "x_goog_copy_source_generation": generation}
    assert ask("PUT", "/bucket/copy", **replaced).status == 404
    assert ask("GET", "/bucket/log").body == b"3"


def test_xml_upload_with_a_wrong_checksum_is_rejected(ask: Ask) -> None:
    other = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    assert ask("PUT", "/bucket/a", b"hello", content_md5=other).status == 400
    assert ask("PUT", "/bucket/a", b"hello", x_goog_hash=f"md5={other}").status == 400
    at = f"/bucket/big?partNumber=1&uploadId={start_multipart_upload(ask)}"
    assert ask("PUT", at, b"hello", content_md5=other).status == 400
    assert ask("PUT", at, x_goog_copy_source="bucket/a").status == 400
    assert ask("GET", "/bucket/a").status == 404


def list_pages(ask: Ask, query: str, mark: str) -> list[list[str]]:
    """Return the names and prefixes of all pages. `query` ends with the parameter for a page's marker."""
    pages: list[list[str]] = []
    marks = [""]
    while marks:
        page = ask("GET", f"/bucket?{query}={quote(marks[0])}").body
        pages.append([*element_texts(page, "Key"), *filter(None, element_texts(page, "Prefix"))])
        marks = element_texts(page, mark)
    return pages


def test_xml_list_returns_object_names_and_prefixes_in_pages(ask: Ask) -> None:
    for name in ("a", "d%2F1", "d%2F2", "x%26%3Cy%3E", "z"):
        put_object(ask, name, b"12")
    whole = ask("GET", "/bucket?list-type=2&delimiter=%2F").body
    assert element_texts(whole, "Key") == ["a", "x&<y>", "z"]
    assert element_texts(whole, "Size") == ["2", "2", "2"]
    assert element_texts(whole, "Prefix") == ["", "d/"]
    assert element_texts(whole, "IsTruncated") == ["false"]
    # It must equal the ETag of a read.
    assert element_texts(whole, "ETag")[0] == ask("HEAD", "/bucket/a").headers["etag"]
    tokens = ("list-type=2&max-keys=2&continuation-token", "NextContinuationToken")
    assert list_pages(ask, *tokens) == [["a", "d/1"], ["d/2", "x&<y>"], ["z"]]
    markers = ("delimiter=/&max-keys=1&marker", "NextMarker")
    assert list_pages(ask, *markers) == [["a"], ["d/"], ["x&<y>"], ["z"]]
    assert element_texts(ask("GET", "/bucket?max-keys=0").body, "KeyCount") == ["0"]
    after = ask("GET", "/bucket?list-type=2&start-after=d%2F1&prefix=d%2F").body
    assert element_texts(after, "Key") == ["d/2"]
    assert ask("GET", "/nothing?list-type=2").status == 404


def test_completed_multipart_upload_creates_an_object_from_the_uploaded_parts(
    ask: Ask, store: ObjectStore
) -> None:
    """Parts may arrive in any order, and more than once. The object exists only after the completion with the
    list of parts."""
    upload = start_multipart_upload(ask, content_type="text/plain")
    second = put_part(ask, upload, 2, b"world")
    put_part(ask, upload, 1, b"nonsense")
    first = put_part(ask, upload, 1, b"hello ")
    assert ask("GET", "/bucket/big").status == 404
    at = f"/bucket/big?uploadId={upload}"
    listed = part_list((1, first), (2, second))
    done = ask("POST", at, listed)
    assert done.status == 200
    read = ask("GET", "/bucket/big")
    assert (read.body, read.headers["content-type"]) == (b"hello world", "text/plain")
    assert done.headers["x-goog-generation"] == read.headers["x-goog-generation"]
    # A client repeats the request if the answer was lost.
    assert ask("POST", at, listed).headers["x-goog-generation"] == read.headers["x-goog-generation"]
    assert not list(state_directory(store.root).glob("uploads/*/part-*"))


@pytest.mark.parametrize(
    "listed",
    [
        b"",
        b"<CompleteMultipartUpload/>",
        b"<a><Part><PartNumber>x</PartNumber></Part></a>",
        b'<?xml version="1.0" encoding="no-such"?><a/>',
        b'<!DOCTYPE a [<!ENTITY e "e">]><a><Part><PartNumber>1</PartNumber></Part></a>',
        '<!DOCTYPE a [<!ENTITY e "1">]><a><Part><PartNumber>&e;</PartNumber></Part></a>'.encode("utf-16"),
        part_list((2, "")),
        part_list((1, '"0"')),
        part_list((1, ""), (1, "")),
    ],
)
def test_completion_with_an_invalid_list_of_parts_creates_no_object(ask: Ask, listed: bytes) -> None:
    upload = start_multipart_upload(ask)
    etag = put_part(ask, upload, 1, b"x")
    at = f"/bucket/big?uploadId={upload}"
    assert ask("POST", at, listed).status == 400
    assert ask("GET", "/bucket/big").status == 404
    assert ask("POST", at, part_list((1, etag))).status == 200


def test_repeated_completion_of_a_multipart_upload_does_not_interrupt_the_first(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client repeats the request if the completion of large parts takes longer than its timeout."""
    at = f"/bucket/big?uploadId={start_multipart_upload(ask)}"
    put_part(ask, at.rpartition("=")[2], 1, b"x")
    repeated: list[int] = []

    def restart(writer: UploadWriter) -> None:
        monkeypatch.undo()
        repeated.append(ask("POST", at, part_list((1, ""))).status)
        writer.restart()

    monkeypatch.setattr(UploadWriter, "restart", restart)
    assert ask("POST", at, part_list((1, ""))).status == 200
    assert repeated == [503]


def test_cancelled_multipart_upload_leaves_no_files(ask: Ask, store: ObjectStore) -> None:
    upload = start_multipart_upload(ask)
    put_part(ask, upload, 1, b"x")
    assert ask("DELETE", f"/bucket/big?uploadId={upload}").status == 204
    assert not list((state_directory(store.root) / "uploads").iterdir())
    for method, query in (("PUT", "partNumber=1&"), ("POST", ""), ("DELETE", "")):
        assert ask(method, f"/bucket/big?{query}uploadId={upload}", part_list((1, ""))).status == 404
    for number in ("0", "10001", "x", ""):
        assert ask("PUT", f"/bucket/big?partNumber={number}&uploadId=any", b"x").status == 400


def test_program_cannot_access_buckets_of_another_project_by_the_xml_api(
    ask: Ask, store: ObjectStore
) -> None:
    store.catalog.create("theirs", project="q")
    put_object(ask, "a", b"secret")
    upload = start_multipart_upload(ask)
    ask = partial(ask, listener=Listener.REPLICA, caller=OTHER_PROJECTS_PROGRAM)
    for method, target in (
        ("GET", "/bucket?list-type=2"),
        ("GET", "/bucket/a"),
        ("PUT", "/bucket/a"),
        ("DELETE", "/bucket/a"),
        ("POST", "/bucket/a?uploads"),
        ("PUT", f"/bucket/big?partNumber=1&uploadId={upload}"),
        ("POST", f"/bucket/big?uploadId={upload}"),
        ("DELETE", f"/bucket/big?uploadId={upload}"),
    ):
        assert ask(method, target).status == 403, target
    assert ask("PUT", "/theirs/a", x_goog_copy_source="bucket/a").status == 403
    assert ask("PUT", "/bucket/a", x_goog_copy_source="theirs/a").status == 403
    # An upload belongs to one bucket.
    assert ask("POST", f"/theirs/big?uploadId={upload}").status in {400, 404}
    assert ask("DELETE", f"/theirs/big?uploadId={upload}").status == 404
    assert ask("PUT", "/theirs/a").status == 200


def test_errors_of_xml_requests_have_the_status_and_code_of_the_xml_api(ask: Ask) -> None:
    ask("PUT", "/bucket/a", b"1")
    list_of_none = part_list((1, '"x"'))
    refusals = {
        ("GET", "/bucket/<b>&"): (404, "NoSuchKey"),
        ("DELETE", "/bucket/b"): (404, "NoSuchKey"),
        ("GET", "/nowhere?list-type=2"): (404, "NoSuchBucket"),
        ("PUT", "/nowhere/a"): (404, "NoSuchBucket"),
        ("POST", "/bucket/a?uploadId=none"): (404, "NoSuchUpload"),
        ("PUT", "/bucket/a?partNumber=0&uploadId=none"): (400, "InvalidArgument"),
        ("GET", "/bucket?cors"): (400, "NotImplemented"),
        ("GET", "/bucket/a?acl"): (400, "NotImplemented"),
        ("GET", "/bucket/a?uploadId=U"): (400, "NotImplemented"),
        ("PUT", "/bucket/a?compose"): (400, "NotImplemented"),
        ("PUT", "/bucket/a?partNumber=1"): (400, "NotImplemented"),
        ("DELETE", "/bucket/a?tagging"): (400, "NotImplemented"),
    }
    for (method, target), (status, code) in refusals.items():
        answer = ask(method, target, list_of_none)
        assert (answer.status, element_texts(answer.body, "Code")) == (status, [code]), target
        assert answer.headers["content-type"] == "application/xml; charset=UTF-8"
    assert element_texts(ask("GET", "/bucket/<b>&").body, "Message") == ["No such object: bucket/<b>&"]
    assert b"GET acl at /bucket/a is not" in ask("GET", "/bucket/a?acl").body
    exists = ask("PUT", "/bucket/a", b"2", x_goog_if_generation_match="0")
    assert (exists.status, element_texts(exists.body, "Code")) == (412, ["PreconditionFailed"])
    behind = ask("GET", "/bucket/a", range="bytes=9-")
    assert (behind.status, element_texts(behind.body, "Code")) == (416, ["InvalidRange"])
    assert behind.headers["content-range"] == "bytes */1"
