"""Ports of the loopback for tests that have to name one before anybody listens there."""

import contextlib
import os
import random
import socket
from pathlib import Path

_drawn = set[int]()
"""Who was handed one may not listen there yet."""


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """That nobody has at this moment, all different. Nor does the kernel lend them to connections, unless it
    lends all: whoever listens there now and again finds them free each time."""
    lent = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    first, last = (int(word) for word in lent)
    # Replicas that share an address have those from 20000 on, and no worker has those of another.
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
