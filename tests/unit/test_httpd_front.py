"""A request and its answers, and the front that every surface stands behind (ADR 51)."""

import asyncio
import gzip
import re
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from trainshed.httpd.front import Front
from trainshed.httpd.messages import (
    BodyNotRead,
    BodyTooLarge,
    Disconnected,
    Message,
    Receive,
    Request,
    Response,
    Scope,
    Streamed,
    sized,
)

pytestmark = pytest.mark.anyio
TEXT = b"text/plain"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def scope(path: str = "/", query: str = "", **headers: str) -> Scope:
    named = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": named,
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


class Echo:
    """A surface that answers with the body, or as it is told to."""

    def __init__(self, answer: Callable[[], Response] | None = None) -> None:
        self._answer = answer
        self.ends: list[int] = []

    def begin(self, request: Request) -> Request:
        return request

    async def answer(self, call: Request) -> Response:
        if self._answer is not None:
            return self._answer()
        return sized(b"".join([block async for block in call.blocks()]), TEXT)

    def refuse(self, call: Request, error: Exception) -> Response:
        return sized(f"{call.path}: {error}".encode(), TEXT, 500)

    def ended(self, call: Request, status: int) -> None:
        self.ends.append(status)


async def asked(surface: Echo, receive: Receive) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await Front(surface)(scope("/a"), receive, send)
    return sent


async def test_what_a_surface_answers_is_sent_and_noted() -> None:
    surface = Echo()
    start, body = await asked(surface, pieces(b"to", b"gether"))
    assert (start["status"], body["body"]) == (200, b"together")
    assert start["headers"] == [(b"content-type", TEXT), (b"content-length", b"8")]
    assert surface.ends == [200]


async def test_what_a_surface_raises_it_is_asked_to_refuse() -> None:
    def fails() -> Response:
        raise RuntimeError("broken")

    surface = Echo(fails)
    start, body = await asked(surface, pieces(b""))
    assert (start["status"], body["body"]) == (500, b"/a: broken")
    assert surface.ends == [500]


async def test_a_client_that_goes_away_is_answered_nothing() -> None:
    surface = Echo()
    assert await asked(surface, pieces(b"half", gone=True)) == []
    assert surface.ends == [0]


def test_of_a_name_given_twice_the_first_header_and_the_last_parameter_count() -> None:
    asking = scope(query="a=1&b=&a=%C3%A9")
    asking["headers"] = [(b"x", b"first"), (b"x", b"second")]
    request = Request(asking, pieces())
    assert request.headers["x"] == "first"
    assert request.query == {"a": "é", "b": ""}
    assert request.values == {"a": ["1", "é"], "b": [""]}


def test_a_request_at_another_path_is_otherwise_the_same() -> None:
    moved = Request(scope("/with/KEY/b/a", host="h"), pieces()).at(b"/b/a%2Fc")
    assert (moved.path, moved.raw_path, moved.headers["host"]) == ("/b/a/c", "/b/a%2Fc", "h")


@pytest.mark.parametrize(
    ("length", "bodies"),
    [("6", [b"sixsix"]), ("9" * 40, [b""]), ("", [b"six", b"six"])],
)
async def test_a_body_over_its_limit_is_refused(length: str, bodies: list[bytes]) -> None:
    """By what its head says, or as soon as more has come."""
    headers = {"content_length": length} if length else dict[str, str]()
    with pytest.raises(BodyTooLarge, match="exceeds the limit: 5 bytes"):
        await Request(scope(**headers), pieces(*bodies)).body(5)


async def test_a_body_that_was_packed_by_gzip_is_unpacked() -> None:
    packed = gzip.compress(b"abcde")
    asked = Request(scope(content_encoding="gzip"), pieces(packed[:9], packed[9:]))
    assert await asked.decoded_body(100) == b"abcde"
    assert (
        await Request(scope(content_encoding="identity"), pieces(b"abc")).decoded_body(9) == b"abc"
    )


@pytest.mark.parametrize(
    ("encoding", "body", "text"),
    [
        ("br", b"abc", "'br'; send its body as it is, or as gzip"),
        ("gzip", b"{}", "is not gzip, as it says"),
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


async def test_a_body_in_pieces_is_read_whole_and_a_cut_one_as_far_as_it_came() -> None:
    assert await Request(scope(), pieces(b"ab", b"c")).body(5) == b"abc"
    assert await Request(scope(), pieces(b"ab", gone=True)).body(5) == b"ab"
    with pytest.raises(Disconnected):
        _ = [block async for block in Request(scope(), pieces(b"ab", gone=True)).blocks()]


async def test_whether_the_client_is_gone_is_known_at_once() -> None:
    assert not await Request(scope(), pieces()).is_gone()
    assert await Request(scope(), pieces(gone=True)).is_gone()


async def test_a_stream_ends_with_its_parts_its_client_or_the_server() -> None:
    async def parts(count: int | None) -> AsyncGenerator[bytes]:
        for _ in range(count or 0):
            yield b"part"
        if count is None:
            await asyncio.Event().wait()

    async def sent_of(count: int | None, receive: Receive, closing: asyncio.Event) -> list[Any]:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        await Streamed(parts(count), closing, TEXT).send(receive, send)
        return [message["body"] for message in sent[1:]]

    closing = asyncio.Event()
    assert await sent_of(2, pieces(), closing) == [b"part", b"part", b""]
    assert await sent_of(None, pieces(gone=True), closing) == [b""]
    closing.set()
    assert await sent_of(None, pieces(), closing) == [b""]
