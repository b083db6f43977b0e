"""One replica of a gang: stopped, hit by a fault, restarted in place or on another node
(spec/failures#lost-replicas, spec/operations#drills)."""

import errno
import signal

import pytest

from tests.contract.engines.conftest import PRIMARY, SECOND, House, Run, processes_marked
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local.layout import Layout
from trainshed.engines.port import (
    EngineUnavailable,
    Fault,
    SlotRequest,
)

WORKER = ReplicaId(1, 0)
UP = "echo up; exec sleep 60"


def test_a_restart_in_place_keeps_names_and_files_and_goes_on_in_the_log(house: Run) -> None:
    """spec/failures#lost-replicas: same hostname, index and directory; peers are not touched."""

    async def test(house: House) -> None:
        uid = house.job()
        slots = await house.allocate(uid, [PRIMARY, WORKER])
        await house.engine.launch(
            [
                house.plan(uid, "sh", "-c", "echo 7 > state; pwd; hostname; echo up; sleep 60"),
                house.plan(uid, "sh", "-c", UP, replica=WORKER),
            ]
        )
        await house.line(uid, lambda text: text == "up")
        await house.started(uid, WORKER)
        await house.engine.inject(uid, 1, PRIMARY, 1, Fault.KILL)
        await house.exit(uid)
        assert await house.allocate(uid, [PRIMARY, WORKER]) == slots
        await house.engine.launch(
            [house.plan(uid, "sh", "-c", "pwd; hostname; cat state", incarnation=2)]
        )
        await house.exit(uid, incarnation=2)
        texts = house.texts(uid)
        assert texts[3:5] == texts[:2]
        assert texts[5] == "7"
        assert [line["n"] for line in house.log(uid)] == list(range(6))
        assert [event.replica for event in house.ends(uid)] == [PRIMARY]

    house(test)


def test_a_move_keeps_names_and_log_and_leaves_the_files_behind(house: Run) -> None:
    """spec/failures#maintenance: on another node if its own is gone or draining; same hostname and address,
    same index."""

    async def test(house: House) -> None:
        await house.restart(nodes=2)
        uid = house.job()
        first, second = await house.allocate(uid, [PRIMARY, WORKER], node="local-0")
        await house.engine.launch(
            [
                house.plan(uid, "sh", "-c", "hostname; echo x > file; exit 1"),
                house.plan(uid, "sh", "-c", UP, replica=WORKER),
            ]
        )
        await house.exit(uid)
        await house.started(uid, WORKER)
        move = SlotRequest(PRIMARY, first.hostname, "local-1")
        moved = await house.engine.allocate(uid, 1, [move])
        assert [(slot.replica, slot.node) for slot in moved] == [
            (PRIMARY, "local-1"),
            (WORKER, "local-0"),
        ]
        assert moved[0].hostname == first.hostname
        assert (moved[0].address, moved[0].port, moved[1]) == (first.address, first.port, second)
        await house.restart()
        assert await house.engine.allocate(uid, 1, [move]) == moved
        await house.engine.launch([house.plan(uid, "sh", "-c", "hostname; ls", incarnation=2)])
        assert (await house.exit(uid, incarnation=2)).exit.exit_code == 0
        hostname, again = house.texts(uid)
        assert hostname == again
        work = house.data / "slots" / str(uid) / "1" / str(PRIMARY) / "files" / "work"
        assert not list(work.iterdir())

    house(test)


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
