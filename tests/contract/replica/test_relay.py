"""A replica's own endpoint: it says whose a connection is (spec/program#storage)."""

import json
import select
import socket

import pytest

from tests.contract.replica.conftest import Place
from tests.contract.replica.relays import IDENTITY, PATIENCE, Behind, own_address
from trainshed.replica import protocol
from trainshed.replica.endpoint import relay

ADDRESS = own_address(0)
PRINTS = f"""
import socket
for _ in range(2):
    with socket.create_connection(('{ADDRESS}', 23456)) as connection:
        connection.sendall(b'{{"project": "p2"}}\\n')
        connection.shutdown(socket.SHUT_WR)
        print(connection.recv(100).decode())
"""


def test_every_connection_begins_with_the_line_that_says_whose_it_is(
    place: Place, behind: Behind
) -> None:
    """A program says what it likes behind that line, never before it."""
    network = {"storage_socket": behind.path, "storage_port": 23456, "address": ADDRESS}
    line = place.python(PRINTS, **network, identity=IDENTITY.decode())
    for number in range(2):
        preamble, connection = behind.accept()
        assert preamble == IDENTITY + b"\n"
        with connection:
            received = b""
            while data := connection.recv(100):
                received += data
            assert received == b'{"project": "p2"}\n'
            connection.sendall(b"answer %d" % number)
    assert line.record()["exit_code"] == 0, place.texts()
    assert place.texts() == ["answer 0", "answer 1"]


def test_connections_beyond_so_many_are_closed(
    monkeypatch: pytest.MonkeyPatch, behind: Behind
) -> None:
    """Issue: a program with a limit of 200 processes had its relay take threads and memory without end."""
    monkeypatch.setattr(relay, "_MAX_THREADS", 0)
    listener = relay.listen(ADDRESS, 0)
    with socket.create_connection(listener.getsockname()) as connection:
        # A busy kernel passes on late that it is there, or closed. One that is taken stays open.
        assert select.select([listener], [], [], PATIENCE)[0]
        network = protocol.Network(storage_socket=behind.path)
        relay.Relay(network, [listener])._accept(listener.fileno())  # pyright: ignore[reportPrivateUsage]
        assert select.select([connection], [], [], PATIENCE)[0], "it was taken"


def test_a_notice_is_reported_for_as_long_as_the_program_runs(place: Place, behind: Behind) -> None:
    """By a connection of its own, and again when the bucket process is replaced by another one."""
    network = {"storage_socket": behind.path, "storage_port": 23456, "address": ADDRESS}
    program = "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint(1)\nsignal.pause()"
    line = place.python(program, **network, identity=IDENTITY.decode())
    place.up(line)
    line.order(o="stop", grace=10**15, notice="preempted")
    for _ in range(2):
        preamble, connection = behind.accept()
        assert json.loads(preamble) == {**json.loads(IDENTITY), "notice": "preempted"}
        connection.close()
    _, connection = behind.accept()
    with connection:
        line.order(o="stop", grace=0)
        assert connection.recv(1) == b""
    assert line.record()["stopped"]
