"""Ports of the loopback for tests that have to name one before anybody listens there."""

import contextlib
import socket


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """That nobody has at this moment, all different."""
    with contextlib.ExitStack() as opened:
        probes = [
            opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [probe.getsockname()[1] for probe in probes]
