"""The service forwards gRPC connections from sockets that systemd keeps open (`serve.relay`)."""

import asyncio
import random
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from trainshed.serve import relay
from trainshed.serve.relay import Relay

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, HEADERS, DATA = 4, 1, 0


def frame(kind: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, 0]) + stream.to_bytes(4) + payload


def goaway_frame(last: int) -> bytes:
    return frame(7, 0, last.to_bytes(4) + bytes(4))


class RelaySetup:
    """A relay before a server that records the received data and its callers."""

    def __init__(self, port: int, passing: Relay) -> None:
        self.port = port
        self.relay = passing
        self.peers = list[str]()
        self.received = asyncio.Queue[bytes]()
        self.writers = list[asyncio.StreamWriter]()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peers.append(writer.get_extra_info("peername").decode())
        self.writers.append(writer)
        while data := await reader.read(1 << 16):
            self.received.put_nowait(data)
        writer.close()

    async def receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += await self.received.get()
        return data


@asynccontextmanager
async def relay_setup(place: Path, limit: int = 10) -> AsyncGenerator[RelaySetup]:
    listener = socket.create_server(("127.0.0.1", 0))
    path = place / "grpc.sock"
    setup = RelaySetup(listener.getsockname()[1], Relay(listener, path, limit))
    async with asyncio.timeout(30):
        server = await asyncio.start_unix_server(setup.serve, path)
        await setup.relay.start()
        yield setup
        await setup.relay.close(0)
        server.close()


async def test_calls_are_forwarded_until_the_relay_closes(tmp_path: Path) -> None:
    """Calls arrive in arbitrary pieces. Calls sent after the close are not forwarded, and the client learns
    the number of the last forwarded call."""
    async with relay_setup(tmp_path) as setup:
        reader, writer = await asyncio.open_connection("127.0.0.1", setup.port)
        sent = PREFACE + frame(SETTINGS, 0) + frame(HEADERS, 1, b"h" * 300) + frame(HEADERS, 3)
        for piece in pieces(sent):
            writer.write(piece)
            await writer.drain()
        assert await setup.receive(len(sent)) == sent
        assert setup.peers[0].startswith("\0trainshed/") and setup.peers[0].endswith("/127.0.0.1/")
        answer = frame(SETTINGS, 0, b"s" * 6) + frame(DATA, 1, b"d" * 500)
        setup.writers[0].write(answer[:-200])
        assert await reader.readexactly(len(answer) - 200) == answer[:-200]
        closing = asyncio.create_task(setup.relay.close(20))
        await asyncio.sleep(0)
        setup.writers[0].write(answer[-200:] + frame(DATA, 3))
        # The data must not end inside a frame.
        rest = answer[-200:] + goaway_frame(3) + frame(DATA, 3)
        assert await reader.readexactly(len(rest)) == rest
        writer.write(frame(HEADERS, 5, b"new") + frame(DATA, 5, b"new") + frame(DATA, 3, b"old"))
        assert await setup.receive(12) == frame(DATA, 3, b"old")
        assert not closing.done()
        writer.close()
        await closing


def pieces(data: bytes) -> list[bytes]:
    cuts = sorted(random.sample(range(1, len(data)), 20))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


async def test_connections_without_http2_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with relay_setup(tmp_path) as setup:
        reader, writer = await asyncio.open_connection("127.0.0.1", setup.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        monkeypatch.setattr(relay, "_PREFACE_TIMEOUT", 0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", setup.port)
        assert await reader.read() == b""
        writer.close()
        assert setup.peers == []


async def test_number_of_forwarded_connections_is_limited(tmp_path: Path) -> None:
    async with relay_setup(tmp_path, limit=2) as setup:
        opened = [await asyncio.open_connection("127.0.0.1", setup.port) for _ in range(2)]
        for _, writer in opened:
            writer.write(PREFACE)
        await setup.receive(2 * len(PREFACE))
        reader, writer = await asyncio.open_connection("127.0.0.1", setup.port)
        writer.write(PREFACE)
        assert await reader.read() == b""
        assert len(setup.peers) == 2
        for _, other in (*opened, (reader, writer)):
            other.close()


async def test_server_disconnect_closes_the_client_connection(tmp_path: Path) -> None:
    async with relay_setup(tmp_path) as setup:
        reader, writer = await asyncio.open_connection("127.0.0.1", setup.port)
        writer.write(PREFACE)
        await setup.receive(len(PREFACE))
        setup.writers[0].close()
        assert await reader.read() == b""
        writer.close()
