"""Where room runs out: on the disk, for file handles, for a port (DESIGN §3.7: nothing is lost in silence)."""

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.replica.conftest import PATIENCE, Place
from trainshed.engines.local import zygotes
from trainshed.replica import fence, journal, protocol, records, system

FLOODS = "while True: print('x' * 1000)"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        system.mount("tmpfs", str(disk), "tmpfs", 0, "size=256k,mode=755")
    except OSError as error:
        pytest.skip(f"this user may not mount anything: {error}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True, timeout=PATIENCE)


@pytest.mark.parametrize("level", [protocol.LEVEL_ROOT, protocol.LEVEL_SESSION])
def test_a_full_disk_is_the_recorded_cause(
    small_disk: Path, zygote: zygotes.ZygoteHandle, level: str
) -> None:
    place = Place(small_disk, zygote, level)
    line = place.python(FLOODS)
    end = line.hear("lost", "exited")
    assert end["e"] == "lost", end
    assert "disk is full" in end["cause"]
    assert end["by_service"]
    record = journal.Entries(str(place.slot)).record(1)
    assert record == records.lost(end["cause"], by_service=True)
    for segment in place.logs.iterdir():
        segment.unlink()
    assert place.run("echo", "again").record()["exit_code"] == 0
    assert fence.expel(str(place.slot), 9, "the test is over")


def test_the_storage_port_is_free_when_the_end_is_reported(place: Place, tmp_path: Path) -> None:
    """A restart in place needs it at once (SPEC §2.1)."""
    behind = str(tmp_path / "buckets")
    fields = {"storage_socket": behind, "storage_port": 23456, "address": "127.77.0.9"}
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(behind)
        server.listen(8)
        for _ in range(5):
            line = place.python(
                "import socket; socket.create_connection(('127.77.0.9', 23456)); print('up')",
                **fields,
            )
            assert line.record()["exit_code"] == 0


def test_a_relay_without_file_handles_waits_and_serves_later(tmp_path: Path) -> None:
    """Issue: the relay spins when file handles run out."""
    target = str(tmp_path / "target")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(target)
        server.listen(8)
        server.settimeout(PATIENCE)
        begin = (
            "import os, resource, sys; sys.path.insert(0, sys.argv[1])\n"
            "from trainshed.replica import relay\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))\n"
            "listener = relay.listen('127.0.0.1', 0)\n"
            "print(listener.getsockname()[1], flush=True)\n"
            "relay.Relay(listener, sys.argv[2]).run()"
        )
        source = str(Path(system.__file__).parents[2])
        process = subprocess.Popen(
            ["python3", "-c", begin, source, target], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
            first, _ = server.accept()
            before = cpu(process.pid)
            # It is without handles now; what it does meanwhile is nothing.
            assert not threading.Event().wait(1.0)
            assert cpu(process.pid) - before < 0.3
            for caller in callers[:-1]:
                caller.close()
            callers[-1].settimeout(PATIENCE)
            callers[-1].sendall(b"hello")
            served = first
            while served.recv(5) != b"hello":
                served, _ = server.accept()
                served.settimeout(PATIENCE)
        finally:
            process.kill()
            process.communicate(timeout=PATIENCE)


def cpu(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
