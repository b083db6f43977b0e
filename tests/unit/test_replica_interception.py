"""Requests of TensorFlow's gs:// client are put right on their way (SPEC §3, Storage; STACK §3)."""

from itertools import pairwise

import pytest

from trainshed.replica.interception import Requests, preamble

GET = b"GET /a HTTP/1.1\r\nHost: storage.googleapis.com\r\n\r\n"
PUT = b"PUT /b HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
NOTHING = b"POST /c HTTP/1.1\r\nContent-Length: 0\r\nTransfer-Encoding: identity\r\n\r\n"
NOTHING_RIGHT = b"POST /c HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
TWICE = b"PUT /d HTTP/1.1\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n"
TWICE_RIGHT = b"PUT /d HTTP/1.1\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n"
CHUNKS = b"5;name=x\r\nabcde\r\n2\r\n\r\n\r\n0\r\nTrailer: t\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (GET, GET),
        (PUT, PUT),
        (NOTHING, NOTHING_RIGHT),
        (TWICE + CHUNKS, TWICE_RIGHT + CHUNKS),
        (
            b"PUT /d HTTP/1.1\r\ncontent-length:3\r\ntransfer-encoding: Chunked\r\n\r\n0\r\n\r\n",
            b"PUT /d HTTP/1.1\r\ntransfer-encoding: Chunked\r\n\r\n0\r\n\r\n",
        ),
    ],
    ids=["get", "put", "identity", "chunked-and-length", "names-in-any-case"],
)
def test_a_request_says_in_one_way_how_long_its_body_is(sent: bytes, expected: bytes) -> None:
    assert Requests().feed(sent) == expected


def test_requests_of_one_connection_are_told_apart_however_they_are_cut() -> None:
    """What looks like a head within a body is a body."""
    body = NOTHING + b"Transfer-Encoding: identity\r\n\r\n"
    holding = b"PUT /e HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    chunked = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    sent = NOTHING + holding + TWICE + CHUNKS + TWICE + chunked + GET + NOTHING
    right = NOTHING_RIGHT + holding + TWICE_RIGHT + CHUNKS + TWICE_RIGHT + chunked + GET
    right += NOTHING_RIGHT
    for step in (1, 2, 3, 7, 64, len(sent)):
        requests = Requests()
        cuts = [*range(0, len(sent), step), len(sent)]
        assert b"".join(requests.feed(sent[a:b]) for a, b in pairwise(cuts)) == right, step


def test_a_body_goes_on_as_it_comes() -> None:
    """Nothing but heads is held back."""
    requests = Requests()
    requests.feed(b"PUT / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n")
    assert requests.feed(b"x" * 300) == b"x" * 300
    requests = Requests()
    requests.feed(TWICE)
    assert requests.feed(b"fffff\r\n" + b"x" * 300) == b"fffff\r\n" + b"x" * 300


@pytest.mark.parametrize(
    "sent",
    [
        b"PUT / HTTP/1.1\r\nContent-Length: many\r\n\r\nx",
        b"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\nx",
        b"\x16\x03" + b"x" * 200_000,
        TWICE_RIGHT + b"zz\r\nx",
        TWICE_RIGHT + b"1" * 200_000,
    ],
    ids=["no-length", "negative", "endless-head", "no-chunk-size", "endless-chunk-size"],
)
def test_what_is_no_request_is_left_to_the_server_to_refuse(sent: bytes) -> None:
    requests = Requests()
    assert requests.feed(sent) == sent
    assert requests.feed(GET + b"y") == GET + b"y"


def test_the_line_before_a_connection_says_that_it_was_secure() -> None:
    assert preamble(b'{"project": "p"}\n') == b'{"project": "p", "scheme": "https"}\n'
