"""Requests of TensorFlow's gs:// client are put right on their way (spec/program#storage;
spec/clients#tensorflow)."""

import io
from typing import Any

import pytest

from trainshed.replica.endpoint import messages
from trainshed.replica.protocol import preamble

GET = b"GET /a HTTP/1.1\r\nHost: storage.googleapis.com\r\n\r\n"
PUT = b"PUT /b HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
NOTHING = b"POST /c HTTP/1.1\r\nContent-Length: 0\r\nTransfer-Encoding: identity\r\n\r\n"
NOTHING_RIGHT = b"POST /c HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
TWICE = b"PUT /d HTTP/1.1\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n"
TWICE_RIGHT = b"PUT /d HTTP/1.1\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n"
CHUNKS = b"5;name=x\r\nabcde\r\n2\r\n\r\n\r\n0\r\nTrailer: t\r\n\r\n"


class Coming(io.RawIOBase):
    """A connection on which this comes, so many bytes at a time."""

    def __init__(self, sent: bytes, step: int) -> None:
        self._rest, self._step = sent, step

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._step)
        cut, self._rest = self._rest[:size], self._rest[size:]
        buffer[: len(cut)] = cut
        return len(cut)


def put_right(sent: bytes, step: int = 4096) -> bytes:
    """What goes on of requests."""
    stream = io.BufferedReader(Coming(sent, step))
    passed: list[bytes] = []
    while (head := messages.read_head(stream)) is not None:
        length = head.put_right()
        passed += [head.encode(), *messages.read_body(stream, length)]
    return b"".join(passed)


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
    assert put_right(sent) == expected


def test_requests_of_one_connection_are_told_apart_however_they_are_cut() -> None:
    """What looks like a head within a body is a body."""
    body = NOTHING + b"Transfer-Encoding: identity\r\n\r\n"
    holding = b"PUT /e HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    chunked = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    sent = NOTHING + holding + TWICE + CHUNKS + TWICE + chunked + GET + NOTHING
    right = NOTHING_RIGHT + holding + TWICE_RIGHT + CHUNKS + TWICE_RIGHT + chunked + GET
    right += NOTHING_RIGHT
    for step in (1, 2, 3, 7, 64, len(sent)):
        assert put_right(sent, step) == right, step


@pytest.mark.parametrize(
    "sent",
    [
        b"PUT / HTTP/1.1\r\nContent-Length: many\r\n\r\nx",
        b"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\nx",
        b"PUT / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy",
        b"\x16\x03" + b"x" * 200_000,
        TWICE_RIGHT + b"zz\r\nx",
        TWICE_RIGHT + b"-5\r\nx",
        TWICE_RIGHT + b"1" * 200_000,
    ],
    ids=[
        *("no-length", "negative", "two-lengths", "endless-head"),
        *("no-chunk-size", "negative-chunk-size", "endless-chunk-size"),
    ],
)
def test_what_is_no_request_is_found_out(sent: bytes) -> None:
    with pytest.raises(messages.NotHttp):
        put_right(sent)


def test_a_connection_that_ends_within_a_message_is_no_whole_message() -> None:
    for sent in (GET[:-1], PUT[:-1], TWICE + CHUNKS[:-1], TWICE + CHUNKS[:3]):
        with pytest.raises(messages.ConnectionCut):
            put_right(sent)


def test_the_line_before_a_connection_says_that_it_was_secure() -> None:
    assert preamble('{"project": "p"}', is_secure=False) == b'{"project": "p"}\n'
    assert preamble('{"project": "p"}', is_secure=True) == b'{"project": "p", "scheme": "https"}\n'
