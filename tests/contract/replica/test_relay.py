"""A replica's own endpoint: it says whose a connection is (spec/program#storage)."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.replica.conftest import PATIENCE, Place
from tests.contract.replica.relays import IDENTITY, Behind, running
from trainshed.replica import protocol
from trainshed.replica.endpoint import relay


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behind]:
    made = Behind(tmp_path / "behind")
    yield made
    made.server.close()


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
            path = '/proc/%d/%s' % (other, name)
            os.stat(path) if '/' in name else open(path, 'rb')
            print('read', name)
        except OSError as error:
            print(type(error).__name__)
"""


def test_a_program_cannot_look_into_its_relay(place: Place, behind: Behind) -> None:
    """The relay runs among the program's processes, and sees the whole machine: who could trace it would be
    free."""
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


def test_what_a_program_says_is_passed_on_as_it_is(behind: Behind) -> None:
    """Only who speaks over TLS is mended."""
    said = b"GET / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n"
    with (
        running(behind.path) as relaying,
        socket.create_connection(("127.0.0.1", relaying.port), timeout=PATIENCE) as client,
    ):
        line, connection = behind.accept()
        assert line == IDENTITY + b"\n"
        with connection:
            client.sendall(said)
            assert connection.recv(1000) == said


def test_much_is_passed_on_both_ways_at_once_whoever_is_slow(behind: Behind) -> None:
    data = os.urandom(3 << 20)

    def echo() -> None:
        _, connection = behind.accept()
        with connection:
            while block := connection.recv(1 << 16):
                connection.sendall(block)

    with (
        running(behind.path) as relaying,
        socket.create_connection(("127.0.0.1", relaying.port), timeout=PATIENCE) as client,
    ):
        answering = threading.Thread(target=echo)
        answering.start()
        saying = threading.Thread(target=client.sendall, args=(data,))
        saying.start()
        answered = b""
        while len(answered) < len(data):
            answered += client.recv(1 << 16)
        saying.join(PATIENCE)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
        answering.join(PATIENCE)
    assert answered == data


def test_an_endpoint_that_gets_one_port_only_gives_it_free_again(behind: Behind) -> None:
    with socket.socket() as taken:
        taken.bind(("127.77.0.10", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        code = (
            "import sys; sys.path.insert(0, sys.argv[1])\n"
            "from trainshed.replica.endpoint import relay\n"
            "from trainshed.replica.system import loop\n"
            "relay._PREDECESSOR_GONE = 0.1\n"
            "try:\n"
            "    relay.Endpoint('127.77.0.10', int(sys.argv[2]) - 1, 'x', loop.Loop(), identity=b'{}', "
            "certificate='y')\n"
            "except OSError:\n"
            "    relay.listen('127.77.0.10', int(sys.argv[2]) - 1)\n"
            "    print('free')\n"
        )
        source = str(Path(relay.__file__).parents[3])
        done = subprocess.run(
            [sys.executable, "-c", code, source, str(port)],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
    assert done.stdout == "free\n"
