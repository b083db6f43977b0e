"""A service on the network: TLS at every port, plain HTTP for this machine, or an error with the options."""

import contextlib
import http.client
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.running import Service, env_variables, running, trainshed


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    data = tmp_path_factory.mktemp("tls") / "data"
    with running(data, "--host", "0.0.0.0", "--tls", new_authority=True) as started:
        yield started


def external_address() -> str:
    """Return a non-loopback address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Sends nothing: it selects the source address.
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but its loopback: TLS from elsewhere is NOT tested")
        return probe.getsockname()[0]


def ours(data: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return trainshed(*arguments, data=data, status=None, variables=variables)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_public_service_without_a_tls_option_fails_and_prints_the_options(data: Path, host: str) -> None:
    done = ours(data, "up", "--host", host, "--port", "0")
    assert done.returncode == 1
    for choice in ("--tls ", "--tls-cert cert.pem --tls-key key.pem", "--insecure"):
        assert f"trainshed up --host {host} {choice}" in done.stderr
    assert not data.exists()


@pytest.mark.parametrize("place", ["rest", "storage"])
def test_every_port_speaks_tls_with_a_certificate_of_the_service(service: Service, place: str) -> None:
    address = urlsplit(str(service.extra[place]))
    assert address.scheme == "https"
    trust = ssl.create_default_context(cafile=str(service.extra["ca"]))
    path = "/trainshed/v1/status" if place == "rest" else "/storage/v1/b?project=trainshed"
    for name in ("localhost", "127.0.0.1"):
        connection = http.client.HTTPSConnection(name, address.port, timeout=60, context=trust)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Authorization": f"Bearer {service.token}"})
            assert connection.getresponse().status == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        http.client.HTTPSConnection("localhost", address.port, timeout=60).connect()


@pytest.mark.parametrize("place", ["rest", "storage"])
def test_plain_http_is_accepted_only_from_this_machine(service: Service, place: str) -> None:
    """A caller on this machine may also use a public address."""
    port = urlsplit(str(service.extra[place])).port
    for host in ("127.0.0.1", external_address()):
        assert plainly(service, host, port or 0) != 426


def test_plain_http_from_another_machine_gets_an_explanation(service: Service) -> None:
    """The TLS-only port treats all callers like the other ports treat remote ones."""
    host, _, port = str(service.extra["storage_tls"]).rpartition(":")
    assert plainly(service, host, int(port)) == 426


def plainly(service: Service, host: str, port: int) -> int:
    """Return the status of a call without TLS."""
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=60)) as connection:
        connection.request("GET", "/", headers={"Authorization": f"Bearer {service.token}"})
        return connection.getresponse().status


def test_command_line_and_its_environment_trust_the_service(service: Service) -> None:
    options = env_variables(service)
    assert options["TRAINSHED_ENDPOINT"].startswith("https://localhost:")
    assert options["SSL_CERT_FILE"] == options["REQUESTS_CA_BUNDLE"] == service.extra["ca_bundle"]
    listed = ours(service.data, "jobs", "list", "--data", str(service.data))
    assert listed.returncode == 0, listed.stderr
    elsewhere = ("--project", "p1", "--url", service.rest, "--token", service.token)
    strange = ours(service.data, "jobs", "list", *elsewhere)
    assert strange.returncode == 1
    assert "--ca" in strange.stderr
    ca = str(service.extra["ca"])
    printed = ours(service.data, "jobs", "list", *elsewhere, "--ca", ca)
    assert printed.returncode == 0, printed.stderr
    known = ours(service.data, "jobs", "list", *elsewhere, TRAINSHED_CA=ca)
    assert known.returncode == 0, known.stderr


def test_incomplete_tls_handshakes_do_not_block_other_clients(service: Service) -> None:
    port = urlsplit(service.rest).port
    with contextlib.ExitStack() as attack:
        for _ in range(1_100):
            half = attack.enter_context(socket.create_connection(("127.0.0.1", port or 0)))
            half.sendall(b"\x16\x03\x01")
        listed = ours(service.data, "jobs", "list", "--data", str(service.data))
        assert listed.returncode == 0, listed.stderr
