"""`trainshed up` with gRPC: when it is loaded, which ports and certificates, what cannot be used (issue 4,
item 1)."""

import importlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import Service, running, start, trainshed
from tests.ports import free_ports
from trainshed.access.authority import Authority

grpc: Any = importlib.import_module("grpc")

LIST = "/google.cloud.aiplatform.v1.JobService/ListCustomJobs"
REQUEST = b"\n\x21projects/p1/locations/us-central1"
DAY = 86_400


def ask(service: Service, address: str, *, roots: str = "") -> bytes:
    """One call, with TLS where there are roots to trust."""
    metadata = (("authorization", f"Bearer {service.token}"),)
    if roots:
        trusting = grpc.ssl_channel_credentials(Path(roots).read_bytes())
        opened = grpc.secure_channel(address, trusting)
    else:
        opened = grpc.insecure_channel(address)
    with opened as channel:
        return channel.unary_unary(LIST)(REQUEST, metadata=metadata, timeout=20)


def has_loaded_grpc(service: Service) -> bool:
    return "cygrpc" in Path(f"/proc/{service.pid}/maps").read_text()


@pytest.fixture
def started(data: Path) -> Iterator[Service]:
    with running(data, new_authority=True) as service:
        yield service


def test_grpc_is_loaded_by_the_first_connection_and_not_before(started: Service) -> None:
    """An idle service stays small, and starts as fast as without."""
    assert "NOTE:" not in (started.data / "service.log").read_text(), "not on loopback"
    assert not has_loaded_grpc(started)
    assert ask(started, started.extra["grpc"]) == b""
    assert has_loaded_grpc(started)
    assert ask(started, started.extra["grpc_tls"], roots=started.extra["ca"]) == b""
    log = (started.data / "service.log").read_text()
    assert "ERROR" not in log
    assert started.terminate() == 0
    assert list(started.data.glob("grpc*.sock")) == []


def test_the_authority_stays_from_start_to_start_and_nobody_else_reads_its_key(data: Path) -> None:
    """Also after a kill, over the old sockets. Once its key is gone and the service has another name, nothing
    is made behind the user's back."""
    first = start(data, new_authority=True)
    before = Path(first.extra["ca"]).read_bytes()
    assert ask(first, first.extra["grpc"]) == b""
    first.kill()
    assert (data / "grpc.sock").exists()
    with running(data) as second:
        assert Path(second.extra["ca"]).read_bytes() == before
        assert json.loads((data / "service.json").read_text())["ca"] == second.extra["ca"]
        assert (data / "tls" / "ca.key").stat().st_mode & 0o777 == 0o600
        assert ask(second, second.extra["grpc"]) == b""
        assert ask(second, second.extra["grpc_tls"], roots=second.extra["ca"]) == b""
    (data / "tls" / "ca.key").unlink()
    refusal = up(data, "--host", "127.0.0.2")
    assert "ca.key is missing" in refusal
    assert "restore it, or move" in refusal
    plain, secure = free_ports(2)
    with running(data, "--grpc-port", str(plain), "--grpc-tls-port", str(secure)) as third:
        assert third.extra["grpc"] == f"127.0.0.1:{plain}"
        assert third.extra["grpc_tls"] == f"localhost:{secure}"


def test_certificates_of_the_users_own(data: Path, tmp_path: Path) -> None:
    now = time.time()
    authority = Authority.new(now, DAY)
    chain, key = authority.issue(("localhost",), now, now + DAY)
    (tmp_path / "cert.pem").write_bytes(chain + authority.certificate_pem())
    (tmp_path / "key.pem").write_bytes(key)
    options = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with running(data, *options, new_authority=True) as service:
        assert service.extra["ca"] == str(tmp_path / "cert.pem")
        assert not (data / "tls" / "server.pem").exists()
        # Clients that trust the root, and those that are given what the ready file names.
        (tmp_path / "root.pem").write_bytes(authority.certificate_pem())
        for roots in (str(tmp_path / "root.pem"), service.extra["ca"], service.extra["ca_bundle"]):
            assert ask(service, service.extra["grpc_tls"], roots=roots) == b""


def test_without_tls_it_listens_on_loopback_alone(data: Path) -> None:
    """A token goes over that port as it is: whatever --host says, no other machine reaches it. ADR 41: an
    operator may have chosen plain HTTP, and is told what that opens."""
    with running(data, "--host", "0.0.0.0", "--insecure") as service:
        assert "NOTE: without TLS in front" in (data / "service.log").read_text()
        assert service.rest.startswith("http://127.0.0.1:")
        plain, secure = (service.extra[name].rsplit(":", 1) for name in ("grpc", "grpc_tls"))
        assert plain[0] == "127.0.0.1"
        # Another address of this machine, which only a listener on all of them has.
        socket.create_connection(("127.0.0.2", int(secure[1])), 5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", int(plain[1])), 5).close()
        assert ask(service, service.extra["grpc_tls"], roots=service.extra["ca"]) == b""


def up(data: Path, *args: str) -> str:
    """What `trainshed up` says when it cannot start."""
    words = ("up", "--port", "0", "--data", str(data), *args)
    done = trainshed(*words, data=data, status=None)
    assert done.returncode not in (0, None)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


def test_what_cannot_be_used_stops_the_start_with_what_to_do(data: Path, tmp_path: Path) -> None:
    nothing = str(tmp_path / "nothing.pem")
    message = up(data, "--tls-cert", nothing, "--tls-key", nothing)
    assert f"{nothing} cannot be read: No such file or directory" in message
    assert "--tls-cert: given without tls_key; give both" in up(data, "--tls-cert", nothing)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = up(data, "--grpc-port", str(port))
        assert f"127.0.0.1:{port} cannot be listened on" in message
        assert "choose another port with --grpc-port" in message
