"""A replica's endpoint stands in for Google's storage hosts, over TLS (spec/program#storage;
spec/clients#tensorflow)."""

import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.contract.replica.conftest import PATIENCE
from tests.contract.replica.relays import IDENTITY, OK, Behind, heard, running
from trainshed.serve import certificates

HOST = "storage.googleapis.com"


@dataclass(frozen=True)
class Secure:
    """A relay with a port for TLS, and how a program trusts it."""

    port: int
    secure_port: int
    trust: ssl.SSLContext

    def client(self, host: str = HOST) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.secure_port), timeout=PATIENCE)
        return self.trust.wrap_socket(raw, server_hostname=host)


@pytest.fixture
def secure(behind: Behind, files: certificates.Interception) -> Iterator[Secure]:
    with running(behind.path, files.certificate) as relaying:
        trust = ssl.create_default_context(cafile=str(files.trust))
        yield Secure(relaying.port, relaying.secure_port, trust)


def test_googles_storage_hosts_are_answered_over_tls(secure: Secure, behind: Behind) -> None:
    """One connection serves many requests, and each says in one way only how long it is."""
    for host in (HOST, "www.googleapis.com", f"bucket.{HOST}"):
        with secure.client(host) as client:
            client.sendall(b"GET / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n")
            line, connection = behind.accept()
            assert json.loads(line) == {**json.loads(IDENTITY), "scheme": "https"}
            with connection:
                for _ in range(2):
                    assert connection.recv(1000) == b"GET / HTTP/1.1\r\n\r\n"
                    connection.sendall(OK)
                    assert heard(client, len(OK)) == OK
                    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nto the end")
                connection.shutdown(socket.SHUT_WR)
                assert heard(client, 1000) == b"HTTP/1.1 200 OK\r\n\r\nto the end"


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
def test_an_answer_ends_where_it_ends(
    secure: Secure, behind: Behind, answer: bytes, method: bytes
) -> None:
    """The next request of the connection is answered as well."""
    request = method + b" / HTTP/1.1\r\nHost: h\r\n\r\n"
    with secure.client() as client:
        client.sendall(request)
        with behind.accept()[1] as connection:
            for _ in range(2):
                assert heard(connection, len(request)) == request
                connection.sendall(answer)
                assert heard(client, len(answer)) == answer
                client.sendall(request)


def test_much_is_passed_on_whoever_is_slow(secure: Secure, behind: Behind) -> None:
    data = os.urandom(3 << 20)
    head = b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(data)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data)

    def echo() -> None:
        _, connection = behind.accept()
        with connection:
            assert heard(connection, len(head)) == head
            connection.sendall(answer + heard(connection, len(data)))

    answering = threading.Thread(target=echo)
    answering.start()
    with secure.client() as client:
        client.sendall(head + data)
        # The other side has written all it has, and hung up, long before all of this is read.
        assert heard(client, len(answer) + len(data)) == answer + data
    answering.join(PATIENCE)


def test_who_wants_to_be_asked_for_the_body_is(secure: Secure, behind: Behind) -> None:
    """Clients of libcurl wait a second for that word otherwise."""
    with secure.client() as client:
        client.sendall(b"PUT / HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"body")
        with behind.accept()[1] as connection:
            expected = b"PUT / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"
            assert heard(connection, len(expected)) == expected
            connection.sendall(OK)
            assert heard(client, len(OK)) == OK


def test_a_refusal_before_the_end_of_the_body_arrives(secure: Secure, behind: Behind) -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with secure.client() as client:
        client.sendall(b"PUT / HTTP/1.1\r\nContent-Length: 9000000\r\n\r\n")
        with behind.accept()[1] as connection:
            connection.recv(1000)
            connection.sendall(refusal)
        client.sendall(b"x" * 9_000_000)
        assert heard(client, 1000) == refusal


def test_a_kept_connection_that_was_closed_is_made_again(secure: Secure, behind: Behind) -> None:
    """The bucket process was started again, or waited long enough for another request."""
    with secure.client() as client:
        for _ in range(3):
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with behind.accept()[1] as connection:
                assert connection.recv(1000) == b"GET / HTTP/1.1\r\n\r\n"
                connection.sendall(OK)
                assert heard(client, len(OK)) == OK
