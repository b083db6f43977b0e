"""Tunnels between programs on a node and the service's sockets. Both directions work, and little is
buffered."""

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.remote.conftest import NAME, HubLab
from trainshed.replica.protocol import preamble
from trainshed_cluster.remote import dialer

pytestmark = pytest.mark.anyio

MIB = 1 << 20
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
IDENTITY = json.dumps({"job_uid": "7", "attempt": 0, "replica": "worker-0", "project": "p1"})
PREAMBLES = {preamble(IDENTITY, is_secure=False), preamble(IDENTITY, is_secure=True)}


async def serve_socket(hub_lab: HubLab, name: str, handler: Handler) -> asyncio.Server:
    """Run a service that listens on one of its sockets."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await handler(reader, writer)

    server = await asyncio.start_unix_server(serve, hub_lab.sockets[name])
    hub_lab.services.append(server)
    return server


async def node_socket(hub_lab: HubLab, name: str) -> Path:
    path = hub_lab.directory / f"node-{name}.sock"
    await hub_lab.dialer().listen(name, path)
    return path


async def remaining_bytes(reader: asyncio.StreamReader) -> bytes:
    """Return the remaining bytes, also of a reset connection."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.readline()).upper())
    writer.close()


async def request(path: Path, line: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(line + b"\n")
    answer = await reader.read()
    writer.close()
    return answer


async def test_bytes_sent_before_a_tunnel_closes_are_received(hub_lab: HubLab) -> None:
    """The end of either side closes both directions."""
    await serve_socket(hub_lab, "rest", upper)
    path = await node_socket(hub_lab, "rest")
    assert path.stat().st_mode & 0o777 == 0o600
    assert await request(path, b"asked") == b"ASKED\n"

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.set_result(len(await reader.read()))
        writer.close()

    heard: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    await serve_socket(hub_lab, "grpc", listen)
    _, writer = await hub_lab.dialer().open("grpc")
    writer.write(bytes(4 * MIB))
    writer.close()
    assert await heard == 4 * MIB


async def test_tunnel_transfers_64_mib_in_both_directions_at_once(hub_lab: HubLab) -> None:
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

    await serve_socket(hub_lab, "rest", both)
    reader, writer = await asyncio.open_unix_connection(await node_socket(hub_lab, "rest"))
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


async def test_slow_reader_of_a_tunnel_blocks_the_writer(hub_lab: HubLab) -> None:
    go = asyncio.Event()
    counted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        counted.set_result(len(await reader.read()))
        writer.close()

    await serve_socket(hub_lab, "rest", slow)
    _, writer = await asyncio.open_unix_connection(await node_socket(hub_lab, "rest"))
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
    # The kernel's buffers of three connections contain the rest.
    assert written < 40 * MIB
    go.set()
    await filling
    writer.close()
    assert await counted == written


async def test_request_through_a_tunnel_ends_when_its_program_is_killed(hub_lab: HubLab) -> None:
    ended = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(bytes(MIB))
                await writer.drain()
        finally:
            ended.set()

    await serve_socket(hub_lab, "rest", endless)
    reader, writer = await asyncio.open_unix_connection(await node_socket(hub_lab, "rest"))
    await reader.readexactly(MIB)
    writer.transport.abort()
    await ended.wait()


async def test_connection_waits_for_an_unavailable_service(hub_lab: HubLab) -> None:
    """First no service listens on the socket, then the hub (the server for agents) is down."""
    path = await node_socket(hub_lab, "rest")

    waiting = asyncio.ensure_future(request(path, b"hello"))
    await asyncio.sleep(0.2)
    service = await serve_socket(hub_lab, "rest", upper)
    assert await waiting == b"HELLO\n"
    await hub_lab.hub.close()
    waiting = asyncio.ensure_future(request(path, b"hello"))
    await asyncio.sleep(0.2)
    hub_lab.hub = hub_lab.new_hub(hub_lab.hub.port)
    await hub_lab.hub.start()
    assert await waiting == b"HELLO\n"
    service.close()


async def test_connections_over_the_tunnel_limit_wait_on_the_node_and_then_succeed(
    hub_lab: HubLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialer, "_MAX_TUNNELS", 3)
    now, most = 0, 0

    async def counting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await upper(reader, writer)
        now -= 1

    await serve_socket(hub_lab, "rest", counting)
    path = await node_socket(hub_lab, "rest")
    calls = (request(path, f"call {number}".encode()) for number in range(20))
    answers = await asyncio.gather(*calls)
    assert answers == [f"CALL {number}\n".encode() for number in range(20)]
    assert most <= 3


async def test_tunnels_of_a_revoked_agent_are_closed_at_once(hub_lab: HubLab) -> None:
    path = await node_socket(hub_lab, "rest")
    hub_lab.admitted.discard(NAME)
    reader, _ = await asyncio.open_unix_connection(path)
    assert await remaining_bytes(reader) == b""


async def buckets(hub_lab: HubLab, *lines: bytes) -> list[bytes]:
    """Return the preambles that the bucket process receives."""
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"answered")
        writer.close()

    service = await serve_socket(hub_lab, "buckets", listen)
    path = await node_socket(hub_lab, "buckets")
    for line in lines:
        reader, writer = await asyncio.open_unix_connection(path)
        # In two parts, as the network may deliver it.
        writer.write(line[:20])
        await writer.drain()
        writer.write(line[20:])
        await remaining_bytes(reader)
        writer.close()
    service.close()
    return heard


async def test_connection_with_a_valid_identity_line_reaches_the_buckets_unchanged(hub_lab: HubLab) -> None:
    hub_lab.preambles[NAME] = PREAMBLES
    plain = IDENTITY.encode() + b"\nGET / HTTP/1.1\r\n\r\n"
    secure = preamble(IDENTITY, is_secure=True) + b"GET /s HTTP/1.1\r\n\r\n"
    assert await buckets(hub_lab, plain, secure) == [plain, secure]


async def test_connection_with_the_identity_line_of_another_program_is_rejected(hub_lab: HubLab) -> None:
    hub_lab.preambles[NAME] = PREAMBLES
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
    # Two parsers could read different identities from it.
    foreign.append(IDENTITY[:-1] + ', "project": "p2"}')
    foreign.append('{"project": "p2", ' + IDENTITY[1:])
    foreign += [IDENTITY + " ", " " + IDENTITY, IDENTITY + "\r", "", "{}", "x" * 5000]
    tail = b"\nGET / HTTP/1.1\r\n\r\n"
    assert await buckets(hub_lab, *(line.encode() + tail for line in foreign)) == []
    assert await buckets(hub_lab, b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n", IDENTITY.encode()) == []
    hub_lab.preambles.clear()
    assert await buckets(hub_lab, IDENTITY.encode() + tail) == []
