"""gRPC on ports: TLS by the service's own authority, who calls, how many at once."""

import asyncio
import importlib
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from tests.commands import execute
from tests.contract.api.house import House
from trainshed.access import strangers
from trainshed.api import grpc as grpc_module
from trainshed.api.grpc import GrpcServer, Identity
from trainshed.core.errors import Unavailable
from trainshed.replica.system.listening import hold_tcp
from trainshed.serve import certificates

grpc: Any = importlib.import_module("grpc")

LIST = "/google.cloud.aiplatform.v1.JobService/ListCustomJobs"
REQUEST = b"\n\x21projects/p1/locations/us-central1"
MOST = 4


class Serving:
    def __init__(self, house: House, files: certificates.Certificates) -> None:
        self.house, self.files = house, files
        self.server = GrpcServer(house.services, house.issuers.authenticate, MOST)
        self.held = [hold_tcp("127.0.0.1", 0) for _ in range(2)]  # Else others could take them.
        self.ports = [held.getsockname()[1] for held in self.held]
        self.plain, self.secure = f"127.0.0.1:{self.ports[0]}", f"localhost:{self.ports[1]}"
        self.server.listen(self.plain)
        identity = Identity(files.key.read_bytes(), files.chain.read_bytes())
        self.server.listen(f"127.0.0.1:{self.ports[1]}", identity)

    async def call(self, channel: Any) -> bytes:
        async with channel:
            return await asked(channel, self.house.token)


async def asked(channel: Any, token: str) -> bytes:
    metadata = (("authorization", f"Bearer {token}"),)
    return await channel.unary_unary(LIST)(REQUEST, metadata=metadata, timeout=60)


@pytest.fixture
async def serving(house: House, tmp_path: Path) -> AsyncGenerator[Serving]:
    made = Serving(house, certificates.own(tmp_path / "tls", "127.0.0.1", time.time()))
    await made.server.start()
    yield made
    await made.server.stop(1)


async def test_it_listens_at_a_port_that_is_held_for_it(house: House) -> None:
    """By the service, so that nobody else can take it, and by children that are just being forked."""
    server = GrpcServer(house.services, house.issuers.authenticate)
    with hold_tcp("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        server.listen(f"127.0.0.1:{port}")
        await server.start()
        with socket.create_connection(("127.0.0.1", port), timeout=60):
            pass
        with pytest.raises(OSError, match="in use"):
            hold_tcp("127.0.0.1", port)
    await server.stop(1)


async def test_a_caller_not_known_at_first_is_not_heard(house: House, tmp_path: Path) -> None:
    """Nothing of the request was read, and nothing must be done in its place."""
    known = house.tokens.authenticate(f"Bearer {house.token}")
    silent = Unavailable("the issuer is silent")
    server = GrpcServer(house.services, AsyncMock(side_effect=[silent, known]))
    server.listen(address := f"unix:{tmp_path / 's'}")
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="the issuer is silent"):
            await asked(channel, house.token)
    await server.stop(1)


def test_grpc_does_nothing_where_the_service_forks() -> None:
    """Else the child breaks connections of clients, on its way to another program."""
    serving = "from trainshed.api.grpc import grpc; server = grpc.server(None); server.start()"
    words = (sys.executable, "-c", f"{serving}; import os; os.fork(); os._exit(0)")
    done = execute(*words, env=os.environ | {"GRPC_VERBOSITY": "info"}, check=True)
    assert "fork_posix" not in done.stderr


async def test_who_guesses_tokens_is_known_by_the_address(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "_DELAY", 0.0)
    async with grpc.aio.insecure_channel(serving.plain) as channel:
        for _ in range(31):
            with pytest.raises(grpc.aio.AioRpcError, match="not known here"):
                await asked(channel, "guessed")
    [row] = await serving.house.store.access.audited(None, None, 10)
    assert (row.record.method, row.record.source) == ("trainshed.v1.Tokens.Refused", "127.0.0.1")


async def test_tls_is_trusted_by_the_ca_and_by_nothing_else(serving: Serving) -> None:
    """Issue 4, item 1: `ca` in service.json is what a client needs."""
    for roots in (serving.files.ca, serving.files.roots):
        trusting = grpc.ssl_channel_credentials(roots.read_bytes())
        assert await serving.call(grpc.aio.secure_channel(serving.secure, trusting)) == b""
    strange = grpc.ssl_channel_credentials()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await serving.call(grpc.aio.secure_channel(serving.secure, strange))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "CERTIFICATE_VERIFY_FAILED" in refused.value.details()


async def test_a_crowd_at_one_port_shuts_nobody_out_of_the_other(serving: Serving) -> None:
    crowd = [socket.create_connection(("127.0.0.1", serving.ports[0]), 60) for _ in range(MOST)]
    assert all(early.recv(1) for early in crowd)
    with socket.create_connection(("127.0.0.1", serving.ports[0]), 60) as late:
        assert late.recv(1) == b""
    trusting = grpc.ssl_channel_credentials(serving.files.ca.read_bytes())
    assert await serving.call(grpc.aio.secure_channel(serving.secure, trusting)) == b""
    for early in crowd:
        early.close()
    # The ends of the crowd reach the port in their time.
    await asyncio.wait_for((calm := grpc.aio.insecure_channel(serving.plain)).channel_ready(), 60)
    assert await serving.call(calm) == b""


async def test_the_end_of_an_old_connection_is_no_error(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC's clients print errors with which a server ends a connection."""
    name = "grpc.max_connection_age_ms"
    assert name in dict(grpc_module.OPTIONS)
    options = tuple({**dict(grpc_module.OPTIONS), name: 200}.items())
    monkeypatch.setattr(grpc_module, "OPTIONS", options)
    server = GrpcServer(house.services, house.issuers.authenticate)
    server.listen(address := f"unix:{tmp_path / 's'}")
    await server.start()
    done = await asyncio.to_thread(
        execute, *(sys.executable, "-c", OUTLIVING, address, LIST, house.token), check=True
    )
    assert (done.stdout, done.stderr) == ("ended, called again\n", "")
    await server.stop(1)


OUTLIVING = """
import asyncio, sys
import grpc
from grpc.aio import insecure_channel

async def main(address, method, token):
    async with insecure_channel(address) as channel:
        metadata = (("authorization", f"Bearer {token}"),)
        request = b"\\n\\x21projects/p1/locations/us-central1"
        await channel.unary_unary(method)(request, metadata=metadata)
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        await channel.unary_unary(method)(request, metadata=metadata)
    print("ended, called again")

asyncio.run(main(*sys.argv[1:]))
"""
"""A client that waits for the end of its connection, and calls again."""
