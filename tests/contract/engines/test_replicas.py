"""One replica of a gang: stopped, hit by a fault, restarted in place or on another node
(spec/failures#lost-replicas, spec/operations#drills)."""

import errno
import signal

import pytest

from tests.contract.engines.conftest import SECOND, House
from trainshed.core.names import JobUid
from trainshed.engines.local.layout import Layout
from trainshed.engines.port import EngineUnavailable


async def test_a_stop_that_cannot_be_written_down_ends_what_runs(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs may be what fills the disk. The caller tries again, until nothing can start any more."""
    refusals = iter([OSError(errno.ENOSPC, "no space left")])
    mark_stopped = Layout.mark_stopped

    def refusing(self: Layout, job_uid: JobUid, attempt: int) -> None:
        for refusal in refusals:
            raise refusal
        mark_stopped(self, job_uid, attempt)

    monkeypatch.setattr(Layout, "mark_stopped", refusing)
    uid = await house.run("sleep", "60")
    await house.started(uid)
    with pytest.raises(EngineUnavailable, match="make room"):
        await house.engine.stop(uid, 1, SECOND)
    assert (await house.exit(uid)).exit.signal == signal.SIGTERM
    await house.engine.stop(uid, 1, SECOND)
