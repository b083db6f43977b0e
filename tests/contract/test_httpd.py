"""The HTTP server's limits in time, on real connections: heads, bodies, and what comes behind an answer."""

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
"""No test whose callers do what they should meets one of them, however slow the machine is."""
SHORT = replace(LIMITS, head_seconds=0.5, body_seconds=0.5)
POST = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


@dataclass
class Application:
    """Reads the body of a POST, and answers everything: the path says after how many seconds, if its caller
    has not left by then."""

    #: The last message of each body, and what came of it.
    ended: list[str] = field(default_factory=list[str])
    bodies: list[bytes] = field(default_factory=list[bytes])
    #: The paths whose callers left before they were answered.
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
    def connected(self) -> Generator[socket.socket]:
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
def strict() -> Iterator[Served]:
    """For SHORT limits once the test's caller has spoken, who may be held up before a first word."""
    with serving() as server:
        yield server


def told(connection: socket.socket, *ends: bytes) -> bytes:
    """All that comes until the connection ends, or what has come has one of these ends."""
    answer = b""
    while not answer.endswith(ends) and (part := connection.recv(65536)):
        answer += part
    return answer


def test_who_says_nothing_at_all_is_told_nothing(strict: Served) -> None:
    strict.groups.tcp.limits = SHORT
    with strict.connected() as connection:
        assert told(connection) == b""


def test_a_web_socket_on_which_only_the_server_speaks_stays(strict: Served) -> None:
    with connect(f"ws://127.0.0.1:{strict.port}") as quiet:
        strict.groups.tcp.limits = SHORT
        with strict.connected() as later:
            assert told(later) == b""  # Its time is over: so is that of the one before it.
        quiet.send("are you there?")
        assert quiet.recv() == "fine"


@pytest.mark.parametrize(
    ("begun", "limit"),
    [(b"GET / HTTP/1.1\r\n", b"60 seconds"), (POST, b"100 bytes"), (POST + b"some", b"100 bytes")],
)
def test_a_request_that_stands_still_ends_with_a_408_and_the_application_learns_it(
    strict: Served, begun: bytes, limit: bytes
) -> None:
    with strict.connected() as connection:
        connection.sendall(asked("/"))
        assert statuses(told(connection, LAST_CHUNK)) == [b"200"]
        strict.groups.tcp.limits = SHORT
        connection.sendall(begun)
        answer = told(connection)
    assert answer.startswith(b"HTTP/1.1 408") and limit in answer
    assert POST not in begun or strict.application.ended[-1] == "http.disconnect"


def test_a_body_that_is_answered_already_is_not_read_for_ever(served: Served) -> None:
    with served.connected() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(POST.replace(b"POST", b"GET"))
        for _ in range(1 << 12):
            connection.sendall(b"x" * 65536)
        pytest.fail("all of it was taken")


def test_requests_of_one_connection_are_answered_one_at_a_time(served: Served) -> None:
    """What came before the answer is not read, and the connection ends: its caller may send it again."""
    with served.connected() as connection:
        connection.sendall(asked("/0.1") * 1_000)
        assert statuses(told(connection)) == [b"200"]
    with served.connected() as connection:
        for _ in range(3):
            connection.sendall(asked("/"))
            assert statuses(told(connection, LAST_CHUNK)) == [b"200"]


@pytest.mark.parametrize(("path", "end"), [("/?late", b"fine"), ("/?none", b"\r\n\r\n")])
def test_who_has_the_whole_answer_may_ask_again(served: Served, path: str, end: bytes) -> None:
    """The application may say only later that it has no more: a download ends so, and the answer to a part of
    an upload, whose next part is long."""
    with served.connected() as connection:
        for _ in range(2):
            connection.sendall(asked(path))
            assert len(statuses(told(connection, end))) == 1
        connection.sendall(POST.replace(b"1000000000", b"1000000") + bytes(1_000_000))
        assert statuses(told(connection, LAST_CHUNK)) == [b"200"]


def asked(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


def statuses(answers: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.1 (\d+)", answers)


@pytest.mark.parametrize("behind", [b"}}}}", b"GET /" + b"a" * (1 << 17), b"x: " * (1 << 16)])
def test_what_is_wrong_behind_a_request_is_not_its_answer(served: Served, behind: bytes) -> None:
    """A body that is longer than its caller has said: what he has asked is done, and he has to know."""
    whole = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}"
    with served.connected() as connection:
        connection.sendall(whole + behind)
        answers = told(connection, LAST_CHUNK)
        with contextlib.suppress(ConnectionResetError):  # What comes behind is read for a second.
            answers += told(connection)
        assert statuses(answers) == [b"200"]


def test_who_has_left_is_not_answered_though_he_had_asked_for_more(served: Served) -> None:
    with served.connected() as connection:
        connection.sendall(asked("/17") + asked("/"))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert served.application.left.get(timeout=60) == "/17"


def test_half_a_request_whose_caller_has_left_ends_at_once(served: Served) -> None:
    for half in (b"GET / HT", POST + b"some of it"):
        with served.connected() as connection:
            connection.sendall(half)
            connection.shutdown(socket.SHUT_WR)
            assert told(connection) == b""


def test_no_web_socket_begins_while_a_request_waits_for_its_answer(served: Served) -> None:
    """Its messages would mix with the answer, and nobody would tell the application that its caller left."""
    wish = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    with served.connected() as connection:
        connection.sendall(asked("/0.1") + wish)
        assert statuses(told(connection)) == [b"200"]


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
def test_who_offers_another_protocol_is_answered_in_this_one(
    served: Served, head: bytes, body: bytes, came: bytes, size: int
) -> None:
    """As Java's HttpClient does with the first request to a port without TLS, and `curl --http2`."""
    upgrading, plain = UPGRADING + head + body, POST.replace(b"1000000000", b"3") + b"end"
    with served.connected() as connection:
        for sent in (upgrading, upgrading, plain):
            for start in range(0, len(sent), size):
                connection.sendall(sent[start : start + size])
            assert statuses(told(connection, LAST_CHUNK)) == [b"200"]
    # What an earlier test has broken off may come before them.
    assert served.application.bodies[-3:] == [came, came, b"end"]


@pytest.mark.parametrize(("holders", "gone"), [("abaa", [0]), ("abab", [4])])
def test_who_has_most_of_all_connections_gives_way(holders: str, gone: list[int]) -> None:
    """Issue: one program that read nothing of 4,096 downloads kept all others from storage and metadata."""

    async def play() -> list[int]:
        counted, made = Connections(Limits(connections=4)), [Mock() for _ in range(5)]
        for connection, holder in zip(made, [*holders, ""], strict=True):
            counted.open(connection)
            counted.set_holder(connection, holder)
            counted.active(connection)
        return [number for number, connection in enumerate(made) if connection.drop.called]

    assert asyncio.run(play()) == gone
