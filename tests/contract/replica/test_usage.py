"""What real replicas use, as their shims write it down (spec/program#usage)."""

import json
import sys
import time
from typing import Any

import pytest

from tests.contract.replica.conftest import PATIENCE, Place
from trainshed.replica.observe import usage

MIB = 1 << 20
GIB = 1 << 30
_GROWS = """
import time
held = bytearray(96 << 20)
held[::4096] = b"x" * len(held[::4096])
while time.process_time() < 0.4:
    pass
print("grown")
"""


def entries(place: Place) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place.logs / usage.FILE).read_text().splitlines()]


def test_a_program_leaves_what_it_used_of_processor_and_memory(place: Place) -> None:
    line = place.python(_GROWS, usage_every=10.0, memory_limit=GIB)
    assert line.record()["exit_code"] == 0
    first, *_, last = entries(place)
    assert (first["incarnation"], first["limit"], first["gpus"]) == (1, GIB, [])
    assert first["cpus"] >= 1
    assert last["last"] and last["at"] > first["started"]
    assert 0.35 <= last["cpu"] < 20
    assert 96 * MIB < last["peak"] < GIB


def test_a_running_program_is_looked_at(place: Place) -> None:
    line = place.python(_GROWS + "time.sleep(99)", usage_every=0.05)
    place.up(line)
    deadline = time.monotonic() + PATIENCE
    while entries(place)[-1].get("memory", 0) <= 96 * MIB:
        assert time.monotonic() < deadline
        line.order(o="ping", n=1)
        line.hear("pong")
    assert entries(place)[-1]["processes"] >= 1
    line.order(o="stop", grace=0)
    line.record()
    assert entries(place)[-1]["last"]


_TALKS = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
accepted, _ = server.accept()
for _ in range(40):
    client.sendall(b"x" * 50_000)
    left = 50_000
    while left:
        left -= len(accepted.recv(left))
print("sent", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts connections: NOT tested")
def test_what_goes_over_tcp_is_counted(place: Place) -> None:
    """Of a connection that is open, and of what it had moved when it ended."""
    line = place.python(_TALKS + "import time; time.sleep(99)", usage_every=0.05)
    place.up(line)
    deadline = time.monotonic() + PATIENCE
    while min(entries(place)[-1].get("net", [0, 0])) < 2_000_000:
        assert time.monotonic() < deadline
        line.order(o="ping", n=1)
        line.hear("pong")
    line.order(o="stop", grace=0)
    line.record()
    sent, received = entries(place)[-1]["net"]
    # What is sent twice counts on both sides, as on a busy machine.
    assert 2_000_000 <= sent < 2_200_000
    assert 2_000_000 <= received < 2_200_000
