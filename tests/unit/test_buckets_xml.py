"""The XML API without a socket, as `object_store` of Rust and google-cloud-storage ask it."""

from __future__ import annotations

import base64
import hashlib
from email.utils import parsedate_to_datetime
from functools import partial
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from tests.unit.test_buckets_http import Ask, ask, put, store
from trainshed.access.job_tokens import JobClaims
from trainshed.buckets.authentication import Listener
from trainshed.buckets.callers import Caller
from trainshed.buckets.disk.catalog import state_directory
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.rest.uploads import UploadWriter

__all__ = ["ask", "store"]

_STRANGER = Caller("sa@q", program=JobClaims(7, 1, "workerpool0-0", "q", "sa@q"))


def _said(body: bytes, name: str) -> list[str]:
    """The texts of all elements of that name."""
    root = ElementTree.fromstring(body)
    return [e.text or "" for e in root.iter() if e.tag.rpartition("}")[2] == name]


def _begin(ask: Ask, **headers: str) -> str:
    begun = ask("POST", "/bucket/big?uploads", **headers)
    assert begun.status == 200
    return _said(begun.body, "UploadId")[0]


def _part(ask: Ask, upload: str, number: int, content: bytes) -> str:
    answer = ask("PUT", f"/bucket/big?partNumber={number}&uploadId={upload}", content)
    assert answer.status == 200
    md5 = hashlib.md5(content).digest()
    assert answer.headers["etag"] == f'"{md5.hex()}"'
    assert base64.b64encode(md5).decode() in answer.headers["x-goog-hash"]
    return answer.headers["etag"]


def _list_of(*parts: tuple[int, str]) -> bytes:
    inner = "".join(
        f"<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>" for n, etag in parts
    )
    return f"<CompleteMultipartUpload>{inner}</CompleteMultipartUpload>".encode()


def test_an_object_is_put_read_and_deleted(ask: Ask) -> None:
    sent = {"content_type": "text/plain", "x_goog_meta_owner": "me", "cache_control": "no-cache"}
    written = ask("PUT", "/bucket/a%2Fb", b"hello", **sent)
    assert (written.status, written.body) == (200, b"")
    read = ask("GET", "/bucket/a/b?userProject=p&X-Goog-Date=d", range="bytes=1-2")
    assert (read.status, read.body) == (206, b"el")
    # `object_store` takes an answer without any of these for a fault of the server.
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


def test_preconditions_come_as_headers(ask: Ask) -> None:
    """By this Delta Lake and Lance make sure that two writers do not both write one version."""
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


def test_content_that_is_not_what_was_announced_is_refused(ask: Ask) -> None:
    other = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    assert ask("PUT", "/bucket/a", b"hello", content_md5=other).status == 400
    assert ask("PUT", "/bucket/a", b"hello", x_goog_hash=f"md5={other}").status == 400
    at = f"/bucket/big?partNumber=1&uploadId={_begin(ask)}"
    assert ask("PUT", at, b"hello", content_md5=other).status == 400
    assert ask("PUT", at, x_goog_copy_source="bucket/a").status == 400
    assert ask("GET", "/bucket/a").status == 404


def _pages(ask: Ask, query: str, mark: str) -> list[list[str]]:
    """The names and prefixes of all pages; `query` ends with the parameter that takes a page's mark."""
    pages: list[list[str]] = []
    marks = [""]
    while marks:
        page = ask("GET", f"/bucket?{query}={quote(marks[0])}").body
        pages.append([*_said(page, "Key"), *filter(None, _said(page, "Prefix"))])
        marks = _said(page, mark)
    return pages


def test_a_list_has_names_prefixes_and_pages(ask: Ask) -> None:
    for name in ("a", "d%2F1", "d%2F2", "x%26%3Cy%3E", "z"):
        put(ask, name, b"12")
    whole = ask("GET", "/bucket?list-type=2&delimiter=%2F").body
    assert _said(whole, "Key") == ["a", "x&<y>", "z"]
    assert _said(whole, "Size") == ["2", "2", "2"]
    assert _said(whole, "Prefix") == ["", "d/"]
    assert _said(whole, "IsTruncated") == ["false"]
    # It has to be the one that a read tells.
    assert _said(whole, "ETag")[0] == ask("HEAD", "/bucket/a").headers["etag"]
    tokens = ("list-type=2&max-keys=2&continuation-token", "NextContinuationToken")
    assert _pages(ask, *tokens) == [["a", "d/1"], ["d/2", "x&<y>"], ["z"]]
    markers = ("delimiter=/&max-keys=1&marker", "NextMarker")
    assert _pages(ask, *markers) == [["a"], ["d/"], ["x&<y>"], ["z"]]
    assert _said(ask("GET", "/bucket?max-keys=0").body, "KeyCount") == ["0"]
    after = ask("GET", "/bucket?list-type=2&start-after=d%2F1&prefix=d%2F").body
    assert _said(after, "Key") == ["d/2"]
    assert ask("GET", "/nothing?list-type=2").status == 404


def test_an_upload_in_parts(ask: Ask, store: ObjectStore) -> None:
    """Parts come in any order, one again; the object is there when the list of them is, and not before."""
    upload = _begin(ask, content_type="text/plain")
    second = _part(ask, upload, 2, b"world")
    _part(ask, upload, 1, b"nonsense")
    first = _part(ask, upload, 1, b"hello ")
    assert ask("GET", "/bucket/big").status == 404
    at = f"/bucket/big?uploadId={upload}"
    listed = _list_of((1, first), (2, second))
    done = ask("POST", at, listed)
    assert done.status == 200
    read = ask("GET", "/bucket/big")
    assert (read.body, read.headers["content-type"]) == (b"hello world", "text/plain")
    assert done.headers["x-goog-generation"] == read.headers["x-goog-generation"]
    # A client whose answer was lost asks again.
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
        '<!DOCTYPE a [<!ENTITY e "1">]><a><Part><PartNumber>&e;</PartNumber></Part></a>'.encode(
            "utf-16"
        ),
        _list_of((2, "")),
        _list_of((1, '"0"')),
        _list_of((1, ""), (1, "")),
    ],
)
def test_a_list_that_is_wrong_makes_no_object(ask: Ask, listed: bytes) -> None:
    upload = _begin(ask)
    etag = _part(ask, upload, 1, b"x")
    at = f"/bucket/big?uploadId={upload}"
    assert ask("POST", at, listed).status == 400
    assert ask("GET", "/bucket/big").status == 404
    assert ask("POST", at, _list_of((1, etag))).status == 200


def test_a_completion_that_is_repeated_while_it_runs_does_not_end_it(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one takes longer than clients wait."""
    at = f"/bucket/big?uploadId={_begin(ask)}"
    _part(ask, at.rpartition("=")[2], 1, b"x")
    repeated: list[int] = []

    def restart(writer: UploadWriter) -> None:
        monkeypatch.undo()
        repeated.append(ask("POST", at, _list_of((1, ""))).status)
        writer.restart()

    monkeypatch.setattr(UploadWriter, "restart", restart)
    assert ask("POST", at, _list_of((1, ""))).status == 200
    assert repeated == [503]


def test_a_cancelled_upload_leaves_nothing(ask: Ask, store: ObjectStore) -> None:
    upload = _begin(ask)
    _part(ask, upload, 1, b"x")
    assert ask("DELETE", f"/bucket/big?uploadId={upload}").status == 204
    assert not list((state_directory(store.root) / "uploads").iterdir())
    for method, query in (("PUT", "partNumber=1&"), ("POST", ""), ("DELETE", "")):
        assert ask(method, f"/bucket/big?{query}uploadId={upload}", _list_of((1, ""))).status == 404
    for number in ("0", "10001", "x", ""):
        assert ask("PUT", f"/bucket/big?partNumber={number}&uploadId=any", b"x").status == 400


def test_a_program_of_another_project_may_nothing_of_it(ask: Ask, store: ObjectStore) -> None:
    store.catalog.create("theirs", project="q")
    put(ask, "a", b"secret")
    upload = _begin(ask)
    ask = partial(ask, listener=Listener.REPLICA, caller=_STRANGER)
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
    # An upload that another bucket has is none of this one's.
    assert ask("POST", f"/theirs/big?uploadId={upload}").status in {400, 404}
    assert ask("DELETE", f"/theirs/big?uploadId={upload}").status == 404
    assert ask("PUT", "/theirs/a").status == 200


def test_errors_are_those_of_the_xml_api(ask: Ask) -> None:
    ask("PUT", "/bucket/a", b"1")
    list_of_none = _list_of((1, '"x"'))
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
        assert (answer.status, _said(answer.body, "Code")) == (status, [code]), target
        assert answer.headers["content-type"] == "application/xml; charset=UTF-8"
    assert _said(ask("GET", "/bucket/<b>&").body, "Message") == ["No such object: bucket/<b>&"]
    assert b"GET acl at /bucket/a is not" in ask("GET", "/bucket/a?acl").body
    exists = ask("PUT", "/bucket/a", b"2", x_goog_if_generation_match="0")
    assert (exists.status, _said(exists.body, "Code")) == (412, ["PreconditionFailed"])
    behind = ask("GET", "/bucket/a", range="bytes=9-")
    assert (behind.status, _said(behind.body, "Code")) == (416, ["InvalidRange"])
    assert behind.headers["content-range"] == "bytes */1"
