"""A replica's endpoint intercepts Google's storage hosts over TLS (spec/program#storage;
spec/clients#tensorflow)."""

import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.contract.replica.conftest import WAIT_TIMEOUT
from tests.contract.replica.relays import IDENTITY, OK, FakeBackend, receive_exactly, running
from trainshed.serve import certificates

HOST = "storage.googleapis.com"


@dataclass(frozen=True)
class TlsRelay:
    """A relay with a TLS port, and the trust settings of a program."""

    port: int
    secure_port: int
    trust: ssl.SSLContext

    def client(self, host: str = HOST) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.secure_port), timeout=WAIT_TIMEOUT)
        return self.trust.wrap_socket(raw, server_hostname=host)


@pytest.fixture
def tls_relay(behind: FakeBackend, files: certificates.Interception) -> Iterator[TlsRelay]:
    with running(behind.path, files.certificate) as relaying:
        trust = ssl.create_default_context(cafile=str(files.trust))
        yield TlsRelay(relaying.port, relaying.secure_port, trust)


def test_relay_answers_requests_to_google_storage_hosts_over_tls(
    tls_relay: TlsRelay, behind: FakeBackend
) -> None:
    """A connection serves several requests. Each forwarded request specifies its length in a single
    way (request smuggling)."""
    for host in (HOST, "www.googleapis.com", f"bucket.{HOST}"):
        with tls_relay.client(host) as client:
            client.sendall(b"GET / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n")
            line, connection = behind.accept()
            assert json.loads(line) == {**json.loads(IDENTITY), "scheme": "https"}
            with connection:
                for _ in range(2):
                    assert connection.recv(1000) == b"GET / HTTP/1.1\r\n\r\n"
                    connection.sendall(OK)
                    assert receive_exactly(client, len(OK)) == OK
                    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nto the end")
                connection.shutdown(socket.SHUT_WR)
                assert receive_exactly(client, 1000) == b"HTTP/1.1 200 OK\r\n\r\nto the end"


@pytest.mark.parametrize(
    ("answer", "method"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"DELETE"),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", b"GET"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", b"HEAD"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", b"GET"),
        (b"HTTP/1.1 308 Resume\r\nRange: bytes=0-1\r\nContent-Length: 0\r\n\r\n", b"PUT"),
    ],
    ids=["no-content", "not-modified", "head", "chunked", "resume"],
)
def test_relay_detects_the_end_of_each_response(
    tls_relay: TlsRelay, behind: FakeBackend, answer: bytes, method: bytes
) -> None:
    """The next request on the same connection also receives its response."""
    request = method + b" / HTTP/1.1\r\nHost: h\r\n\r\n"
    with tls_relay.client() as client:
        client.sendall(request)
        with behind.accept()[1] as connection:
            for _ in range(2):
                assert receive_exactly(connection, len(request)) == request
                connection.sendall(answer)
                assert receive_exactly(client, len(answer)) == answer
                client.sendall(request)


def test_large_transfer_is_relayed_to_a_slow_reader(tls_relay: TlsRelay, behind: FakeBackend) -> None:
    data = os.urandom(3 << 20)
    head = b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(data)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data)

    def echo() -> None:
        _, connection = behind.accept()
        with connection:
            assert receive_exactly(connection, len(head)) == head
            connection.sendall(answer + receive_exactly(connection, len(data)))

    answering = threading.Thread(target=echo)
    answering.start()
    with tls_relay.client() as client:
        client.sendall(head + data)
        # The other side has written everything and closed long before the client has read it.
        assert receive_exactly(client, len(answer) + len(data)) == answer + data
    answering.join(WAIT_TIMEOUT)


def test_relay_answers_expect_100_continue(tls_relay: TlsRelay, behind: FakeBackend) -> None:
    """Otherwise clients of libcurl wait one second for that status."""
    with tls_relay.client() as client:
        client.sendall(b"PUT / HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"body")
        with behind.accept()[1] as connection:
            expected = b"PUT / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"
            assert receive_exactly(connection, len(expected)) == expected
            connection.sendall(OK)
            assert receive_exactly(client, len(OK)) == OK


def test_error_response_sent_before_the_request_is_complete_reaches_the_client(
    tls_relay: TlsRelay, behind: FakeBackend
) -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with tls_relay.client() as client:
        client.sendall(b"PUT / HTTP/1.1\r\nContent-Length: 9000000\r\n\r\n")
        with behind.accept()[1] as connection:
            connection.recv(1000)
            connection.sendall(refusal)
        client.sendall(b"x" * 9_000_000)
        assert receive_exactly(client, 1000) == refusal


def test_closed_backend_connection_is_reopened(tls_relay: TlsRelay, behind: FakeBackend) -> None:
    """The bucket process was restarted, or its idle timeout ended."""
    with tls_relay.client() as client:
        for _ in range(3):
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with behind.accept()[1] as connection:
                assert connection.recv(1000) == b"GET / HTTP/1.1\r\n\r\n"
                connection.sendall(OK)
                assert receive_exactly(client, len(OK)) == OK
