"""Ending an incarnation that does not answer (spec/invariants#one-incarnation: a replica never has
two live incarnations)."""

import contextlib
import itertools
import os
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.commands import running
from tests.contract.replica.conftest import PYTHON, Place
from tests.e2e.processes import commands
from trainshed.replica import protocol
from trainshed.replica.supervisor import journal

DAEMON = f"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    os.execv({PYTHON!r}, [{PYTHON!r}, '-c', 'import time; print("up"); time.sleep(60)', sys.argv[1]])
time.sleep(60)
"""


@pytest.mark.parametrize("frozen", [True, False])
def test_silent_incarnation_is_killed_and_recorded(place: Place, frozen: bool) -> None:
    mark = f"mark-{place.slot}"
    line = place.python(DAEMON, argv=[PYTHON, "-c", DAEMON, mark])
    place.up(line)
    assert len(commands(mark)) == 2
    if frozen:
        os.kill(place.journal()["shim"], signal.SIGSTOP)
    assert journal.expel(str(place.slot), 1, "its shim did not answer")
    assert commands(mark) == []
    entries = journal.Entries(str(place.slot))
    assert entries.record(1) == journal.lost_record("its shim did not answer")
    assert journal.expel(str(place.slot), 1, "again"), "to be repeated without harm"
    assert journal.Entries(str(place.slot)).record(1) == entries.record(1)
    assert place.run("echo", "next").record()["exit_code"] == 0


def test_process_that_reuses_the_process_id_of_a_shim_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process IDs are reused, so an ID alone is no identity. After a reboot, another process may
    have the same start tick."""
    # Time is simulated: a slow process checks once before it gives up.
    monkeypatch.setattr(journal, "time", Mock(monotonic=itertools.count().__next__))
    monkeypatch.setattr(journal, "_LOCK_TIMEOUT", 1)
    lock = journal.try_lock(str(tmp_path))
    with running("sleep", "60") as stranger, contextlib.ExitStack() as at_end:
        at_end.callback(journal.release, lock)
        start = protocol.process_start(stranger.pid)
        assert start >> 64, "which boot it is"
        for since, status in ((0, None), (1, None), (start ^ 1 << 64, None), (start, -9)):
            entry = {"starting": 1, "shim": stranger.pid, "shim_since": since}
            journal.append(lock, entry)
            assert not journal.expel(str(tmp_path), 1, "held by this test")
            assert (stranger.wait(60) if status else stranger.poll()) == status
