"""The front of gRPC: connections wait while it loads, TLS by the service's own authority, bytes both ways."""

import asyncio
import contextlib
import importlib
import socket
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api.house import House
from trainshed.access import strangers
from trainshed.replica.system.listening import listen_tcp
from trainshed.serve import certificates
from trainshed.serve.grpc_front import GrpcFront, GrpcPorts, Relay

grpc: Any = importlib.import_module("grpc")

LIST = "/google.cloud.aiplatform.v1.JobService/ListCustomJobs"
REQUEST = b"\n\x21projects/p1/locations/us-central1"


def listener() -> socket.socket:
    opened = listen_tcp("127.0.0.1", 0)
    opened.setblocking(False)
    return opened


def sockets(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.suffix == ".sock")


class Fronted:
    def __init__(self, house: House, doors: GrpcPorts, front: GrpcFront) -> None:
        self.house, self.doors, self.front = house, doors, front
        self.plain = f"127.0.0.1:{doors.plain.getsockname()[1]}"
        self.secure = f"localhost:{doors.secure.getsockname()[1]}"

    async def call(self, channel: Any) -> bytes:
        metadata = (("authorization", f"Bearer {self.house.token}"),)
        async with channel:
            return await channel.unary_unary(LIST)(REQUEST, metadata=metadata, timeout=60)


@pytest.fixture
async def fronted(house: House, tmp_path: Path) -> AsyncGenerator[Fronted]:
    certified: Future[certificates.Certificates] = Future()
    certified.set_result(certificates.own(tmp_path / "tls", "127.0.0.1", time.time()))
    doors = GrpcPorts(listener(), listener(), certified)
    front = GrpcFront(doors, listener(), tmp_path, house.services, house.signing_in.authenticate)
    await front.start()
    yield Fronted(house, doors, front)
    await front.close(1)


async def test_connections_that_come_while_it_loads_are_all_served(fronted: Fronted) -> None:
    channels = [grpc.aio.insecure_channel(fronted.plain) for _ in range(20)]
    answers = await asyncio.gather(*(fronted.call(channel) for channel in channels))
    assert answers == [b""] * 20


async def test_who_guesses_tokens_is_known_by_the_address(
    fronted: Fronted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC itself is called from a Unix socket, whoever is at the other end of the relay."""
    monkeypatch.setattr(strangers, "_DELAY", 0.0)
    metadata = (("authorization", "Bearer guessed"),)
    async with grpc.aio.insecure_channel(fronted.plain) as channel:
        for _ in range(31):
            with pytest.raises(grpc.aio.AioRpcError, match="not known here"):
                await channel.unary_unary(LIST)(REQUEST, metadata=metadata, timeout=60)
    [row] = await fronted.house.store.access.audited(None, None, 10)
    assert (row.record.method, row.record.source) == ("trainshed.v1.Tokens.Refused", "127.0.0.1")


async def test_tls_is_trusted_by_the_ca_and_by_nothing_else(fronted: Fronted) -> None:
    """Issue 4, item 1: the ready file's `ca` is what a client needs."""
    files = fronted.doors.certified.result()
    for roots in (files.ca, files.roots):
        trusting = grpc.ssl_channel_credentials(roots.read_bytes())
        assert await fronted.call(grpc.aio.secure_channel(fronted.secure, trusting)) == b""
    strange = grpc.ssl_channel_credentials()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await fronted.call(grpc.aio.secure_channel(fronted.secure, strange))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "CERTIFICATE_VERIFY_FAILED" in refused.value.details()


async def test_closing_ends_connections_and_leaves_no_sockets(
    fronted: Fronted, tmp_path: Path
) -> None:
    channel = grpc.aio.insecure_channel(fronted.plain)
    metadata = (("authorization", f"Bearer {fronted.house.token}"),)
    await channel.unary_unary(LIST)(REQUEST, metadata=metadata, timeout=60)
    assert sockets(tmp_path) == ["grpc-tls.sock", "grpc.sock"]
    await asyncio.wait_for(fronted.front.close(1), 60)
    assert sockets(tmp_path) == []
    with pytest.raises(grpc.aio.AioRpcError) as gone:
        await channel.unary_unary(LIST)(REQUEST, metadata=metadata, timeout=60)
    assert gone.value.code() is grpc.StatusCode.UNAVAILABLE
    await channel.close()


# --- the relay alone


class Relayed:
    """A relay to a server of the test's; `open` gives the client's end."""

    def __init__(self, relay: Relay, server: asyncio.Server, address: tuple[str, int]) -> None:
        # A server that nobody holds is collected, and listens no more.
        self.relay, self.server, self._address = relay, server, address

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self._address)


Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


async def relayed(
    path: Path, handle: Handle, ready: asyncio.Event | None = None, most: int = 100
) -> Relayed:
    server = await asyncio.start_unix_server(handle, path)

    async def target() -> Path:
        if ready is not None:
            await ready.wait()
        return path

    door = listener()
    relay = Relay(door, target, most)
    await relay.start()
    return Relayed(relay, server, door.getsockname())


async def test_an_end_of_the_stream_goes_on_and_the_answer_still_comes_back(tmp_path: Path) -> None:
    """Half-close: the server answers only when it has seen the client's end."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()
        writer.write(data[::-1])
        writer.close()

    running = await relayed(tmp_path / "s", answer)
    reader, writer = await running.open()
    writer.write(b"abc")
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 60) == b"cba"
    writer.close()
    running.relay.refuse()


async def test_nobody_calls_for_clients_that_have_gone_meanwhile(tmp_path: Path) -> None:
    """Thousands may come and go while gRPC is loaded: to call for all of them at once takes all files."""
    called = 0

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal called
        called += 1
        writer.write(await reader.read())
        writer.close()

    ready = asyncio.Event()
    relay = await relayed(tmp_path / "server.sock", echo, ready, most=2)
    clients = [await relay.open() for _ in range(20)]
    for reader, _ in clients[:-2]:
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
    ready.set()
    for reader, writer in clients[-2:]:
        writer.write(b"still here")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 60) == b"still here"
    assert called == 2
    relay.relay.abort()


async def test_a_slow_reader_holds_the_writer_up(tmp_path: Path) -> None:
    """Back-pressure: what nobody reads is not piled up in the service."""
    written = 0
    stuck = asyncio.Event()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        try:
            while written < 1 << 30:
                writer.write(bytes(1 << 16))
                await asyncio.wait_for(writer.drain(), 1)
                written += 1 << 16
        except TimeoutError:
            stuck.set()

    running = await relayed(tmp_path / "s", pour)
    _, writer = await running.open()
    await asyncio.wait_for(stuck.wait(), 60)
    assert written < 64 << 20
    writer.close()
    running.relay.refuse()
    running.relay.abort()


async def test_a_target_that_fails_closes_the_connection_and_is_tried_again() -> None:
    tries = 0

    async def failing() -> Path:
        nonlocal tries
        tries += 1
        raise OSError("not today")

    door = listener()
    relay = Relay(door, failing, 100)
    await relay.start()
    for _ in range(2):
        reader, writer = await asyncio.open_connection(*door.getsockname())
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
    assert tries == 2
    relay.refuse()
