"""Relay processes for tests, without a shim, and the servers behind them."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import commands
from trainshed.replica.endpoint import relay

WAIT_TIMEOUT = 60.0
IDENTITY = json.dumps({"project": "p1", "replica": "workerpool0-0"}).encode()

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def own_address(number: int) -> str:
    """Return a replica address that only this process uses (number 0 or 1): other tests may run at
    the same time."""
    high, middle, low = (os.getpid() % 2**19).to_bytes(3)
    return f"127.{112 + 8 * number + high}.{middle}.{low}"


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Return exactly `size` bytes, or fewer if the connection ends earlier."""
    received = b""
    while len(received) < size and (block := connection.recv(size - len(received))):
        received += block
    return received


class FakeBackend:
    """Stands in for the bucket process: a Unix socket that echoes each connection's data."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(self.path)
        self.server.listen(16)
        self.server.settimeout(WAIT_TIMEOUT)

    def accept(self) -> tuple[bytes, socket.socket]:
        """Return the next connection and its first line."""
        connection, _ = self.server.accept()
        connection.settimeout(WAIT_TIMEOUT)
        line = b""
        while not line.endswith(b"\n"):
            byte = connection.recv(1)
            assert byte, line
            line += byte
        return line, connection


@dataclass(frozen=True)
class Running:
    """A relay process: its ports, one of them for TLS."""

    port: int
    secure_port: int


_RELAYS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from trainshed.replica import protocol
from trainshed.replica.endpoint import google_hosts, interception, messages, relay
messages._HANG_UP_TIMEOUT = google_hosts._TIMEOUT = interception._LAST_TIMEOUT = 60.0
given = json.loads(sys.argv[2])
doors = relay.listen('127.0.0.1', 0), relay.listen('127.0.0.1', 0)
print(*(door.getsockname()[1] for door in doors), flush=True)
hosts = {host: ('127.0.0.1', port) for host, port in given['hosts'].items()}
class Tested(relay.Relay):
    def google(self):
        return google_hosts.GoogleHosts(given['proxy'], given['trust'], hosts) if hosts else None
network = protocol.Network(**given['network'])
Tested(network, doors if network.certificate else doors[:1]).run()
"""


@contextmanager
def running(
    target: str,
    certificate: Path | None = None,
    *,
    identity: bytes = IDENTITY,
    hosts: Mapping[str, int] | None = None,
    trust: Path | None = None,
    proxy: str = "",
    service: tuple[str, str] = ("", ""),
) -> Generator[Running]:
    """Run a relay. `hosts`: loopback ports of the real hosts, certified by `trust`; without them
    the relay forwards nothing. `service`: the sockets of the service's APIs."""
    settings = {
        "network": {
            "storage_socket": target,
            "identity": identity.decode(),
            "certificate": str(certificate or ""),
            "rest_socket": service[0],
            "grpc_socket": service[1],
        },
        "hosts": hosts or {},
        "trust": str(trust or ""),
        "proxy": proxy,
    }
    source = str(Path(relay.__file__).parents[3])
    words = (sys.executable, "-I", "-S", "-c", _RELAYS, source, json.dumps(settings))
    with commands.running(*words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Running(*map(int, process.stdout.readline().split()))
