"""Loopback ports for tests that must specify a port before its server listens."""

import contextlib
import os
import random
import socket
from pathlib import Path

_drawn = set[int]()
"""Ports that were handed out and may not have a listener yet."""


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """Return different ports that are free now. The kernel does not use them for outgoing connections unless
    its range covers all ports. A server that restarts on its port therefore finds it free again.
    """
    lent = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    first, last = (int(word) for word in lent)
    # Replicas with a shared address use ports from 20000. Each worker has a separate range.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8
    ports = range(10_000 + 1_250 * worker, 11_250 + 1_250 * worker)
    lasting = [p for p in ports if not first <= p <= last and p not in _drawn] or ports
    free: list[int] = []
    with contextlib.ExitStack() as opened:
        for port in random.sample(lasting, len(lasting)):
            if len(free) == count:
                break
            with contextlib.suppress(OSError):
                opened.enter_context(socket.create_server(("127.0.0.1", port)))
                free.append(port)
    _drawn.update(free)
    return free
