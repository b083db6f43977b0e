"""A replica's own endpoint: it says whose a connection is (spec/program#storage)."""

import pytest

from tests.contract.replica.conftest import Place
from tests.contract.replica.relays import IDENTITY, Behind
from trainshed.replica import protocol

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
            received = b""
            while data := connection.recv(100):
                received += data
            assert received == b'{"project": "p2"}\n'
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
print(len(others))
for other in others:
    for name in ('mem', 'environ', 'root/etc/passwd', 'fd/0', 'cwd/.'):
        try:
            path = '/proc/%d/%s' % (other, name)
            os.stat(path) if '/' in name else open(path, 'rb')
            print('read', name)
        except OSError as error:
            print(type(error).__name__)
"""


def test_a_program_cannot_look_into_its_shim_or_relay(place: Place, behind: Behind) -> None:
    """They run among the program's processes, and see the whole machine: who could trace them would be
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
    assert place.texts() == ["2"] + ["PermissionError"] * 10
