"""Requests and answers of all HTTP surfaces (ADR 51)."""

import asyncio
import gzip
import re

import pytest

from trainshed.httpd.messages import BodyNotRead, BodyTooLarge, Disconnected, Message, Receive, Request, Scope


def scope(path: str = "/", query: str = "", **headers: str) -> Scope:
    fields = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": fields,
    }


def request_of(*bodies: bytes, gone: bool = False) -> Receive:
    """A client that sends these pieces, and then disconnects or is silent."""
    left = list(bodies)

    async def receive() -> Message:
        if left:
            body = left.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(left) or gone}
        if not gone:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    return receive


@pytest.mark.parametrize(
    ("length", "bodies"), [("6", [b"sixsix"]), ("9" * 40, [b""]), ("", [b"six", b"six"])]
)
async def test_request_body_above_the_size_limit_is_rejected(length: str, bodies: list[bytes]) -> None:
    """The body is rejected because of its Content-Length, or as soon as more bytes than the limit have
    arrived."""
    headers = {"content_length": length} if length else dict[str, str]()
    with pytest.raises(BodyTooLarge, match="exceeds the limit: 5 bytes"):
        await Request(scope(**headers), request_of(*bodies)).body(5)


@pytest.mark.parametrize("bodies", [(), (b"{}",)])
async def test_incomplete_request_body_is_rejected(bodies: tuple[bytes, ...]) -> None:
    """If the service treated the body as empty, a method could remove all roles, for example."""
    with pytest.raises(Disconnected):
        await Request(scope(), request_of(*bodies, gone=True)).body(99)


async def test_gzip_request_body_is_decompressed() -> None:
    packed = gzip.compress(b"abcde")
    request = Request(scope(content_encoding="gzip"), request_of(packed[:9], packed[9:]))
    assert await request.decoded_body(100) == b"abcde"
    assert await Request(scope(content_encoding="identity"), request_of(b"abc")).decoded_body(9) == b"abc"


@pytest.mark.parametrize(
    ("encoding", "body", "text"),
    [
        ("br", b"abc", "'br'. Send the body without encoding, or as gzip"),
        ("gzip", b"{}", "is not valid gzip"),
        ("gzip", gzip.compress(b"abcde", mtime=0)[:-9], "ends before the end"),
    ],
    ids=["unknown", "not-gzip", "cut"],
)
async def test_invalid_gzip_request_body_is_rejected(encoding: str, body: bytes, text: str) -> None:
    with pytest.raises(BodyNotRead, match=re.escape(text)):
        await Request(scope(content_encoding=encoding), request_of(body)).decoded_body(99)


async def test_decompression_bomb_is_rejected() -> None:
    packed = gzip.compress(bytes(1 << 24))
    with pytest.raises(BodyTooLarge):
        await Request(scope(content_encoding="gzip"), request_of(packed)).decoded_body(1 << 20)
