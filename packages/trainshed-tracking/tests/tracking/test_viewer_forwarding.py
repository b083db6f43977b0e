"""Forwarding between browsers and TensorBoard, tested with an untrusted server (docs/adr/0034)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from trainshed.httpd.forwarding import NoResponse, Rules, forward
from trainshed.httpd.messages import BodyTooLarge, Disconnected, Request
from trainshed_tracking.viewers.process import RULES, connect


@dataclass
class Server:
    """A server that answers each request with the same bytes and records the requests."""

    answer: bytes
    requests: list[bytes] = field(default_factory=list[bytes])

    @asynccontextmanager
    async def listening(self, place: Path) -> AsyncGenerator[str]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.IncompleteReadError):  # No request arrived.
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                self.requests[-1] += await reader.read(1000) if b"POST" in self.requests[-1] else b""
                writer.write(self.answer)
            writer.close()

        path = str(place / "socket")
        async with await asyncio.start_unix_server(serve, path):
            yield path


@dataclass
class ForwardedResponse:
    status: int
    headers: dict[bytes, bytes]
    body: bytes


async def forward_request(
    socket: str,
    method: str = "GET",
    body: bytes = b"",
    headers: dict[bytes, bytes] | None = None,
    rules: Rules = RULES,
    *,
    disconnects: bool = False,
    lapse: asyncio.Event | None = None,
) -> ForwardedResponse:
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": "/x y",
        "raw_path": b"/x%20y",
        "query_string": b"a=b&c",
        "headers": [*(headers or {}).items(), (b"content-length", str(len(body)).encode())],
    }
    gone = [{"type": "http.disconnect"}] * disconnects
    messages = [*gone, {"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    line = await connect(socket)
    may_no_more = (lapse or asyncio.Event()).wait
    answer = await forward(line, Request(scope, receive), rules, asyncio.Event(), may_no_more)
    await answer.send(receive, send)
    start, *rest = sent
    return ForwardedResponse(start["status"], dict(start["headers"]), b"".join(m["body"] for m in rest))


async def test_tensorboard_gets_no_credentials_and_sets_no_unsafe_headers(tmp_path: Path) -> None:
    server = Server(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nSet-Cookie: a=b\r\nLocation: /shell/\r\n"
        b"Access-Control-Allow-Origin: *\r\nService-Worker-Allowed: /\r\nRefresh: 0;url=/\r\n"
        b"Clear-Site-Data: *\r\nCache-Control: public\r\nContent-Length: 4\r\n\r\npage"
    )
    async with server.listening(tmp_path) as socket:
        answer = await forward_request(
            socket,
            headers={
                b"cookie": b"trainshed_tensorboard=x",
                b"authorization": b"Bearer secret",
                b"accept": b"text/html",
                b"x-forwarded-for": b"1.2.3.4",
                b"host": b"training.example.org",
            },
        )
    (request,) = server.requests
    assert request.startswith(b"GET /x%20y?a=b&c HTTP/1.1\r\nhost: viewer\r\n")
    assert b"accept: text/html" in request
    for word in (b"cookie", b"secret", b"forwarded", b"example"):
        assert word not in request.lower()
    assert answer == ForwardedResponse(200, {b"content-type": b"text/html", b"content-length": b"4"}, b"page")


async def test_tensorboard_form_is_forwarded_with_a_size_limit(tmp_path: Path) -> None:
    server = Server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
    async with server.listening(tmp_path) as socket:
        assert (await forward_request(socket, "POST", b"runs=a")).body == b"{}"
        assert b"content-length: 6\r\n" in server.requests[0]
        assert server.requests[0].endswith(b"\r\n\r\nruns=a")
        with pytest.raises(BodyTooLarge):
            await forward_request(socket, "POST", b"x" * (1 << 20) + b"x")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\n"),
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 18),
        b"HTTP/1.1 101 OK\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 999 OK\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_malformed_tensorboard_response_is_an_error(tmp_path: Path, answer: bytes) -> None:
    async with Server(answer).listening(tmp_path) as socket:
        with pytest.raises(NoResponse):
            await forward_request(socket)


async def test_response_smuggling_and_truncated_responses_are_rejected(tmp_path: Path) -> None:
    """Interim responses and bytes after the response are ignored. A truncated response is an error."""
    ok = b"HTTP/1.1 200 OK\r\n"
    hints, sized = b"HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n", ok + b"Content-Length: 2\r\n\r\n{}"
    async with Server(hints + sized + sized).listening(tmp_path) as socket:
        assert await forward_request(socket) == ForwardedResponse(200, {b"content-length": b"2"}, b"{}")
    async with Server(ok + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n").listening(tmp_path) as socket:
        with pytest.raises(NoResponse):
            await forward_request(socket)


async def test_unresponsive_tensorboard_does_not_block_the_request(tmp_path: Path) -> None:
    """This includes a server that closes the connection, a disconnected browser and a revoked session."""
    over = asyncio.Event()
    over.set()
    path, kept = str(tmp_path / "silent"), list[asyncio.StreamWriter]()
    async with await asyncio.start_unix_server(lambda _, writer: kept.append(writer), path):
        with pytest.raises(NoResponse, match="did not read"):
            await forward_request(path, "POST", bytes(1 << 20), rules=replace(RULES, timeout=0.1))
        with pytest.raises(Disconnected):
            await forward_request(path, disconnects=True)
        with pytest.raises(NoResponse, match="permission for the request"):
            await forward_request(path, "POST", bytes(1 << 20), lapse=over)
        kept.clear()
    async with await asyncio.start_unix_server(lambda _, writer: writer.close(), path):
        with pytest.raises(NoResponse, match="closed the connection"):
            await forward_request(path, "POST", bytes(1 << 20))


async def test_missing_tensorboard_socket_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoResponse):
        await forward_request(str(tmp_path / "socket"))
