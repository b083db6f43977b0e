"""Notes of reducers and workers reach the service, even if the service, the shim or the program is
killed (spec/reduction#reports)."""

import os
import signal

from tests.contract.engines.conftest import PRIMARY, PYTHON, EngineHarness
from tests.waiting import until
from trainshed.core.environment import REDUCTION_REPORT
from trainshed.core.launch import REDUCTION_REPORT_FILE, ReductionPart
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost, ReplicaNoted
from trainshed.core.names import JobUid
from trainshed.replica.supervisor import journal

REPORT = """
import json, os, time
path = os.environ["TRAINSHED_REDUCTION_REPORT_FILE"]
def report(*notes):
    with open(path + ".own", "w") as file:
        json.dump({"notes": [{"id": n, "severity": "INFO", "text": n} for n in notes], "metrics": {}}, file)
    os.replace(path + ".own", path)
"""
ENVIRON = ((REDUCTION_REPORT_FILE, REDUCTION_REPORT),)
WATCH = ReductionPart(reducers=4)


async def reducing(harness: EngineHarness, program: str) -> JobUid:
    argv = (PYTHON, "-u", "-c", REPORT + program)
    return await harness.run(*argv, environ=ENVIRON, reduction=WATCH)


def received_notes(harness: EngineHarness, uid: JobUid) -> list[tuple[int, int, str]]:
    return [
        (event.incarnation, event.number, event.name)
        for event in harness.events_of(uid)
        if isinstance(event, ReplicaNoted)
    ]


async def test_notes_of_an_ended_replica_reach_the_restarted_service(harness: EngineHarness) -> None:
    """The notes arrive before the replica's end, whether its program ended or its shim was killed.
    They keep the numbers by which the job detects repeated notes."""
    go = "while not os.path.exists('go'): time.sleep(0.01)"
    ends = await reducing(harness, f"{go}\nreport('a')")
    dies = await reducing(harness, f"{go}\nreport('a'); time.sleep(60)")
    for uid in (ends, dies):
        await harness.wait_for_start(uid)
    await harness.close()
    slots = [harness.slot(uid) for uid in (ends, dies)]
    for slot in slots:
        (slot / "files" / "work" / "go").touch()
    await until(lambda: all(journal.Entries(str(slot)).notes(1) for slot in slots))
    os.kill(harness.shim(dies)["shim"], signal.SIGKILL)
    await harness.restart()
    assert isinstance(await harness.end(ends), ReplicaExited)
    cause = "the replica's shim was killed; its program died with it"
    assert await harness.end(dies) == ReplicaLost(1, PRIMARY, 1, cause)
    for uid, kind in ((ends, ReplicaExited), (dies, ReplicaLost)):
        assert received_notes(harness, uid) == [(1, 1, "a")]
        kinds = [type(e) for e in harness.events_of(uid)]
        assert kinds.index(ReplicaNoted) < kinds.index(kind)
