"""Limits of the HTTP server on real connections: request heads, bodies, and data after a response."""

import asyncio
import contextlib
import queue
import re
import socket
import struct
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from msgspec.structs import replace
from websockets.sync.client import connect

from trainshed.httpd.connections import Connections, Limits
from trainshed.httpd.protocol import ConnectionGroups, guarded_protocol, server_config

LIMITS = Limits(head_seconds=60, body_seconds=60, body_bytes=100, unread_bytes=1 << 20)
"""No test with a well-behaved client reaches one of these limits, even on a slow machine."""
SHORT = replace(LIMITS, head_seconds=0.5, body_seconds=0.5)
POST = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


@dataclass
class Application:
    """Reads the body of a POST and responds to every request. The path contains the delay of the response in
    seconds. A caller that disconnects before the delay ends receives no response."""

    #: The last message of each body, and the result of reading it.
    ended: list[str] = field(default_factory=list[str])
    bodies: list[bytes] = field(default_factory=list[bytes])
    #: The paths whose callers disconnected before the answer.
    left: queue.Queue[str] = field(default_factory=queue.Queue[str])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            while (await receive())["type"] == "websocket.connect":
                pass
            await send({"type": "websocket.send", "text": "fine"})
            return
        if scope["method"] == "POST":
            body = (message := await receive()).get("body", b"")
            while message.get("more_body"):
                message = await receive()
                body += message.get("body", b"")
            self.ended.append(message["type"])
            self.bodies.append(body)
        if seconds := float(scope["path"].strip("/") or 0):
            await receive()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await receive()
                self.left.put(scope["path"])
                return
        late = scope["query_string"]
        headers = [(b"content-length", b"4")] if late == b"late" else []
        status = 204 if late and not headers else 200
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if headers:
            await send({"type": "http.response.body", "body": b"fine", "more_body": True})
        if late:
            await asyncio.sleep(0.2)
        await send({"type": "http.response.body", "body": b"" if late else b"fine"})


@dataclass
class Served:
    port: int
    application: Application
    groups: ConnectionGroups

    @contextlib.contextmanager
    def connect(self) -> Generator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            yield connection


@contextlib.contextmanager
def serving() -> Generator[Served]:
    application, groups = Application(), ConnectionGroups(LIMITS)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        config = server_config(application, guarded_protocol(groups), grace=60, websockets=groups)
        server = uvicorn.Server(config)
        runner = asyncio.Runner(loop_factory=config.get_loop_factory())
        thread = threading.Thread(target=lambda: runner.run(server.serve([listener])))
        thread.start()
        yield Served(listener.getsockname()[1], application, groups)
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as server:
        yield server


@pytest.fixture
def strict_server() -> Iterator[Served]:
    """A server for tests that set SHORT limits after the first request: a client may be slow to start."""
    with serving() as server:
        yield server


def receive_until(connection: socket.socket, *ends: bytes) -> bytes:
    """Receive until the connection ends or the data has one of these ends, and return the data."""
    answer = b""
    while not answer.endswith(ends) and (part := connection.recv(65536)):
        answer += part
    return answer


def test_silent_connection_is_closed_without_a_response(strict_server: Served) -> None:
    strict_server.groups.tcp.limits = SHORT
    with strict_server.connect() as connection:
        assert receive_until(connection) == b""


def test_websocket_with_a_silent_client_stays_open(strict_server: Served) -> None:
    with connect(f"ws://127.0.0.1:{strict_server.port}") as quiet:
        strict_server.groups.tcp.limits = SHORT
        with strict_server.connect() as later:
            # The later connection has timed out, so the earlier one has too.
            assert receive_until(later) == b""
        quiet.send("are you there?")
        assert quiet.recv() == "fine"


@pytest.mark.parametrize(
    ("sent", "limit"),
    [(b"GET / HTTP/1.1\r\n", b"60 seconds"), (POST, b"100 bytes"), (POST + b"some", b"100 bytes")],
)
def test_stalled_request_ends_with_408(strict_server: Served, sent: bytes, limit: bytes) -> None:
    with strict_server.connect() as connection:
        connection.sendall(get_request("/"))
        assert statuses(receive_until(connection, LAST_CHUNK)) == [b"200"]
        strict_server.groups.tcp.limits = SHORT
        connection.sendall(sent)
        answer = receive_until(connection)
    assert answer.startswith(b"HTTP/1.1 408") and limit in answer
    assert POST not in sent or strict_server.application.ended[-1] == "http.disconnect"


def test_body_sent_after_the_response_is_read_only_up_to_a_limit(served: Served) -> None:
    with served.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(POST.replace(b"POST", b"GET"))
        for _ in range(1 << 12):
            connection.sendall(b"x" * 65536)
        pytest.fail("all of it was taken")


def test_pipelined_requests_are_not_read_before_the_response(served: Served) -> None:
    """Requests sent before the response are not read, and the connection closes. The client can send them
    again."""
    with served.connect() as connection:
        connection.sendall(get_request("/0.1") * 1_000)
        assert statuses(receive_until(connection)) == [b"200"]
    with served.connect() as connection:
        for _ in range(3):
            connection.sendall(get_request("/"))
            assert statuses(receive_until(connection, LAST_CHUNK)) == [b"200"]


@pytest.mark.parametrize(("path", "end"), [("/?late", b"fine"), ("/?none", b"\r\n\r\n")])
def test_client_can_send_the_next_request_after_a_complete_response(
    served: Served, path: str, end: bytes
) -> None:
    """The application may report the end of its response late: after a download, or after a part of an upload
    whose next part is long."""
    with served.connect() as connection:
        for _ in range(2):
            connection.sendall(get_request(path))
            assert len(statuses(receive_until(connection, end))) == 1
        connection.sendall(POST.replace(b"1000000000", b"1000000") + bytes(1_000_000))
        assert statuses(receive_until(connection, LAST_CHUNK)) == [b"200"]


def get_request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


def statuses(answers: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.1 (\d+)", answers)


@pytest.mark.parametrize("behind", [b"}}}}", b"GET /" + b"a" * (1 << 17), b"x: " * (1 << 16)])
def test_invalid_data_after_a_request_does_not_replace_its_response(served: Served, behind: bytes) -> None:
    """The body is longer than its announced length. The request has had its effect, so the caller must
    receive the response."""
    whole = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}"
    with served.connect() as connection:
        connection.sendall(whole + behind)
        answers = receive_until(connection, LAST_CHUNK)
        # Data after the request is read for one second.
        with contextlib.suppress(ConnectionResetError):
            answers += receive_until(connection)
        assert statuses(answers) == [b"200"]


def test_disconnected_client_with_pipelined_requests_is_detected(served: Served) -> None:
    with served.connect() as connection:
        connection.sendall(get_request("/17") + get_request("/"))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert served.application.left.get(timeout=60) == "/17"


def test_incomplete_request_ends_when_its_client_disconnects(served: Served) -> None:
    for half in (b"GET / HT", POST + b"some of it"):
        with served.connect() as connection:
            connection.sendall(half)
            connection.shutdown(socket.SHUT_WR)
            assert receive_until(connection) == b""


def test_websocket_upgrade_during_a_pending_request_is_rejected(served: Served) -> None:
    """WebSocket messages would mix with the response, and the application would not detect a disconnect."""
    wish = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    with served.connect() as connection:
        connection.sendall(get_request("/0.1") + wish)
        assert statuses(receive_until(connection)) == [b"200"]


UPGRADING = (
    b"POST / HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
    b"http2-settings: AAEAAEAAAAIAAAAB\r\n"
)


@pytest.mark.parametrize(
    ("head", "body", "came"),
    [
        (b"content-length: 5\r\n\r\n", b"hello", b"hello"),
        (b"transfer-encoding: chunked\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (b"content-length: 0\r\n\r\n", b"", b""),
        (b"\r\n", b"", b""),
    ],
)
@pytest.mark.parametrize("size", [20, 1000], ids=["piecewise", "at-once"])
def test_request_offering_http2_upgrade_is_answered_over_http1(
    served: Served, head: bytes, body: bytes, came: bytes, size: int
) -> None:
    """Java's HttpClient sends such headers with its first request to a port without TLS, as does
    `curl --http2`."""
    upgrading, plain = UPGRADING + head + body, POST.replace(b"1000000000", b"3") + b"end"
    with served.connect() as connection:
        for sent in (upgrading, upgrading, plain):
            for start in range(0, len(sent), size):
                connection.sendall(sent[start : start + size])
            assert statuses(receive_until(connection, LAST_CHUNK)) == [b"200"]
    # An aborted request of an earlier test may precede them.
    assert served.application.bodies[-3:] == [came, came, b"end"]


@pytest.mark.parametrize(("holders", "dropped"), [("abaa", [0]), ("abab", [4])])
def test_caller_with_the_most_connections_loses_a_connection_at_the_limit(
    holders: str, dropped: list[int]
) -> None:
    """Earlier, one program that did not read its 4,096 downloads blocked storage and metadata for all other
    programs."""

    async def play() -> list[int]:
        counter, made = Connections(Limits(connections=4)), [Mock() for _ in range(5)]
        for connection, holder in zip(made, [*holders, ""], strict=True):
            counter.add(connection)
            counter.set_holder(connection, holder)
            counter.mark_active(connection)
        return [number for number, connection in enumerate(made) if connection.drop.called]

    assert asyncio.run(play()) == dropped
