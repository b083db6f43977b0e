"""What messages call the reducers that a worker is connected to."""

import socket
import threading
import time

import pytest

from trainshed_reduction import proof
from trainshed_reduction.client.lanes import Dial, Lane
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import GROUP, Accept, Hello


def test_a_complaint_says_what_is_known_of_a_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """spec/reduction#reports: a reducer that has let the worker in has a connection, whether or not it has
    said for whom it waits."""
    lane = Lane(1, ("10.0.0.2", 2222))
    assert lane.complaint() == "no connection to reducer 10.0.0.2:2222: it does not answer"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = socket.create_connection(listener.getsockname())

        def connect(*_: object, tls: object) -> tuple[socket.socket, Accept]:
            return connection, Accept(1)

        monkeypatch.setattr(proof, "connect", connect)
        news = threading.Event()
        hello = Hello(bytes(GROUP), 1, 0, 2)
        lane.connect(Dial(Settings((), b"token"), news.set), lambda _: hello, time.monotonic())
        assert news.wait(10)
        assert lane.complaint() == "reducer 10.0.0.2:2222: it has not said yet whom it waits for"
        lane.heard(time.monotonic(), "waiting 2 s for rank 1")
        assert lane.complaint() == "reducer 10.0.0.2:2222: waiting 2 s for rank 1"
        lane.close()
