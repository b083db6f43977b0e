"""What a worker says of a reducer that it cannot connect to."""

import functools
import socket

import pytest

from trainshed_reduction import proof
from trainshed_reduction.client.lanes import Dial, Inbox, Lane
from trainshed_reduction.wire import GROUP, Hello


def test_a_host_that_takes_connections_and_is_frozen_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """spec/reduction: whoever reads it wants to know who it was that took too long."""
    monkeypatch.setattr(proof, "connect", functools.partial(proof.connect, seconds=0.05))
    inbox = Inbox()
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        address = frozen.getsockname()[:2]
        hello = Hello(b"", b"", bytes(GROUP), 1, 0, 2, 0, 0)
        lane = Lane(0, address)
        lane.dial(Dial(b"token", None), hello, inbox)
        assert inbox.take(10) == [lane]
        assert lane.cause == "it does not answer"
        assert lane.due is not None  # Trying again may help.
