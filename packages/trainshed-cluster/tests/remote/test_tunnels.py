"""Bytes between programs on a node and the service's sockets, both ways, of which little is held."""

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.remote.conftest import NAME, Place
from trainshed.replica.protocol import preamble
from trainshed_cluster.remote import dialer

pytestmark = pytest.mark.anyio

MIB = 1 << 20
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
IDENTITY = json.dumps({"job_uid": "7", "attempt": 0, "replica": "worker-0", "project": "p1"})
PREAMBLES = {preamble(IDENTITY, is_secure=False), preamble(IDENTITY, is_secure=True)}


async def behind(place: Place, name: str, handler: Handler) -> asyncio.Server:
    """A service that listens at one of its sockets."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await handler(reader, writer)

    server = await asyncio.start_unix_server(serve, place.sockets[name])
    place.services.append(server)
    return server


async def node_socket(place: Place, name: str) -> Path:
    path = place.directory / f"node-{name}.sock"
    await place.dialer().listen(name, path)
    return path


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What still comes, also of a connection that is reset."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.readline()).upper())
    writer.close()


async def asked(path: Path, line: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(line + b"\n")
    answer = await reader.read()
    writer.close()
    return answer


async def test_whatever_was_said_before_the_end_comes(place: Place) -> None:
    """Of either side, which ends both ways at once."""
    await behind(place, "rest", upper)
    path = await node_socket(place, "rest")
    assert path.stat().st_mode & 0o777 == 0o600
    assert await asked(path, b"asked") == b"ASKED\n"

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.set_result(len(await reader.read()))
        writer.close()

    heard: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    await behind(place, "grpc", listen)
    _, writer = await place.dialer().open("grpc")
    writer.write(bytes(4 * MIB))
    writer.close()
    assert await heard == 4 * MIB


async def test_64_mib_go_both_ways_at_once(place: Place) -> None:
    size, digest = 64 * MIB, hashlib.sha256()
    block = os.urandom(MIB)

    async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def fill() -> None:
        for _ in range(size // MIB):
            writer.write(block)
            await writer.drain()

    await behind(place, "rest", both)
    reader, writer = await asyncio.open_unix_connection(await node_socket(place, "rest"))
    filling = asyncio.ensure_future(fill())
    came = 0
    while came < size:
        data = await reader.read(1 << 18)
        came += len(data)
        digest.update(data)
    await filling
    writer.close()
    assert came == size
    assert digest.digest() == hashlib.sha256(block * (size // MIB)).digest()


async def test_a_slow_reader_holds_who_writes(place: Place) -> None:
    go = asyncio.Event()
    counted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        counted.set_result(len(await reader.read()))
        writer.close()

    await behind(place, "rest", slow)
    _, writer = await asyncio.open_unix_connection(await node_socket(place, "rest"))
    written = 0

    async def fill() -> None:
        nonlocal written
        while written < 128 * MIB:
            writer.write(bytes(MIB))
            await writer.drain()
            written += MIB

    before, filling = -1, asyncio.ensure_future(fill())
    while written != before:
        before = written
        await asyncio.sleep(0.2)
    # The rest is in the kernel's buffers, of three connections.
    assert written < 40 * MIB
    go.set()
    await filling
    writer.close()
    assert await counted == written


async def test_a_program_that_is_killed_ends_what_it_asked_for(place: Place) -> None:
    ended = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(bytes(MIB))
                await writer.drain()
        finally:
            ended.set()

    await behind(place, "rest", endless)
    reader, writer = await asyncio.open_unix_connection(await node_socket(place, "rest"))
    await reader.readexactly(MIB)
    writer.transport.abort()
    await ended.wait()


async def test_a_connection_waits_for_a_service_that_is_away(place: Place) -> None:
    """First nobody is behind the socket, then the whole hub is away."""
    path = await node_socket(place, "rest")

    waiting = asyncio.ensure_future(asked(path, b"hello"))
    await asyncio.sleep(0.2)
    service = await behind(place, "rest", upper)
    assert await waiting == b"HELLO\n"
    await place.hub.close()
    waiting = asyncio.ensure_future(asked(path, b"hello"))
    await asyncio.sleep(0.2)
    place.hub = place.made(place.hub.port)
    await place.hub.start()
    assert await waiting == b"HELLO\n"
    service.close()


async def test_connections_without_end_wait_on_their_node(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialer, "_MOST_TUNNELS", 3)
    now, most = 0, 0

    async def counting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await upper(reader, writer)
        now -= 1

    await behind(place, "rest", counting)
    path = await node_socket(place, "rest")
    calls = (asked(path, f"call {number}".encode()) for number in range(20))
    answers = await asyncio.gather(*calls)
    assert answers == [f"CALL {number}\n".encode() for number in range(20)]
    assert most <= 3


async def test_who_is_not_expected_any_more_is_hung_up_on_at_once(place: Place) -> None:
    path = await node_socket(place, "rest")
    place.admitted.discard(NAME)
    reader, _ = await asyncio.open_unix_connection(path)
    assert await rest(reader) == b""


async def buckets(place: Place, *lines: bytes) -> list[bytes]:
    """What the bucket process hears of connections that begin so."""
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"answered")
        writer.close()

    service = await behind(place, "buckets", listen)
    path = await node_socket(place, "buckets")
    for line in lines:
        reader, writer = await asyncio.open_unix_connection(path)
        # In two parts, as it may come.
        writer.write(line[:20])
        await writer.drain()
        writer.write(line[20:])
        await rest(reader)
        writer.close()
    service.close()
    return heard


async def test_programs_call_as_their_endpoint_does(place: Place) -> None:
    place.preambles[NAME] = PREAMBLES
    plain = IDENTITY.encode() + b"\nGET / HTTP/1.1\r\n\r\n"
    secure = preamble(IDENTITY, is_secure=True) + b"GET /s HTTP/1.1\r\n\r\n"
    assert await buckets(place, plain, secure) == [plain, secure]


async def test_nobody_calls_as_anothers_program(place: Place) -> None:
    place.preambles[NAME] = PREAMBLES
    identity = json.loads(IDENTITY)
    foreign = [
        json.dumps({**identity, **other})
        for other in (
            {"job_uid": "8"},
            {"attempt": 1},
            {"replica": "worker-1"},
            {"project": "p2"},
            {"service_account": "someone@p1"},
            {"scheme": "http"},
        )
    ]
    # What one reader takes for ours, and another one for somebody else's.
    foreign.append(IDENTITY[:-1] + ', "project": "p2"}')
    foreign.append('{"project": "p2", ' + IDENTITY[1:])
    foreign += [IDENTITY + " ", " " + IDENTITY, IDENTITY + "\r", "", "{}", "x" * 5000]
    tail = b"\nGET / HTTP/1.1\r\n\r\n"
    assert await buckets(place, *(line.encode() + tail for line in foreign)) == []
    assert await buckets(place, b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n", IDENTITY.encode()) == []
    place.preambles.clear()
    assert await buckets(place, IDENTITY.encode() + tail) == []
