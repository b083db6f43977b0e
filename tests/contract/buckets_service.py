"""A bucket process for a test, for real clients: directly, and through the API process's gateway."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import uvicorn
from msgspec.structs import replace

from tests.e2e import fork_server
from tests.people import create_authority, write
from trainshed.access.book import FILE
from trainshed.access.principals import Principal
from trainshed.buckets.authentication import Authenticator
from trainshed.buckets.callers import address_with_key
from trainshed.buckets.gateway import BucketsGateway
from trainshed.buckets.listeners import Listeners, encode
from trainshed.buckets.setup import BucketRules, BucketSetup
from trainshed.httpd.connections import Limits
from trainshed.httpd.protocol import ConnectionGroups, guarded_protocol, server_config
from trainshed.httpd.secure import SecureServer
from trainshed.replica.system.listening import hold_tcp, listen_tcp

MIB = 1 << 20
MODULE = ("-m", "trainshed.buckets")


OWN = BucketRules("own")


class Service:
    """A bucket process for one test, and a gateway to it."""

    def __init__(self, directory: Path, rules: BucketRules = OWN) -> None:
        self.root = directory / "store"
        # Longer than the maximum length of a Unix socket's address.
        self.uds = directory / ("n" * 80) / ("m" * 80) / "gateway.sock"
        self.uds.parent.mkdir(parents=True)
        self.replicas = self.uds.with_name("buckets.sock")
        self.tokens, self.token = create_authority(time.time_ns)
        self.file = directory / FILE
        self.publish()
        self.setup = BucketSetup(
            root=str(self.root),
            gateway=str(self.uds),
            replicas=str(self.replicas),
            host="127.0.0.1",
            tokens=str(self.file),
            rules=rules,
        )
        self.held = hold_tcp("127.0.0.1", 0)  # prevents use by other programs between two starts
        self.port = self.held.getsockname()[1]
        self.listeners = Listeners()
        self.process: fork_server.ForkedProcess | None = None
        self.start()

    def start(self) -> None:
        """Start the process, or restart it at the same address. Return when it listens."""
        if not self.listeners.is_open:
            self.listeners = Listeners.open(replace(self.setup, port=self.port))
        descriptors = {name: listener.fileno() for name, listener in self.listeners.sockets().items()}
        self.process = fork_server.buckets().fork(
            [*MODULE, "0", self.setup.encode(), encode(descriptors)],
            os.environ,
            stdout=1,
            stderr=2,
            kept=[*descriptors.values()],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()

    def publish(self) -> None:
        """Store the current access book for the process."""
        write(self.file, self.tokens, self.token)

    def gateway(self) -> BucketsGateway:
        """Return a gateway like that of the API's process."""

        async def authenticate(header: str) -> Principal:
            return self.tokens.authenticate(header)

        known = Authenticator(lambda: self.tokens, authenticate)
        return BucketsGateway(self.uds, known.caller)

    def address(self, port: int | None = None) -> str:
        """Return the address of a port (default: the process's own) for clients that send no token."""
        return address_with_key(f"http://127.0.0.1:{port or self.port}", self.token)

    @property
    def bearer(self) -> dict[str, str]:
        """The Authorization header with the owner's token."""
        return {"Authorization": f"Bearer {self.token}"}

    def call(self, method: str, target: str, body: Any = b"") -> tuple[int, Any]:
        """Send the owner's request to the process's port. Objects are sent and returned as JSON."""
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        status, _, answer = send_request(self.port, method, target, content, self.bearer)
        return status, json.loads(answer) if answer.startswith(b"{") else answer

    def put(self, bucket: str, name: str, content: bytes) -> None:
        target = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
        status, answer = self.call("POST", target, content)
        assert status == 200, answer

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(60)
        self.listeners.close()
        return status


@contextmanager
def serving(app: Any) -> Generator[int, None, None]:
    """Serve an ASGI application on a loopback port, in a thread."""
    listener = listen_tcp("127.0.0.1", 0)
    server = uvicorn.Server(
        uvicorn.Config(app, lifespan="off", log_level="warning", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(60)


@contextmanager
def front(app: Any) -> Generator[int, None, None]:
    """Serve an application like `serving`, with the HTTP server of the service's own processes."""
    listener = listen_tcp("127.0.0.1", 0)
    groups = ConnectionGroups(Limits())
    server = SecureServer(server_config(app, guarded_protocol(groups), grace=1), (), groups)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(60)


def client_at(address: str) -> Any:
    """Return the unmodified client. The type is Any, since most parameters of the library are untyped."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage  # pyright: ignore[reportMissingTypeStubs] it ships none

    return storage.Client(
        project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": address}
    )


def send_request(
    port: int,
    method: str,
    target: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    *,
    lower: bool = True,
) -> tuple[int, dict[str, str], bytes]:
    """Send one request over its own connection. Return status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, target, body, headers or {})
        answer = connection.getresponse()
        pairs = answer.getheaders()
        content = answer.read()
    finally:
        connection.close()
    return answer.status, {(k.lower() if lower else k): v for k, v in pairs}, content
