"""Tests of identifying the client of a connection (spec/program#isolation)."""

import os
import socket

import pytest

from trainshed.replica.endpoint.peers import Peers


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_client_of_a_local_connection_is_identified_by_user_and_process(family: socket.AddressFamily) -> None:
    """An IPv4 address in IPv6 notation is supported, too."""
    host = "127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1"
    me = os.geteuid()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(family) as client:
        client.connect((host, listener.getsockname()[1]))
        accepted = listener.accept()[0]
        with accepted:
            assert Peers(0, (me, 1)).belongs(accepted)
            assert not Peers(0, (me + 1, 1000)).belongs(accepted)
            # Not a connection of this process or its descendants.
            assert not Peers(os.getpid()).belongs(accepted)
            assert Peers(os.getppid()).belongs(accepted)
