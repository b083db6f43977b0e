"""Whom a request to Google's hosts may concern, and what of it may be told to others
(spec/program#storage)."""

import pytest

from trainshed.access.job_tokens import JobClaims, JobTokens, is_job_token
from trainshed.replica.endpoint.conversation import JOB_TOKEN, Request, is_ours
from trainshed.replica.endpoint.messages import Head

STORAGE, OTHER = b"storage.googleapis.com", b"www.googleapis.com"


def request(path: bytes, host: bytes = STORAGE, method: bytes = b"GET", *fields: bytes) -> Request:
    return Request(Head(b"%b %b HTTP/1.1" % (method, path), [b"Host: " + host, *fields]))


@pytest.mark.parametrize(
    ("path", "bucket", "is_storage"),
    [
        (b"/storage/v1/b/B", b"B", True),
        (b"/storage/v1/b/B?fields=name", b"B", True),
        (b"/storage/v1/b/B/o/a%2Fb", b"B", True),
        (b"/upload/storage/v1/b/B/o?name=x", b"B", True),
        (b"/resumable/upload/storage/v1/b/B/o", b"B", True),
        (b"/download/storage/v1/b/B/o/x", b"B", True),
        (b"https://www.googleapis.com/storage/v1/b/B/o/x", b"B", True),
        (b"//storage/v1/b/B/o/x", b"B", True),
        (b"/storage/v1/b?project=p", b"", True),
        (b"/storage/v1", b"", True),
        (b"/storage/v10/x", b"storage", False),
        (b"/B/o/x", b"B", False),
        (b"/B?prefix=x", b"B", False),
        (b"/", b"", False),
    ],
)
def test_a_path_names_its_bucket(path: bytes, bucket: bytes, is_storage: bool) -> None:
    """At www.googleapis.com; all that the storage host is asked is storage."""
    found = request(path, OTHER)
    assert (found.bucket, found.is_storage) == (bucket, is_storage)
    assert request(path).is_storage


@pytest.mark.parametrize(
    ("path", "host", "expected"),
    [
        (b"/B/o", STORAGE, True),
        (b"/B/o", b"storage.googleapis.com:443", True),
        (b"/B/o", b"Storage.GoogleAPIs.com", True),
        (b"/oauth2/v1/certs", OTHER, True),
        (b"/o", b"b.storage.googleapis.com", False),
        (b"/o", b"localhost", False),
        (b"/o", b"", False),
        (b"/with/key/b/o", STORAGE, False),
        (b"/computeMetadata/v1/", OTHER, False),
        (b"/batch/storage/v1", OTHER, False),
        (b"/storage/v1/b?project=p", OTHER, False),
        (b"/B/o?access_token=tsj1.x", OTHER, False),
        (b"/B/o?access_token=tsj1%2ex", OTHER, False),
    ],
)
def test_what_may_concern_somebody_else(path: bytes, host: bytes, expected: bool) -> None:
    assert request(path, host).may_go_out() is expected


@pytest.mark.parametrize(
    ("method", "fields", "expected"),
    [
        (b"GET", [], True),
        (b"HEAD", [b"Content-Length: 0"], True),
        (b"GET", [b"Content-Length: 1"], False),
        (b"GET", [b"Transfer-Encoding: chunked"], False),
        (b"POST", [], False),
    ],
)
def test_what_may_be_asked_twice(method: bytes, fields: list[bytes], expected: bool) -> None:
    assert request(b"/", STORAGE, method, *fields).is_read is expected


def test_tokens_are_told_from_those_of_others() -> None:
    tokens = JobTokens(b"k" * 32, lambda: 10**18)
    claims = JobClaims(1, 1, "workerpool0-0", "p1", "a@p1")
    job, _ = tokens.mint(claims)
    assert is_job_token(job)
    assert job.encode().startswith(JOB_TOKEN)
    identity = tokens.identity_token(claims, "https://elsewhere")
    person = "p" * 43
    for ours in (job, identity, person):
        assert is_ours(b"Bearer " + ours.encode())
    for theirs in (b"Bearer ya29.a0AbC", b"Bearer " + b"p" * 44, b"Basic dXNlcjpwYXNz"):
        assert not is_ours(theirs)


def test_all_but_our_tokens_is_told() -> None:
    fields = (
        b"Authorization: Bearer tsj1.x",
        b"X-Token: tsj1.y",
        b"Proxy-Authorization: z",
        b"A: b",
    )
    sent = request(b"/B/o", STORAGE, b"GET", *fields).outwards()
    assert sent == b"GET /B/o HTTP/1.1\r\nHost: storage.googleapis.com\r\nA: b\r\n\r\n"
