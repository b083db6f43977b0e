"""A replica's own endpoint: it says whose a connection is, and stands in for Google's storage hosts (SPEC §3, Storage)."""

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.replica.conftest import PATIENCE, Place
from trainshed.replica import protocol, relay
from trainshed.serve import interception

IDENTITY = json.dumps({"project": "p1", "replica": "workerpool0-0"}).encode()
NOW = 1_760_000_000.0
HOST = "storage.googleapis.com"


class Behind:
    """What stands for the bucket process: a Unix socket that answers connections with what they said."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(self.path)
        self.server.listen(16)
        self.server.settimeout(PATIENCE)

    def accept(self) -> tuple[bytes, socket.socket]:
        """The next connection, and the line that it begins with."""
        connection, _ = self.server.accept()
        connection.settimeout(PATIENCE)
        line = b""
        while not line.endswith(b"\n"):
            byte = connection.recv(1)
            assert byte, line
            line += byte
        return line, connection


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behind]:
    made = Behind(tmp_path / "behind")
    yield made
    made.server.close()


@dataclass
class Secure:
    """A relay with a port for TLS, and how a program trusts it."""

    port: int
    secure_port: int
    trust: ssl.SSLContext

    def client(self, host: str = HOST) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.secure_port), timeout=PATIENCE)
        return self.trust.wrap_socket(raw, server_hostname=host)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> interception.Interception:
    return interception.prepare(tmp_path_factory.mktemp("service"), NOW, {})


@pytest.fixture
def secure(behind: Behind, files: interception.Interception) -> Iterator[Secure]:
    yield from _running(behind, files, str(files.certificate))


def _running(
    behind: Behind, files: interception.Interception, certificate: str
) -> Iterator[Secure]:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from trainshed.replica import relay\n"
        "doors = relay.listen('127.0.0.1', 0), relay.listen('127.0.0.1', 0)\n"
        "print(*(door.getsockname()[1] for door in doors), flush=True)\n"
        "relay.Relay(doors[0], sys.argv[2], sys.argv[3].encode() + b'\\n', doors[1], sys.argv[4]).run()"
    )
    source = str(Path(relay.__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", code, source, behind.path, IDENTITY.decode(), certificate],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        plain, over_tls = map(int, process.stdout.readline().split())
        trust = ssl.create_default_context(cafile=str(files.trust))
        yield Secure(plain, over_tls, trust)
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


PRINTS = """
import socket
for _ in range(2):
    with socket.create_connection(('127.77.0.9', 23456)) as connection:
        connection.sendall(b'{"project": "p2"}\\n')
        connection.shutdown(socket.SHUT_WR)
        print(connection.recv(100).decode())
"""


def test_every_connection_begins_with_the_line_that_says_whose_it_is(
    place: Place, behind: Behind
) -> None:
    """A program says what it likes behind that line, never before it."""
    line = place.python(
        PRINTS,
        storage_socket=behind.path,
        storage_port=23456,
        address="127.77.0.9",
        identity=IDENTITY.decode(),
    )
    for number in range(2):
        introduction, connection = behind.accept()
        assert introduction == IDENTITY + b"\n"
        with connection:
            said = b""
            while data := connection.recv(100):
                said += data
            assert said == b'{"project": "p2"}\n'
            connection.sendall(b"answer %d" % number)
    assert line.record()["exit_code"] == 0, place.texts()
    assert place.texts() == ["answer 0", "answer 1"]


SPIES = """
import os, socket
connection = socket.create_connection(('127.77.0.9', 23456))
connection.sendall(b'x')
connection.recv(1)
me = os.getpid()
others = [int(name) for name in os.listdir('/proc') if name.isdigit() and int(name) != me]
relays = []
for other in others:
    try:
        parent = int(open('/proc/%d/stat' % other).read().rpartition(')')[2].split()[1])
    except OSError:
        continue
    # The relay's parent is outside of the namespace.
    if parent == 0 and other != 1:
        relays.append(other)
print(len(relays))
for other in relays:
    for name in ('mem', 'environ', 'root/etc/passwd', 'fd/0', 'cwd/.'):
        try:
            os.stat('/proc/%d/%s' % (other, name)) if '/' in name else open('/proc/%d/%s' % (other, name), 'rb')
            print('read', name)
        except OSError as error:
            print(type(error).__name__)
"""


def test_a_program_cannot_look_into_its_relay(place: Place, behind: Behind) -> None:
    """The relay runs among the program's processes, and sees the whole machine: who could trace it would be free."""
    if place.level not in (protocol.LEVEL_OWN, protocol.LEVEL_USER):
        pytest.skip("programs that are root look into everything, and a session hides nothing")
    line = place.python(
        SPIES,
        storage_socket=behind.path,
        storage_port=23456,
        address="127.77.0.9",
        identity=IDENTITY.decode(),
    )
    connection = behind.accept()[1]
    with connection:
        connection.sendall(connection.recv(1))
        assert line.record()["exit_code"] == 0, place.texts()
    assert place.texts() == ["1"] + ["PermissionError"] * 5


def test_googles_storage_hosts_are_answered_over_tls(secure: Secure, behind: Behind) -> None:
    for host in (HOST, "www.googleapis.com", f"bucket.{HOST}"):
        with secure.client(host) as client:
            line, connection = behind.accept()
            assert json.loads(line) == {**json.loads(IDENTITY), "scheme": "https"}
            with connection:
                client.sendall(b"GET / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n")
                assert connection.recv(1000) == b"GET / HTTP/1.1\r\n\r\n"
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                connection.shutdown(socket.SHUT_WR)
                assert client.recv(1000) == b"HTTP/1.1 200 OK\r\n\r\n"
                assert client.recv(1000) == b""


def test_nobody_else_is_impersonated(secure: Secure) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        secure.client("example.com")


def test_the_plain_port_is_served_beside_it(secure: Secure, behind: Behind) -> None:
    with socket.create_connection(("127.0.0.1", secure.port), timeout=PATIENCE) as client:
        line, connection = behind.accept()
        assert line == IDENTITY + b"\n"
        with connection:
            client.sendall(NOTHING_PUT_RIGHT)
            assert connection.recv(1000) == NOTHING_PUT_RIGHT


NOTHING_PUT_RIGHT = b"GET / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n"
"""Only who speaks over TLS is mended."""


def test_much_is_passed_on_both_ways_at_once_whoever_is_slow(
    secure: Secure, behind: Behind
) -> None:
    data = os.urandom(3 << 20)
    head = b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(data)

    def echo() -> None:
        _, connection = behind.accept()
        with connection:
            got = b""
            while len(got) < len(head) + len(data):
                got += connection.recv(1 << 16)
            connection.sendall(got)

    answering = threading.Thread(target=echo)
    answering.start()
    with secure.client() as client:
        client.sendall(head + data)
        answered = b""
        # The other side has written all it has, and hung up, long before this is read.
        answering.join(PATIENCE)
        while block := client.recv(1 << 16):
            answered += block
    assert answered == head + data


def test_who_does_not_trust_it_or_speaks_something_else_harms_nobody(
    secure: Secure, behind: Behind
) -> None:
    stranger = ssl.create_default_context()
    with (
        socket.create_connection(("127.0.0.1", secure.secure_port), timeout=PATIENCE) as raw,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        stranger.wrap_socket(raw, server_hostname=HOST)
    behind.accept()[1].close()
    with socket.create_connection(("127.0.0.1", secure.secure_port), timeout=PATIENCE) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        behind.accept()[1].close()
    with secure.client() as client:
        _, connection = behind.accept()
        with connection:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert connection.recv(100)


def test_without_the_certificate_the_plain_port_is_served_all_the_same(
    behind: Behind, files: interception.Interception, tmp_path: Path
) -> None:
    running = _running(behind, files, str(tmp_path / "gone.pem"))
    secure = next(running)
    try:
        with pytest.raises((ConnectionError, ssl.SSLError)):
            secure.client()
        with socket.create_connection(("127.0.0.1", secure.port), timeout=PATIENCE):
            assert behind.accept()[0] == IDENTITY + b"\n"
    finally:
        next(running, None)


def test_an_endpoint_that_gets_one_port_only_gives_it_free_again(behind: Behind) -> None:
    with socket.socket() as taken:
        taken.bind(("127.77.0.10", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        code = (
            "import sys; sys.path.insert(0, sys.argv[1])\n"
            "from trainshed.replica import loop, relay\n"
            "relay._PREDECESSOR_GONE = 0.1\n"
            "try:\n"
            "    relay.Endpoint('127.77.0.10', int(sys.argv[2]) - 1, 'x', loop.Loop(), identity=b'{}', certificate='y')\n"
            "except OSError:\n"
            "    relay.listen('127.77.0.10', int(sys.argv[2]) - 1)\n"
            "    print('free')\n"
        )
        source = str(Path(relay.__file__).parents[2])
        done = subprocess.run(
            [sys.executable, "-c", code, source, str(port)],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
    assert done.stdout == "free\n"
