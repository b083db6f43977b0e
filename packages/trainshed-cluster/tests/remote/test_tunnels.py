"""Bytes between programs on a node and the service's sockets: each way ends on its own, and holds little."""

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.remote.conftest import NAME, Place
from trainshed.replica.endpoint.interception import preamble
from trainshed_cluster.remote import dialer
from trainshed_cluster.remote.hub import introductions

pytestmark = pytest.mark.anyio

MIB = 1 << 20
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
IDENTITY = json.dumps({"job_uid": "7", "attempt": 0, "replica": "worker-0", "project": "p1"})


async def behind(place: Place, door: str, handler: Handler) -> asyncio.Server:
    """A service that listens at one of its doors."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await handler(reader, writer)

    server = await asyncio.start_unix_server(serve, place.doors[door])
    place.services.append(server)
    return server


async def node_socket(place: Place, door: str) -> Path:
    path = place.directory / f"node-{door}.sock"
    await place.dialer().listen(door, path)
    return path


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What still comes, also of a connection that is reset."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.read()).upper())
    writer.close()


async def test_an_end_goes_on_as_one_each_way(place: Place) -> None:
    await behind(place, "rest", upper)
    path = await node_socket(place, "rest")
    assert path.stat().st_mode & 0o777 == 0o600
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"asked")
    writer.write_eof()
    assert await reader.read() == b"ASKED"

    async def first_word(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"all that I have to say")
        writer.write_eof()
        heard.set_result(await reader.read())
        writer.close()

    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    await behind(place, "grpc", first_word)
    reader, writer = await place.dialer().open("grpc")
    assert await reader.read() == b"all that I have to say"
    writer.write(b"and I answer")
    writer.close()
    assert await heard == b"and I answer"


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
        writer.write_eof()

    await behind(place, "rest", both)
    reader, writer = await asyncio.open_unix_connection(await node_socket(place, "rest"))
    filling = asyncio.ensure_future(fill())
    came = 0
    while data := await reader.read(1 << 18):
        came += len(data)
        digest.update(data)
    await filling
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
    writer.write_eof()
    assert await counted == written


async def test_a_connection_that_is_torn_is_no_end(place: Place) -> None:
    """A program must not take half of an answer for the whole of it."""
    talking = asyncio.Event()

    async def cut_short(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"half of")
        await reader.read(1)
        talking.set()
        await reader.read()

    await behind(place, "rest", cut_short)
    reader, writer = await place.dialer().open("rest")
    writer.write(b"x")
    assert await reader.readexactly(7) == b"half of"
    await talking.wait()
    place.hub.drop(NAME)
    with pytest.raises(ConnectionResetError):
        await reader.read()


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
    """First nobody is behind the door, then the whole hub is away."""
    path = await node_socket(place, "rest")

    async def asked() -> bytes:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"hello")
        writer.write_eof()
        return await reader.read()

    waiting = asyncio.ensure_future(asked())
    await asyncio.sleep(0.2)
    service = await behind(place, "rest", upper)
    assert await waiting == b"HELLO"
    await place.hub.close()
    waiting = asyncio.ensure_future(asked())
    await asyncio.sleep(0.2)
    place.hub = place.made(place.hub.port)
    await place.hub.start()
    assert await waiting == b"HELLO"
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

    async def asked(number: int) -> bytes:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(f"call {number}".encode())
        writer.write_eof()
        return await reader.read()

    await behind(place, "rest", counting)
    path = await node_socket(place, "rest")
    answers = await asyncio.gather(*map(asked, range(20)))
    assert answers == [f"CALL {number}".encode() for number in range(20)]
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
        answer = await reader.read()
        if answer:
            heard.append(answer)
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
        writer.write_eof()
        await rest(reader)
        writer.close()
    service.close()
    return heard


async def test_programs_introduce_themselves_as_their_endpoint_does(place: Place) -> None:
    place.introductions[NAME] = introductions(IDENTITY)
    plain = IDENTITY.encode() + b"\nGET / HTTP/1.1\r\n\r\n"
    secure = preamble(IDENTITY.encode() + b"\n") + b"GET /s HTTP/1.1\r\n\r\n"
    assert await buckets(place, plain, secure) == [plain, secure]


async def test_nobody_introduces_himself_as_anothers_program(place: Place) -> None:
    place.introductions[NAME] = introductions(IDENTITY)
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
    place.introductions.clear()
    assert await buckets(place, IDENTITY.encode() + tail) == []
