"""The stall watchdog with real programs: which programs it ends, and what it writes to their logs."""

import signal

import pytest

from tests.contract.replica.conftest import Place

AFTER = 3.4

HANGS = """
import subprocess, sys, threading
def train_step(): threading.Event().wait()
def child_waits(): subprocess.Popen([sys.executable, '-c', '''
import threading
def load_batch(): threading.Event().wait()
load_batch()
''']).wait()
print('up')
threading.Thread(target=child_waits).start()
train_step()
"""
QUIET_BUT_BUSY = """
import time
print('up')
end = time.monotonic() + 5
while time.monotonic() < end: sum(range(300_000)); time.sleep(0.05)
"""
QUIET_BUT_WRITING = """
import time
print('up')
with open('data', 'ab', buffering=0) as file:
    for _ in range(50): file.write(b'x'); time.sleep(0.1)
"""
NO_STACKS = "echo up; exec sleep 60"


def test_hanging_program_is_ended_with_its_stacks_in_the_log(place: Place) -> None:
    record = place.python(HANGS, stall_after=AFTER).record()
    assert record["stalled"]
    assert record["signal"] in (signal.SIGABRT, signal.SIGKILL)
    assert (record["stopped"], record["oom"]) == (False, False)
    texts = place.texts()
    assert texts[0] == "up"
    assert f"for {AFTER:g} seconds" in texts[1]
    for function in ("load_batch", "train_step"):
        assert any(function in text for text in texts), texts
    assert any("child_waits" in text for text in texts), "\n".join(texts)


@pytest.mark.parametrize(
    ("program", "after"), [(QUIET_BUT_BUSY, AFTER), (QUIET_BUT_WRITING, AFTER), ("print('up')", 1e9)]
)
def test_quiet_but_active_program_is_not_ended(place: Place, program: str, after: float) -> None:
    record = place.python(program, stall_after=after).record()
    assert (record["exit_code"], record["stalled"]) == (0, False), place.texts()


def test_hanging_program_without_python_is_ended(place: Place) -> None:
    record = place.run("sh", "-c", NO_STACKS, stall_after=0.5).record()
    assert (record["signal"], record["stalled"]) == (signal.SIGKILL, True)
    assert "No process of this replica" in place.texts()[-1]
