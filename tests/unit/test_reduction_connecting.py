"""What a worker says of a reducer that it cannot connect to."""

import functools
import queue
import socket

import pytest

from trainshed_reduction import proof
from trainshed_reduction.client.connection_attempts import Attempt, Failed, Target
from trainshed_reduction.wire import GROUP, Hello


def test_a_host_that_takes_connections_and_is_frozen_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """spec/reduction: whoever reads it wants to know who it was that took too long."""
    monkeypatch.setattr(proof, "connect", functools.partial(proof.connect, seconds=0.05))
    told: queue.SimpleQueue[object] = queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        address = frozen.getsockname()[:2]
        hello = Hello(b"", b"", bytes(GROUP), 1, 0, 0, 2, 0)
        Attempt(
            Target(address, 0, address), b"token", hello, None, lambda _, news: told.put(news)
        ).begin()
        assert told.get(timeout=10) == Failed("it does not answer", False)
