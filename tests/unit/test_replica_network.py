"""What processes send and receive, counted by the kernel (spec/program#usage): over real connections of this
process."""

import os
import select
import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from trainshed.replica.observe import network
from trainshed.replica.observe.network import Traffic

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux counts connections: NOT tested"
)
OWN, PORT = "127.77.1.2", 1
MANY = 300_000
PATIENCE = 30.0
_FIN = 10
"""Ends of streams count as a byte here and there."""


@pytest.fixture
def traffic() -> Iterator[Traffic]:
    counted = Traffic(OWN, PORT)
    counted.read([os.getpid()])
    yield counted
    counted.close()


def talk(server: socket.socket, size: int) -> tuple[socket.socket, socket.socket]:
    """Connected ends between which so many bytes have gone."""
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    sending = threading.Thread(target=client.sendall, args=(b"x" * size,))
    sending.start()
    left = size
    while left:
        left -= len(accepted.recv(left))
    sending.join()
    return client, accepted


def moved(traffic: Traffic, before: tuple[int, int], *family: int) -> tuple[int, int]:
    sent, received = traffic.read(family)
    return sent - before[0], received - before[1]


def ended(
    traffic: Traffic, before: tuple[int, int], least: tuple[int, int], *family: int
) -> tuple[int, int]:
    """The same once it is so much: the kernel tells of connections that end a moment later."""
    while True:
        bytes_moved = moved(traffic, before, *family)
        if bytes_moved[0] >= least[0] and bytes_moved[1] >= least[1]:
            return bytes_moved
        assert select.select([traffic], [], [], PATIENCE)[0], bytes_moved


def listening(address: str) -> socket.socket:
    return socket.create_server((address, 0))


def test_both_ends_of_an_open_connection_are_counted_once(traffic: Traffic) -> None:
    me = os.getpid()
    before = traffic.read([me])
    with listening("127.0.0.1") as server:
        ends = talk(server, MANY)
        assert all(MANY <= n < MANY + _FIN for n in moved(traffic, before, me))
        assert all(MANY <= n < MANY + _FIN for n in moved(traffic, before, me))
        ends[0].sendall(b"y" * 1000)
        ends[1].recv(1000, socket.MSG_WAITALL)
        for end in ends:
            end.close()
    sent, received = ended(traffic, before, (MANY + 1000, MANY + 1000), me)
    assert sent < MANY + 1000 + _FIN
    assert received < MANY + 1000 + _FIN


def test_a_connection_that_an_answer_lacks_or_has_twice_is_counted_once(
    traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel answers where other connections come and go meanwhile."""
    me = os.getpid()
    before = traffic.read([me])
    with listening("127.0.0.1") as server:
        ends = talk(server, MANY)
        seen = list(network._open_connections())  # pyright: ignore[reportPrivateUsage] - the kernel's answer
        for answer in ([*seen, *seen], [], seen):
            monkeypatch.setattr(network, "_open_connections", answer.__iter__)
            assert all(MANY <= n < MANY + _FIN for n in moved(traffic, before, me))
        for end in ends:
            end.close()


def test_a_short_connection_to_its_own_address_is_counted(traffic: Traffic) -> None:
    before = traffic.read([])
    with listening(OWN) as server:
        for end in talk(server, MANY):
            end.close()
    assert ended(traffic, before, (0, MANY))[1] < MANY + _FIN


def test_connections_of_others_are_not(traffic: Traffic) -> None:
    before = traffic.read([])
    with listening("127.0.0.1") as server:
        ends = talk(server, MANY)
        assert moved(traffic, before) == (0, 0)
        for end in ends:
            end.close()
    assert moved(traffic, before) == (0, 0)
