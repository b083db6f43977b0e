"""A replica's endpoint stands in for the hosts of the APIs: REST and gRPC over TLS, answered by the
service."""

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.replica.conftest import PATIENCE
from tests.contract.replica.relays import OK, Behind, heard, running
from trainshed.serve import certificates

MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone"


@dataclass(frozen=True)
class Endpoint:
    """A replica's, and the three that it leads to."""

    port: int
    trust: ssl.SSLContext
    buckets: Behind
    rest: Behind
    grpc: Behind

    def client(self, host: str, *protocols: str) -> ssl.SSLSocket:
        self.trust.set_alpn_protocols(list(protocols or ("http/1.1",)))
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        return self.trust.wrap_socket(raw, server_hostname=host)


@pytest.fixture
def endpoint(tmp_path: Path, files: certificates.Interception) -> Iterator[Endpoint]:
    behind = [Behind(tmp_path / name) for name in ("buckets", "rest", "grpc")]
    service = (behind[1].path, behind[2].path)
    with running(behind[0].path, files.certificate, service=service) as relaying:
        trust = ssl.create_default_context(cafile=files.trust)
        yield Endpoint(relaying.secure_port, trust, *behind)
    for backend in behind:
        backend.server.close()


def taken(behind: Behind) -> socket.socket:
    connection, _ = behind.server.accept()
    connection.settimeout(PATIENCE)
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
def test_a_call_of_an_api_is_the_services_with_all_that_it_brings(
    endpoint: Endpoint, host: str, path: bytes
) -> None:
    """Who calls is told by its token alone: nothing is said before."""
    request = b"GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer tsj1.x.y\r\n\r\n"
    request %= (path, host.encode())
    with endpoint.client(host) as client:
        client.sendall(request)
        with taken(endpoint.rest) as connection:
            for answer in (OK, MISSING):
                assert heard(connection, len(request)) == request
                connection.sendall(answer)
                assert heard(client, len(answer)) == answer
                client.sendall(request)


def test_a_write_is_the_services_and_a_buckets_is_not(endpoint: Endpoint) -> None:
    """The two can share a connection: www.googleapis.com has both."""
    host = "www.googleapis.com"
    write = b"POST /%s HTTP/1.1\r\nHost: www.googleapis.com\r\nContent-Length: 2\r\n\r\n{}"
    with endpoint.client(host) as client:
        for path, behind in ((b"discovery/x", endpoint.rest), (b"storage/v1/b", endpoint.buckets)):
            client.sendall(write % path)
            connection = behind.accept()[1] if behind is endpoint.buckets else taken(behind)
            with connection:
                assert heard(connection, len(write % path)) == write % path
                connection.sendall(OK)
                assert heard(client, len(OK)) == OK


def test_http2_goes_to_grpc_as_it_is_whoever_is_slow(endpoint: Endpoint) -> None:
    data = os.urandom(3 << 20)

    def echo() -> None:
        with taken(endpoint.grpc) as connection:
            connection.sendall(heard(connection, len(data)))

    answering = threading.Thread(target=echo)
    answering.start()
    with endpoint.client("us-central1-aiplatform.googleapis.com", "h2") as client:
        assert client.selected_alpn_protocol() == "h2"
        client.sendall(data)
        # The other side hangs up as soon as it has written all.
        assert heard(client, len(data) + 1) == data
    answering.join(PATIENCE)


def test_who_speaks_both_is_answered_over_http1(endpoint: Endpoint) -> None:
    """Tools that would rather speak HTTP/2 call REST by it, which gRPC does not know."""
    with endpoint.client("aiplatform.googleapis.com", "h2", "http/1.1") as client:
        assert client.selected_alpn_protocol() == "http/1.1"
