"""What a worker says of a reducer that it cannot connect to."""

import functools
import socket
import threading
import time

import pytest

from trainshed_reduction import proof
from trainshed_reduction.client.lanes import Dial, Lane
from trainshed_reduction.client.port import ReductionFailed
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import GROUP, Hello


def test_a_host_that_takes_connections_and_is_frozen_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """spec/reduction: whoever reads it wants to know who it was that took too long."""
    monkeypatch.setattr(proof, "connect", functools.partial(proof.connect, seconds=0.05))
    news = threading.Event()
    dial = Dial(Settings((), b"token"), news.set)
    hello = Hello(bytes(GROUP), 1, 0, 2)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        lane = Lane(0, frozen.getsockname()[:2])
        assert lane.connect(dial, lambda _: hello, time.monotonic()) is None
        assert news.wait(10)
        due = lane.connect(dial, lambda _: hello, 0.0)
    assert lane.cause == "it does not answer"
    assert due is not None  # Trying again may help.


def test_a_refusal_without_a_word_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """spec/reduction: trying again would be of no use, whatever the reducer says."""

    def connect(*_: object, tls: object) -> None:
        raise proof.Refused("")

    monkeypatch.setattr(proof, "connect", connect)
    news = threading.Event()
    dial = Dial(Settings((), b"token"), news.set)
    hello = Hello(bytes(GROUP), 1, 0, 2)
    lane = Lane(0, ("10.0.0.2", 2222))
    lane.connect(dial, lambda _: hello, time.monotonic())
    assert news.wait(10)
    with pytest.raises(ReductionFailed, match=r"10\.0\.0\.2:2222 refuses this worker"):
        lane.connect(dial, lambda _: hello, time.monotonic())
