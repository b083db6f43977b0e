"""Exhausted resources: disk space, file handles, a port (spec/invariants#durability: no data is
lost silently)."""

import errno
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.commands import fill, running
from tests.contract.replica.conftest import SECOND, WAIT_TIMEOUT, Line, Place
from tests.e2e.processes import processor_seconds
from trainshed.engines.local import spawner
from trainshed.replica import protocol
from trainshed.replica import zygote as fork_server
from trainshed.replica.observe import disk as replica_disk
from trainshed.replica.supervisor import journal, shells, shim
from trainshed.replica.supervisor.clients import connect
from trainshed.replica.system import kernel, unix_sockets

PRINTS_A_MEGABYTE = "for n in range(1000): print(n, 'x' * 1000)"
PRINTS_BYE_WHEN_STOPPED = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("up")
signal.sigwait({signal.SIGTERM})
print("bye" + 9000 * "!")
sys.exit(7)
"""


LEVELS = pytest.mark.parametrize("level", [protocol.LEVEL_ROOT, protocol.LEVEL_SESSION])


def wait_for_note(line: Line, name: str) -> None:
    while line.hear("note")["name"] != name:
        pass


@LEVELS
def test_full_disk_pauses_a_program_until_space_is_free(
    small_disk: Path, zygote: spawner.ZygoteHandle, level: str
) -> None:
    """Earlier, a job that printed one line on a full disk was killed and started over."""
    place = Place(small_disk, zygote, level)
    line = place.python(PRINTS_A_MEGABYTE)
    wait_for_note(line, replica_disk.LOG_WAITS)
    line.order(o="ping", n=1)
    assert line.hear("pong")["n"] == 1
    line.order(o="write", lines=["said in another way"])
    assert "full" in line.hear("refused")["cause"]
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    wait_for_note(line, replica_disk.LOG_GOES_ON)
    record = line.record()
    assert (record["exit_code"], record["log_lines"]) == (0, 1000)
    assert [text.split()[0] for text in place.texts()] == [str(n) for n in range(1000)]
    assert [entry["n"] for entry in place.log()] == list(range(1000))
    entries = journal.Entries(str(place.slot))
    assert entries.record(1) == record
    names = [note["name"] for note in entries.notes(1)]
    assert [name for name in names if name != replica_disk.NO_ROOM] == [
        replica_disk.LOG_WAITS,
        replica_disk.LOG_GOES_ON,
    ]


@LEVELS
def test_end_of_a_program_on_a_full_disk_is_recorded_when_space_is_free(
    small_disk: Path, zygote: spawner.ZygoteHandle, level: str
) -> None:
    place = Place(small_disk, zygote, level)
    line = place.python(PRINTS_BYE_WHEN_STOPPED)
    place.up(line)
    program = place.program()
    filler = fill(small_disk)
    line.order(o="stop", grace=600 * SECOND)
    wait_for_note(line, replica_disk.LOG_WAITS)
    deadline = time.monotonic() + WAIT_TIMEOUT
    while protocol.process_start(program):
        assert time.monotonic() < deadline
        line.order(o="ping", n=2)
        assert line.hear("pong", "exited", "lost")["e"] == "pong"
    later = Line(connect(str(place.slot)))  # A restarted service opens this connection.
    assert later.hear("started", "refused")["e"] == "started"
    assert journal.Entries(str(place.slot)).record(1) is None
    filler.unlink()
    record = line.record()
    assert (record["exit_code"], record["log_lines"]) == (7, 2)
    assert later.record() == record
    assert place.texts() == ["up", "bye" + 9000 * "!"]
    assert journal.Entries(str(place.slot)).record(1) == record


def test_shim_waiting_for_disk_space_uses_no_cpu(small_disk: Path, zygote: spawner.ZygoteHandle) -> None:
    place = Place(small_disk, zygote, protocol.LEVEL_ROOT)
    line = place.python("while True: print('x' * 1000)")
    wait_for_note(line, replica_disk.LOG_WAITS)
    shim = place.journal()["shim"]
    before = processor_seconds(shim)
    assert not threading.Event().wait(2.0)
    assert processor_seconds(shim) - before < 0.1
    for segment in place.logs.iterdir():
        segment.unlink()
    assert journal.expel(str(place.slot), 9, "the test is over")


def test_relay_that_runs_out_of_file_descriptors_waits_and_then_continues(tmp_path: Path) -> None:
    """Earlier, the relay used a whole CPU when no file descriptors were available."""
    target = str(tmp_path / "target")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(target)
        server.listen(8)
        server.settimeout(WAIT_TIMEOUT)
        begin = (
            "import os, resource, sys; sys.path.insert(0, sys.argv[1])\n"
            "from trainshed.replica import protocol\n"
            "from trainshed.replica.endpoint import relay\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))\n"
            "listener = relay.listen('127.0.0.1', 0)\n"
            "print(listener.getsockname()[1], flush=True)\n"
            "relay.Relay(protocol.Network(storage_socket=sys.argv[2]), [listener]).run()"
        )
        source = str(Path(kernel.__file__).parents[3])
        words = (sys.executable, "-c", begin, source, target)
        with running(*words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
            first, _ = server.accept()
            before = processor_seconds(process.pid)
            # The relay has no handles now and must wait without using the CPU.
            assert not threading.Event().wait(1.0)
            assert processor_seconds(process.pid) - before < 0.3
            for caller in callers[:-1]:
                caller.close()
            callers[-1].settimeout(WAIT_TIMEOUT)
            callers[-1].sendall(b"hello")
            served = first
            while served.makefile("rb").read(6) != b"\nhello":
                served, _ = server.accept()
                served.settimeout(WAIT_TIMEOUT)


def test_idle_shims_are_forked_again_after_a_failed_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lack of memory or processes is temporary. Without idle shims, each start would wait for forks."""
    forks: queue.Queue[socket.socket | None] = queue.Queue()

    def fork(*_: object, **__: object) -> socket.socket:
        if not ends:
            ends.extend(end for _ in range(3) for end in socket.socketpair())
            forks.put(None)
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        forks.put(ends.pop())
        return ends.pop()

    ends: list[socket.socket] = []
    monkeypatch.setattr(fork_server.Zygote, "_fork_shim", fork)
    requests: list[tuple[protocol.Message, int]] = [
        ({"pool": 2, "level": protocol.LEVEL_ROOT}, 1),
        # One shim for the order, and two idle ones.
        ({"slot": "", "plan": {}}, 3),
    ]
    service, own = socket.socketpair()
    with service, Path("/dev/null").open("rb") as handle:
        threading.Thread(target=fork_server.Zygote(own).serve, daemon=True).start()
        for request, count in requests:
            unix_sockets.send(service, protocol.encode(request), handle.fileno())
            for _ in range(count):
                if (made := forks.get(timeout=WAIT_TIMEOUT)) is not None:
                    made.close()


def test_shell_is_rejected_when_file_descriptors_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory can run out too. Earlier, this error ended the replica."""
    ours, theirs = socket.socketpair()
    refusal = OSError(errno.EMFILE, "Too many open files")
    monkeypatch.setattr(socket, "socketpair", Mock(side_effect=refusal))
    subject: Any = object.__new__(shells.Shells)
    subject._connections = {}
    subject.open({"o": "port", "port": 8080}, theirs)
    with ours:
        assert b"Too many open files" in ours.recv(4096)


def test_output_pipe_is_read_completely_after_a_full_disk_before_the_shim_closes_the_pipe() -> None:
    """The disk may have free space again just when the shim checks whether to abandon the pipes of
    a dead program."""
    subject: Any = object.__new__(shim.Shim)
    looks: list[Callable[[], None]] = []

    def after(_: float, look: Callable[[], None]) -> None:
        looks.append(look)

    subject._loop = SimpleNamespace(after=after)
    drained: list[bool] = []
    for waits in (True, False, False):
        subject.transcript = SimpleNamespace(waits=waits)
        (looks.pop() if looks else subject._drain)()
        drained.append(subject._is_drained)
    assert drained == [False, False, True]
