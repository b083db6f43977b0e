"""Connections of gRPC that are passed on from sockets that systemd keeps (`serve.relay`)."""

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


def goaway(last: int) -> bytes:
    return frame(7, 0, last.to_bytes(4) + bytes(4))


class Lab:
    """A relay before a server that notes what it receives and by whom it is called."""

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
async def lab_in(place: Path, limit: int = 10) -> AsyncGenerator[Lab]:
    listener = socket.create_server(("127.0.0.1", 0))
    path = place / "grpc.sock"
    lab = Lab(listener.getsockname()[1], Relay(listener, path, limit))
    async with asyncio.timeout(30):
        server = await asyncio.start_unix_server(lab.serve, path)
        await lab.relay.start()
        yield lab
        await lab.relay.close(0)
        server.close()


async def test_calls_are_passed_on_until_the_relay_closes(tmp_path: Path) -> None:
    """Whatever pieces they come in. Later ones wait at the client, which learns the last one."""
    async with lab_in(tmp_path) as lab:
        reader, writer = await asyncio.open_connection("127.0.0.1", lab.port)
        sent = PREFACE + frame(SETTINGS, 0) + frame(HEADERS, 1, b"h" * 300) + frame(HEADERS, 3)
        for piece in pieces(sent):
            writer.write(piece)
            await writer.drain()
        assert await lab.receive(len(sent)) == sent
        assert lab.peers[0].startswith("\0trainshed/") and lab.peers[0].endswith("/127.0.0.1/")
        answer = frame(SETTINGS, 0, b"s" * 6) + frame(DATA, 1, b"d" * 500)
        lab.writers[0].write(answer[:-200])
        assert await reader.readexactly(len(answer) - 200) == answer[:-200]
        closing = asyncio.create_task(lab.relay.close(20))
        await asyncio.sleep(0)
        lab.writers[0].write(answer[-200:] + frame(DATA, 3))
        # Not amid a frame.
        rest = answer[-200:] + goaway(3) + frame(DATA, 3)
        assert await reader.readexactly(len(rest)) == rest
        writer.write(frame(HEADERS, 5, b"new") + frame(DATA, 5, b"new") + frame(DATA, 3, b"old"))
        assert await lab.receive(12) == frame(DATA, 3, b"old")
        assert not closing.done()
        writer.close()
        await closing


def pieces(data: bytes) -> list[bytes]:
    cuts = sorted(random.sample(range(1, len(data)), 20))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


async def test_callers_that_send_nothing_or_no_http2_are_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab_in(tmp_path) as lab:
        reader, writer = await asyncio.open_connection("127.0.0.1", lab.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        monkeypatch.setattr(relay, "_PREFACE_TIMEOUT", 0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", lab.port)
        assert await reader.read() == b""
        writer.close()
        assert lab.peers == []


async def test_no_more_connections_than_allowed_are_passed_on(tmp_path: Path) -> None:
    async with lab_in(tmp_path, limit=2) as lab:
        opened = [await asyncio.open_connection("127.0.0.1", lab.port) for _ in range(2)]
        for _, writer in opened:
            writer.write(PREFACE)
        await lab.receive(2 * len(PREFACE))
        reader, writer = await asyncio.open_connection("127.0.0.1", lab.port)
        writer.write(PREFACE)
        assert await reader.read() == b""
        assert len(lab.peers) == 2
        for _, other in (*opened, (reader, writer)):
            other.close()


async def test_the_end_of_the_server_ends_the_connection(tmp_path: Path) -> None:
    async with lab_in(tmp_path) as lab:
        reader, writer = await asyncio.open_connection("127.0.0.1", lab.port)
        writer.write(PREFACE)
        await lab.receive(len(PREFACE))
        lab.writers[0].close()
        assert await reader.read() == b""
        writer.close()
