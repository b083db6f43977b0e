"""A replica's endpoint serves only that replica's processes and rejects all other callers
(spec/program#isolation)."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.replica.conftest import OWN, WAIT_TIMEOUT, Line, Place
from tests.contract.replica.relays import IDENTITY, FakeBackend, own_address
from trainshed.engines.local import spawner
from trainshed.replica import protocol
from trainshed.replica.supervisor import journal
from trainshed.serve import certificates

ADDRESS, OTHER_ADDRESS = own_address(0), own_address(1)
PORT = 23456
OTHER_USERS = (OWN[0] - OWN[1], OWN[1])

CALLS = f"""
import socket
def call(address, family=socket.AF_INET, port={PORT}):
    with socket.socket(family) as connection:
        connection.settimeout({WAIT_TIMEOUT})
        connection.connect((address, port))
        try:
            connection.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n')
            return connection.recv(12).decode() or 'closed'
        except ConnectionError:
            return 'closed'
"""


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[FakeBackend]:
    """Answers every connection that the relay forwards."""
    made = FakeBackend(tmp_path / "behind")
    made.server.settimeout(None)

    def serve() -> None:
        while True:
            try:
                line, connection = made.accept()
            except OSError:
                return
            with connection:
                connection.recv(100)
                connection.sendall(json.loads(line)["replica"].encode())

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    yield made
    # Closing alone does not wake a thread that waits in accept.
    made.server.shutdown(socket.SHUT_RDWR)
    made.server.close()
    serving.join(WAIT_TIMEOUT)


@pytest.fixture
def other(tmp_path: Path, zygote: spawner.ZygoteHandle, place: Place) -> Iterator[Place]:
    """Another replica at the same level."""
    made = Place(tmp_path / "other", zygote, place.level)
    yield made
    assert journal.expel(str(made.slot), 10**6, "the test is over")


def run(place: Place, behind: FakeBackend, program: str, **more: object) -> Line:
    """Run a program whose replica has an endpoint."""
    fields: dict[str, object] = {
        "storage_socket": behind.path,
        "storage_port": PORT,
        "address": ADDRESS,
        "identity": IDENTITY.decode(),
    }
    return place.python(CALLS + program, **{**fields, **more})


OWN_PROCESSES = f"""
import os, subprocess, sys, threading
print(call('{ADDRESS}'))
print(call('::ffff:{ADDRESS}', socket.AF_INET6))

source = {CALLS!r} + "print(call('{ADDRESS}'), flush=True)"
subprocess.run([sys.executable, '-c', source], check=True)

# One whose parent is gone, and that made a session of its own.
done, say = os.pipe()
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.read(done, 1)
        print(call('{ADDRESS}'), flush=True)
    os._exit(0)
os.wait()
if os.fork() == 0:
    os.close(reading)
    subprocess.run([sys.executable, '-c', source], check=True)
    os.write(say, b'x')
    os._exit(0)
os.close(writing)
os.read(reading, 1)

# The last: it may be there for a moment more, and Python warns of forks beside threads.
thread = threading.Thread(target=lambda: print(call('{ADDRESS}')))
thread.start()
thread.join()
print('over')
"""


def test_endpoint_accepts_every_process_of_its_replica(place: Place, behind: FakeBackend) -> None:
    """The callers are its program, children, threads, later processes and orphans."""
    line = run(place, behind, OWN_PROCESSES)
    assert line.record()["exit_code"] == 0, place.texts()
    texts = place.texts()
    assert sorted(texts) == sorted(["workerpool0-"] * 6 + ["over"])


WAITS_FOR_FILE = f"""
import os
print(call('{ADDRESS}'))
while os.path.exists('stay'):
    import time
    time.sleep(0.01)
"""


def start_waiting_program(place: Place, behind: FakeBackend, **fields: object) -> tuple[Line, Path]:
    """Start a replica whose program was served, and runs until the file is removed."""
    stay = place.slot / protocol.FILES / "work" / "stay"
    stay.parent.mkdir(parents=True, exist_ok=True)
    stay.touch()
    line = run(place, behind, WAITS_FOR_FILE, **fields)
    place.up(line)
    return line, stay


def test_endpoint_rejects_another_replica(place: Place, other: Place, behind: FakeBackend) -> None:
    """The other replica is served at its own endpoint."""
    line, stay = start_waiting_program(place, behind)
    program = f"print(call('{ADDRESS}')); print(call('{OTHER_ADDRESS}'))"
    users = OTHER_USERS if place.level == protocol.LEVEL_OWN else ()
    stranger = run(other, behind, program, address=OTHER_ADDRESS, users=users)
    assert stranger.record()["exit_code"] == 0, other.texts()
    assert other.texts() == ["closed", "workerpool0-"]
    stay.unlink()
    assert line.record()["exit_code"] == 0
    assert place.texts() == ["workerpool0-"]


def test_endpoint_rejects_other_processes_of_the_machine(
    place: Place, behind: FakeBackend, files: certificates.Interception
) -> None:
    """The process is rejected over TLS as well."""
    line, stay = start_waiting_program(place, behind, certificate=str(files.certificate))
    trust = ssl.create_default_context(cafile=str(files.trust))
    with (
        socket.create_connection((ADDRESS, PORT + 1), timeout=WAIT_TIMEOUT) as raw,
        pytest.raises(OSError),  # The relay closes the connection before or during the handshake.
    ):
        trust.wrap_socket(raw, server_hostname="storage.googleapis.com")
    with socket.create_connection((ADDRESS, PORT), timeout=WAIT_TIMEOUT) as raw:
        assert raw.recv(1) == b""
    stay.unlink()
    assert line.record()["exit_code"] == 0, place.texts()
