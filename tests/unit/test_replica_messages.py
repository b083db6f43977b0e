"""Tests that requests of TensorFlow's gs:// client are corrected (spec/program#storage;
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


class Incoming(io.RawIOBase):
    """A connection that delivers these bytes, `step` bytes at a time."""

    def __init__(self, sent: bytes, step: int) -> None:
        self._rest, self._step = sent, step

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._step)
        cut, self._rest = self._rest[:size], self._rest[size:]
        buffer[: len(cut)] = cut
        return len(cut)


def correct(sent: bytes, step: int = 4096) -> bytes:
    """Return the corrected requests as forwarded."""
    stream = io.BufferedReader(Incoming(sent, step))
    passed: list[bytes] = []
    while (head := messages.read_head(stream)) is not None:
        length = head.correct_length()
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
def test_forwarded_request_has_exactly_one_length_header(sent: bytes, expected: bytes) -> None:
    assert correct(sent) == expected


def test_pipelined_requests_are_separated_for_every_split() -> None:
    """Bytes of a body that look like a request head still belong to the body (request smuggling)."""
    body = NOTHING + b"Transfer-Encoding: identity\r\n\r\n"
    holding = b"PUT /e HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    chunked = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    sent = NOTHING + holding + TWICE + CHUNKS + TWICE + chunked + GET + NOTHING
    right = NOTHING_RIGHT + holding + TWICE_RIGHT + CHUNKS + TWICE_RIGHT + chunked + GET
    right += NOTHING_RIGHT
    for step in (1, 2, 3, 7, 64, len(sent)):
        assert correct(sent, step) == right, step


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
def test_relay_rejects_an_invalid_http_request(sent: bytes) -> None:
    with pytest.raises(messages.NotHttp):
        correct(sent)


def test_connection_that_closes_within_a_message_causes_an_error() -> None:
    for sent in (GET[:-1], PUT[:-1], TWICE + CHUNKS[:-1], TWICE + CHUNKS[:3]):
        with pytest.raises(messages.ConnectionCut):
            correct(sent)


def test_first_line_of_a_relayed_connection_specifies_whether_the_client_uses_tls() -> None:
    assert preamble('{"project": "p"}', is_secure=False) == b'{"project": "p"}\n'
    assert preamble('{"project": "p"}', is_secure=True) == b'{"project": "p", "scheme": "https"}\n'
