"""A request and its answers, and the front that every surface stands behind (ADR 51)."""

import asyncio
import gzip
import re

import pytest

from trainshed.httpd.messages import (
    BodyNotRead,
    BodyTooLarge,
    Disconnected,
    Message,
    Receive,
    Request,
    Scope,
)


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


def pieces(*bodies: bytes, gone: bool = False) -> Receive:
    """A client that sends these, and then goes away or says nothing more."""
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
async def test_a_body_over_its_limit_is_refused(length: str, bodies: list[bytes]) -> None:
    """By what its head says, or as soon as more has come."""
    headers = {"content_length": length} if length else dict[str, str]()
    with pytest.raises(BodyTooLarge, match="exceeds the limit: 5 bytes"):
        await Request(scope(**headers), pieces(*bodies)).body(5)


@pytest.mark.parametrize("bodies", [(), (b"{}",)])
async def test_a_body_that_breaks_off_is_none(bodies: tuple[bytes, ...]) -> None:
    """As an empty one it would ask for something else: to take every role away, say."""
    with pytest.raises(Disconnected):
        await Request(scope(), pieces(*bodies, gone=True)).body(99)


async def test_a_body_that_was_packed_by_gzip_is_unpacked() -> None:
    packed = gzip.compress(b"abcde")
    request = Request(scope(content_encoding="gzip"), pieces(packed[:9], packed[9:]))
    assert await request.decoded_body(100) == b"abcde"
    assert (
        await Request(scope(content_encoding="identity"), pieces(b"abc")).decoded_body(9) == b"abc"
    )


@pytest.mark.parametrize(
    ("encoding", "body", "text"),
    [
        ("br", b"abc", "'br'. Send the body without encoding, or as gzip"),
        ("gzip", b"{}", "is not valid gzip"),
        ("gzip", gzip.compress(b"abcde", mtime=0)[:-9], "ends before the end"),
    ],
    ids=["unknown", "not-gzip", "cut"],
)
async def test_a_body_that_cannot_be_unpacked_is_refused(
    encoding: str, body: bytes, text: str
) -> None:
    with pytest.raises(BodyNotRead, match=re.escape(text)):
        await Request(scope(content_encoding=encoding), pieces(body)).decoded_body(99)


async def test_a_body_that_grows_beyond_its_limit_is_refused() -> None:
    packed = gzip.compress(bytes(1 << 24))
    with pytest.raises(BodyTooLarge):
        await Request(scope(content_encoding="gzip"), pieces(packed)).decoded_body(1 << 20)
