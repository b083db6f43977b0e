"""Stopping: the grace time is given, and nothing of a replica is left (spec/lifecycle#cancel;
spec/program#stopping, SIGTERM)."""

import errno
import signal

import pytest

from tests.contract.engines.conftest import SECOND, House, Run, processes_marked
from trainshed.core.names import JobUid
from trainshed.engines.local.layout import Layout
from trainshed.engines.port import (
    EngineUnavailable,
)

DAEMONS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)', %r])
    os._exit(0)
time.sleep(0.3)
print('up')
%s
"""


def test_daemons_die_with_a_stopped_program(house: Run, mark: str) -> None:
    async def test(house: House) -> None:
        uid = await house.python(DAEMONS % (mark, "time.sleep(60)"))
        await house.line(uid, lambda text: text == "up")
        assert processes_marked(mark)
        await house.engine.stop(uid, 1, 0)
        await house.exit(uid)
        assert not processes_marked(mark)

    house(test)


def test_a_stop_that_cannot_be_written_down_ends_what_runs(
    house: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs may be what fills the disk. The caller tries again, until nothing can start any more."""
    refusals = iter([OSError(errno.ENOSPC, "no space left")])
    mark_stopped = Layout.mark_stopped

    def refusing(self: Layout, job_uid: JobUid, attempt: int) -> None:
        for refusal in refusals:
            raise refusal
        mark_stopped(self, job_uid, attempt)

    monkeypatch.setattr(Layout, "mark_stopped", refusing)

    async def test(house: House) -> None:
        uid = await house.run("sleep", "60")
        await house.started(uid)
        with pytest.raises(EngineUnavailable, match="make room"):
            await house.engine.stop(uid, 1, SECOND)
        assert (await house.exit(uid)).exit.signal == signal.SIGTERM
        await house.engine.stop(uid, 1, SECOND)

    house(test)
