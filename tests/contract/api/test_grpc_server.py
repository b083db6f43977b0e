"""gRPC on ports: TLS with the service's own CA, the caller's address, the connection limit."""

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
from tests.contract.api.api_service import ApiService
from trainshed.access import authentication_limits
from trainshed.api import grpc as grpc_module
from trainshed.api.grpc import GrpcServer, Identity
from trainshed.core.errors import Unavailable
from trainshed.replica.system.listening import hold_tcp
from trainshed.serve import certificates

grpc: Any = importlib.import_module("grpc")

LIST = "/google.cloud.aiplatform.v1.JobService/ListCustomJobs"
REQUEST = b"\n\x21projects/p1/locations/us-central1"
MAX_CONNECTIONS = 4


class RunningServer:
    def __init__(self, service: ApiService, files: certificates.Certificates) -> None:
        self.service, self.files = service, files
        self.server = GrpcServer(service.services, service.issuers.authenticate, MAX_CONNECTIONS)
        # Held sockets keep other processes from binding these ports.
        self.held = [hold_tcp("127.0.0.1", 0) for _ in range(2)]
        self.ports = [held.getsockname()[1] for held in self.held]
        self.plain, self.secure = f"127.0.0.1:{self.ports[0]}", f"localhost:{self.ports[1]}"
        self.server.listen(self.plain)
        identity = Identity(files.key.read_bytes(), files.chain.read_bytes())
        self.server.listen(f"127.0.0.1:{self.ports[1]}", identity)

    async def call(self, channel: Any) -> bytes:
        async with channel:
            return await list_jobs(channel, self.service.token)


async def list_jobs(channel: Any, token: str) -> bytes:
    metadata = (("authorization", f"Bearer {token}"),)
    return await channel.unary_unary(LIST)(REQUEST, metadata=metadata, timeout=60)


@pytest.fixture
async def serving(service: ApiService, tmp_path: Path) -> AsyncGenerator[RunningServer]:
    made = RunningServer(
        service, certificates.prepare_own_certificates(tmp_path / "tls", "127.0.0.1", time.time())
    )
    await made.server.start()
    yield made
    await made.server.stop(1)


async def test_grpc_server_listens_on_a_port_reserved_by_the_service(service: ApiService) -> None:
    """The service holds the port, so no other process can bind it. Children inherit the held socket
    while they are being forked."""
    server = GrpcServer(service.services, service.issuers.authenticate)
    with hold_tcp("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        server.listen(f"127.0.0.1:{port}")
        await server.start()
        with socket.create_connection(("127.0.0.1", port), timeout=60):
            pass
        with pytest.raises(OSError, match="in use"):
            hold_tcp("127.0.0.1", port)
    await server.stop(1)


async def test_call_with_failed_authentication_is_not_executed(service: ApiService, tmp_path: Path) -> None:
    """The server has not read the request yet, and must not perform any action for it."""
    known = service.tokens.authenticate(f"Bearer {service.token}")
    silent = Unavailable("the issuer is silent")
    server = GrpcServer(service.services, AsyncMock(side_effect=[silent, known]))
    server.listen(address := f"unix:{tmp_path / 's'}")
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="the issuer is silent"):
            await list_jobs(channel, service.token)
    await server.stop(1)


def test_grpc_fork_handlers_are_disabled() -> None:
    """gRPC's fork handlers would break client connections in the child before it executes another program."""
    serving = "from trainshed.api.grpc import grpc; server = grpc.server(None); server.start()"
    words = (sys.executable, "-c", f"{serving}; import os; os.fork(); os._exit(0)")
    done = execute(*words, env=os.environ | {"GRPC_VERBOSITY": "info"}, check=True)
    assert "fork_posix" not in done.stderr


async def test_token_guessing_is_recorded_with_the_clients_address(
    serving: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication_limits, "_DELAY_SECONDS", 0.0)
    async with grpc.aio.insecure_channel(serving.plain) as channel:
        for _ in range(31):
            with pytest.raises(grpc.aio.AioRpcError, match="not known to this service"):
                await list_jobs(channel, "guessed")
    [row] = await serving.service.store.access.audit_rows(None, None, 10)
    assert (row.record.method, row.record.source) == ("trainshed.v1.Tokens.Refused", "127.0.0.1")


async def test_tls_certificate_is_trusted_only_with_the_services_ca(serving: RunningServer) -> None:
    """Clients need only the file `ca` of service.json."""
    for roots in (serving.files.ca, serving.files.roots):
        trusting = grpc.ssl_channel_credentials(roots.read_bytes())
        assert await serving.call(grpc.aio.secure_channel(serving.secure, trusting)) == b""
    strange = grpc.ssl_channel_credentials()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await serving.call(grpc.aio.secure_channel(serving.secure, strange))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "CERTIFICATE_VERIFY_FAILED" in refused.value.details()


async def test_connection_limit_of_the_plain_grpc_port_does_not_block_the_tls_port(
    serving: RunningServer,
) -> None:
    connections = [
        socket.create_connection(("127.0.0.1", serving.ports[0]), 60) for _ in range(MAX_CONNECTIONS)
    ]
    assert all(early.recv(1) for early in connections)
    with socket.create_connection(("127.0.0.1", serving.ports[0]), 60) as late:
        assert late.recv(1) == b""
    trusting = grpc.ssl_channel_credentials(serving.files.ca.read_bytes())
    assert await serving.call(grpc.aio.secure_channel(serving.secure, trusting)) == b""
    for early in connections:
        early.close()
    # The server notices the closed connections asynchronously.
    await asyncio.wait_for((free_channel := grpc.aio.insecure_channel(serving.plain)).channel_ready(), 60)
    assert await serving.call(free_channel) == b""


async def test_expired_connection_closes_without_client_error(
    service: ApiService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC clients print an error when a server ends a connection abruptly."""
    name = "grpc.max_connection_age_ms"
    assert name in dict(grpc_module.OPTIONS)
    options = tuple({**dict(grpc_module.OPTIONS), name: 200}.items())
    monkeypatch.setattr(grpc_module, "OPTIONS", options)
    server = GrpcServer(service.services, service.issuers.authenticate)
    server.listen(address := f"unix:{tmp_path / 's'}")
    await server.start()
    done = await asyncio.to_thread(
        execute, *(sys.executable, "-c", RECONNECTING_CLIENT, address, LIST, service.token), check=True
    )
    assert (done.stdout, done.stderr) == ("ended, called again\n", "")
    await server.stop(1)


RECONNECTING_CLIENT = """
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
"""A client that waits until the server ends its connection, and then calls again."""
