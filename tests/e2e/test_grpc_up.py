"""The gRPC ports of `trainshed up`, and their reachability."""

import importlib
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import Service, running

grpc: Any = importlib.import_module("grpc")

LIST = "/google.cloud.aiplatform.v1.JobService/ListCustomJobs"
REQUEST = b"\n\x21projects/p1/locations/us-central1"


def ask(service: Service, address: str, *, roots: str = "") -> bytes:
    """Make one call, with TLS if roots are set."""
    metadata = (("authorization", f"Bearer {service.token}"),)
    if roots:
        trusting = grpc.ssl_channel_credentials(Path(roots).read_bytes())
        opened = grpc.secure_channel(address, trusting)
    else:
        opened = grpc.insecure_channel(address)
    with opened as channel:
        return channel.unary_unary(LIST)(REQUEST, metadata=metadata, timeout=60)


def test_grpc_without_tls_listens_only_on_loopback(data: Path) -> None:
    """The port carries tokens in plain text, so with any --host no other machine reaches it. ADR 41: an
    operator may choose plain HTTP, and gets a warning about its effect.
    """
    with running(data, "--host", "0.0.0.0", "--insecure") as service:
        lines = f"roles/aiplatform.user --data {data}\nNOTE: without TLS, tokens"
        assert lines in (data / "service.log").read_text()
        assert service.rest.startswith("http://127.0.0.1:")
        plain, secure = (service.extra[name].rsplit(":", 1) for name in ("grpc", "grpc_tls"))
        assert plain[0] == "127.0.0.1"
        # Another address of this machine, which only a wildcard listener has.
        socket.create_connection(("127.0.0.2", int(secure[1])), 60).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", int(plain[1])), 60).close()
        assert ask(service, service.extra["grpc_tls"], roots=service.extra["ca"]) == b""
        assert ask(service, service.extra["grpc"]) == b""
        assert (data / "programs-grpc.sock").stat().st_mode & 0o777 == 0o600
