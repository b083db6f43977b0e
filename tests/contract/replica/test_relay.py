"""A replica's own endpoint: its connections to the service start with the replica's identity
(spec/program#storage)."""

import json
import select
import socket

import pytest

from tests.contract.replica.conftest import Place
from tests.contract.replica.relays import IDENTITY, WAIT_TIMEOUT, FakeBackend, own_address
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


def test_relayed_connection_starts_with_the_replicas_identity(place: Place, behind: FakeBackend) -> None:
    """The program controls only the data after that line, so it cannot forge an identity."""
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


def test_relay_closes_connections_over_its_limit(
    monkeypatch: pytest.MonkeyPatch, behind: FakeBackend
) -> None:
    """Earlier, a program with a limit of 200 processes made its relay use threads and memory
    without limit."""
    monkeypatch.setattr(relay, "_MAX_THREADS", 0)
    listener = relay.listen(ADDRESS, 0)
    with socket.create_connection(listener.getsockname()) as connection:
        # A busy kernel may report a new or closed connection late. An accepted connection would stay open.
        assert select.select([listener], [], [], WAIT_TIMEOUT)[0]
        network = protocol.Network(storage_socket=behind.path)
        relay.Relay(network, [listener])._accept(listener.fileno())  # pyright: ignore[reportPrivateUsage]
        assert select.select([connection], [], [], WAIT_TIMEOUT)[0], "it was taken"


def test_preemption_notice_is_reported_while_the_program_runs(place: Place, behind: FakeBackend) -> None:
    """The notice uses a connection of its own, and is repeated when the bucket process is replaced."""
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
