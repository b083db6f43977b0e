"""A replica's endpoint intercepts the hosts of Google's APIs: the service answers REST and gRPC over TLS."""

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.replica.conftest import WAIT_TIMEOUT
from tests.contract.replica.relays import OK, FakeBackend, receive_exactly, running
from trainshed.serve import certificates

MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone"


@dataclass(frozen=True)
class Endpoint:
    """A replica's endpoint and the three servers behind it."""

    port: int
    trust: ssl.SSLContext
    buckets: FakeBackend
    rest: FakeBackend
    grpc: FakeBackend

    def client(self, host: str, *protocols: str) -> ssl.SSLSocket:
        self.trust.set_alpn_protocols(list(protocols or ("http/1.1",)))
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_TIMEOUT)
        return self.trust.wrap_socket(raw, server_hostname=host)


@pytest.fixture
def endpoint(tmp_path: Path, files: certificates.Interception) -> Iterator[Endpoint]:
    behind = [FakeBackend(tmp_path / name) for name in ("buckets", "rest", "grpc")]
    service = (behind[1].path, behind[2].path)
    with running(behind[0].path, files.certificate, service=service) as relaying:
        trust = ssl.create_default_context(cafile=files.trust)
        yield Endpoint(relaying.secure_port, trust, *behind)
    for backend in behind:
        backend.server.close()


def accepted_connection(behind: FakeBackend) -> socket.socket:
    connection, _ = behind.server.accept()
    connection.settimeout(WAIT_TIMEOUT)
    return connection


@pytest.mark.parametrize(
    ("host", "path"),
    [
        ("us-central1-aiplatform.googleapis.com", b"/v1/projects/p/locations/us-central1/models"),
        ("aiplatform.googleapis.com", b"/v1/projects/p/locations/us-central1/models"),
        ("ml.googleapis.com", b"/v1/projects/p/jobs"),
        ("europe-west1-ml.googleapis.com", b"/v1/projects/p/jobs"),
        ("cloudresourcemanager.googleapis.com", b"/v1/projects/p"),
        ("iamcredentials.googleapis.com", b"/v1/projects/-/serviceAccounts/a/allowedLocations"),
        ("logging.googleapis.com", b"/v2/entries:list"),
        ("bigquery.googleapis.com", b"/bigquery/v2/projects/p/jobs"),
        ("www.googleapis.com", b"/discovery/v1/apis/ml/v1/rest"),
    ],
)
def test_api_request_is_forwarded_to_the_service_unchanged(
    endpoint: Endpoint, host: str, path: bytes
) -> None:
    """Only the token identifies the caller: the relay sends no line before the request."""
    request = b"GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer tsj1.x.y\r\n\r\n"
    request %= (path, host.encode())
    with endpoint.client(host) as client:
        client.sendall(request)
        with accepted_connection(endpoint.rest) as connection:
            for answer in (OK, MISSING):
                assert receive_exactly(connection, len(request)) == request
                connection.sendall(answer)
                assert receive_exactly(client, len(answer)) == answer
                client.sendall(request)


def test_same_connection_can_send_requests_to_the_api_and_to_buckets(endpoint: Endpoint) -> None:
    """Both kinds of requests can share a connection, because www.googleapis.com serves both."""
    host = "www.googleapis.com"
    write = b"POST /%s HTTP/1.1\r\nHost: www.googleapis.com\r\nContent-Length: 2\r\n\r\n{}"
    with endpoint.client(host) as client:
        for path, behind in ((b"discovery/x", endpoint.rest), (b"storage/v1/b", endpoint.buckets)):
            client.sendall(write % path)
            connection = behind.accept()[1] if behind is endpoint.buckets else accepted_connection(behind)
            with connection:
                assert receive_exactly(connection, len(write % path)) == write % path
                connection.sendall(OK)
                assert receive_exactly(client, len(OK)) == OK


def test_http2_is_forwarded_to_grpc_unchanged(endpoint: Endpoint) -> None:
    data = os.urandom(3 << 20)

    def echo() -> None:
        with accepted_connection(endpoint.grpc) as connection:
            connection.sendall(receive_exactly(connection, len(data)))

    answering = threading.Thread(target=echo)
    answering.start()
    with endpoint.client("us-central1-aiplatform.googleapis.com", "h2") as client:
        assert client.selected_alpn_protocol() == "h2"
        client.sendall(data)
        # The other side closes as soon as it has written everything.
        assert receive_exactly(client, len(data) + 1) == data
    answering.join(WAIT_TIMEOUT)


def test_client_that_offers_http1_and_http2_is_answered_over_http1(endpoint: Endpoint) -> None:
    """Tools that prefer HTTP/2 use it for REST, which the gRPC server does not support."""
    with endpoint.client("aiplatform.googleapis.com", "h2", "http/1.1") as client:
        assert client.selected_alpn_protocol() == "http/1.1"
