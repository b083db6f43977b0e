"""The grace time of a stop when the main process ends before its children (spec/program#stopping).

Children end when the test creates a file, so no test depends on the speed of the machine.
"""

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.contract.replica.conftest import PYTHON, SECOND, WAIT_TIMEOUT, Line, Place
from trainshed.replica import protocol
from trainshed.replica.supervisor import journal, shim
from trainshed.replica.supervisor.clients import connect
from trainshed.replica.supervisor.deadline import Deadline
from trainshed.replica.system import kernel

GRACE = 600 * SECOND
"""Longer than any test waits: a program that ends earlier was not killed at its end."""
SAVES = """
import os, signal, time
def save(*_):
    print("saving")
    while not os.path.exists("may-end"): time.sleep(0.02)
    print("saved")
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("up")
while True: signal.pause()
"""
RUN = f"subprocess.run([sys.executable, '-c', {SAVES!r}])"
LAUNCHES = f"import subprocess, sys\n{RUN}"
LAUNCHES_A_SESSION = f"import subprocess, sys\n{RUN[:-1]}, start_new_session=True)"
IGNORES = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up")
while True: signal.pause()
"""


def shell(text: str, program: str = SAVES) -> tuple[str, ...]:
    """Return the command of a shell that runs `text`, in which `$run` is the program."""
    return ("bash", "-c", text.replace("$run", '"$0" -c "$1"'), PYTHON, program)


PARENTS: dict[str, tuple[str, ...]] = {
    "shell": shell("$run; echo finished"),
    "pipeline": shell("$run | (trap '' TERM; cat)"),
    "background": shell("nohup $run & wait"),
    "own group": shell("set -m; $run & wait"),
    "own session": shell("setsid $run & wait"),
    "subprocess": (PYTHON, "-c", LAUNCHES),
    "new session": (PYTHON, "-c", LAUNCHES_A_SESSION),
}


def stop(place: Place, line: Line, grace: int = GRACE) -> None:
    """Stop the replica, and wait until its main process has exited."""
    shim_process, main = place.journal()["shim"], place.program()
    line.order(o="stop", grace=grace)
    children = Path(f"/proc/{shim_process}/task/{shim_process}/children")
    until = time.monotonic() + WAIT_TIMEOUT
    while str(main) in children.read_text().split():
        assert time.monotonic() < until, "the main process did not end"
        time.sleep(0.01)


def may_end(place: Place) -> None:
    (place.slot / protocol.FILES / "work" / "may-end").touch()


def grace_note(place: Place) -> list[str]:
    notes = journal.Entries(str(place.slot)).notes(1)
    return [str(note["text"]) for note in notes if note["name"] == shim.GRACE_USED]


def start_program(place: Place, *argv: str, **fields: Any) -> Line:
    line = place.run(*argv, **fields)
    place.up(line)
    return line


@pytest.mark.parametrize("parent", PARENTS)
def test_child_program_can_use_the_grace_time(place: Place, parent: str) -> None:
    """Earlier, a shell ended on SIGTERM, and its child program was killed while it saved its state."""
    line = start_program(place, *PARENTS[parent])
    stop(place, line)
    time.sleep(1.1)  # A shorter grace time is not noted.
    may_end(place)
    record = line.record()
    assert (record["signal"], record["stopped"]) == (signal.SIGTERM, True)
    assert [text for text in place.texts() if "nohup" not in text] == ["up", "saving", "saved"]
    assert len(grace_note(place)) == 1 and "exited in time" in grace_note(place)[0]
    assert record["ended"] - record["started"] > SECOND


def test_program_ignoring_sigterm_is_killed_after_the_grace_time(place: Place) -> None:
    line = start_program(place, *shell("$run; echo finished", IGNORES))
    line.order(o="stop", grace=2 * SECOND)
    record = line.record()
    assert (record["signal"], place.texts()) == (signal.SIGTERM, ["up"])
    assert all("killed at its end" in text for text in grace_note(place))


def test_second_stop_does_not_extend_the_grace_time(place: Place) -> None:
    line = start_program(place, *shell("$run; echo finished", IGNORES))
    line.order(o="stop", grace=SECOND)
    line.order(o="stop", grace=GRACE)
    assert line.record()["signal"] == signal.SIGTERM


def test_second_stop_can_shorten_the_grace_time(place: Place) -> None:
    line = start_program(place, *PARENTS["shell"])
    stop(place, line)
    line.order(o="stop", grace=0)
    assert line.record()["signal"] == signal.SIGTERM
    assert "saved" not in place.texts()


def test_lease_deadline_ends_the_grace_time(place: Place, tmp_path: Path) -> None:
    """The deadline applies even if the main process has already exited, because another attempt may run
    afterwards."""
    deadline, is_stopped = Deadline(str(tmp_path / "deadline")), threading.Event()

    def extend() -> None:
        while not is_stopped.wait(0.1):
            deadline.set(time.clock_gettime(kernel.BOOT_CLOCK) + 4)

    deadline.set(time.clock_gettime(kernel.BOOT_CLOCK) + 4)
    agent = threading.Thread(target=extend)
    agent.start()
    try:
        line = start_program(place, *PARENTS["shell"], deadline=str(tmp_path / "deadline"))
        stop(place, line)
    finally:
        is_stopped.set()
        agent.join()
    assert line.record()["signal"] == signal.SIGTERM
    assert "saved" not in place.texts()


def test_grace_time_of_zero_kills_immediately(place: Place) -> None:
    line = start_program(place, *shell("$run; echo finished", IGNORES))
    line.order(o="stop", grace=0)
    assert line.record()["stopped"]
    assert not grace_note(place)


def test_exit_without_a_stop_ends_children_immediately(place: Place) -> None:
    line = start_program(place, *shell("$run & while ! test -e may-end; do sleep 0.1; done; exit 3"))
    may_end(place)
    record = line.record()
    assert (record["exit_code"], record["stopped"]) == (3, False)
    assert "saving" not in place.texts() and not grace_note(place)


def test_memory_limit_applies_during_the_grace_time(place: Place) -> None:
    grows = SAVES.replace('print("saved")', "kept = [b'x' * (4 << 20) for _ in range(10 ** 6)]")
    line = start_program(place, *shell("$run; echo finished", grows), memory_limit=200 << 20)
    stop(place, line)
    may_end(place)
    record = line.record()
    assert (record["signal"], record["child_oom"]) == (signal.SIGTERM, 1)


def test_users_shell_does_not_extend_the_grace_time(place: Place) -> None:
    line = start_program(place, PYTHON, "-c", IGNORES.replace("SIG_IGN", "SIG_DFL"))
    opened = Line(connect(str(place.slot)))
    command = "trap '' TERM HUP; echo up > up; while :; do sleep 0.1; done"
    opened.order(o="shell", tty=False, command=command)
    streams: list[int] = []
    while not streams:  # Greeting messages come first.
        _, streams, *_ = socket.recv_fds(opened.socket, 4096, 1)
    until = time.monotonic() + WAIT_TIMEOUT
    while not (place.slot / protocol.FILES / "work" / "up").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    line.order(o="stop", grace=GRACE)
    assert line.record()["signal"] == signal.SIGTERM
    assert not grace_note(place)
    os.close(streams[0])


def test_shim_killed_during_the_grace_time_leaves_no_processes(place: Place) -> None:
    line = start_program(place, *PARENTS["shell"])
    below = Path(f"/proc/{place.program()}/task/{place.program()}/children").read_text().split()
    stop(place, line)
    os.kill(place.journal()["shim"], signal.SIGKILL)
    until = time.monotonic() + WAIT_TIMEOUT
    while any(Path(f"/proc/{process}").exists() for process in below):
        assert time.monotonic() < until
        time.sleep(0.01)
