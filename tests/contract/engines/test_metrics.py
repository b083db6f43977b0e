"""Metrics reported by trials reach the store's reader, even if the service, the shim or the program
is killed (spec/tuning#measurements)."""

import signal

from tests.contract.engines.conftest import PRIMARY, PYTHON, EngineHarness
from tests.waiting import until
from trainshed.core.launch import METRIC_FILE
from trainshed.core.lifecycle.replica_events import ReplicaExited
from trainshed.core.names import JobUid
from trainshed.engines.port import MetricsWritten
from trainshed.engines.streams import FileStreams
from trainshed.store.logs.metrics import read_metrics

ENVIRON = ((METRIC_FILE, "/var/hypertune/output.metrics"),)
REPORT = """
import json, os, signal, sys, time
def report(step, value):
    line = {"timestamp": time.time(), "trial": "1", "global_step": str(step), "checkpoint_path": ""}
    line["acc"] = str(value)
    with open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "w") as file: file.write(json.dumps(line) + "\\n")
"""


async def trial(harness: EngineHarness, program: str) -> JobUid:
    """Start one replica of a trial."""
    argv = (PYTHON, "-u", "-c", REPORT + program)
    return await harness.run(*argv, environ=ENVIRON, watch_metrics=True)


def read_measurements(harness: EngineHarness, uid: JobUid) -> list[tuple[int, float | None]]:
    measurements = read_metrics(FileStreams(harness.data / "logs"), uid)
    return [(measurement.step, measurement.value("acc")) for measurement in measurements]


def has_metrics_event(harness: EngineHarness, uid: JobUid) -> bool:
    return MetricsWritten(uid, 1, PRIMARY) in harness.events


async def test_last_metrics_are_readable_when_the_replicas_end_is_reported(harness: EngineHarness) -> None:
    """spec/invariants#last-lines-first."""
    uid = await trial(harness, "report(1, 0.25); report(2, 0.5); os.kill(os.getpid(), 9)")
    end = await harness.exit(uid)
    assert end.exit.signal == signal.SIGKILL
    assert read_measurements(harness, uid)[-1] == (2, 0.5)
    kinds = [type(e) for e in harness.events_of(uid)]
    assert kinds[-1] is ReplicaExited
    assert MetricsWritten in kinds


async def test_metrics_are_recorded_while_the_service_is_down(harness: EngineHarness) -> None:
    """spec/invariants#shims. A restarted service is notified of the new measurements."""
    wait = "while not os.path.exists('go'): time.sleep(0.01)"
    uid = await trial(harness, f"{wait}\nreport(1, 0.5); time.sleep(60)")
    await harness.wait_for_start(uid)
    await harness.close()
    (harness.slot(uid) / "files" / "work" / "go").touch()
    await until(lambda: bool(read_measurements(harness, uid)))
    assert not has_metrics_event(harness, uid)
    await harness.restart()
    await harness.until(lambda: has_metrics_event(harness, uid))
    assert read_measurements(harness, uid) == [(1, 0.5)]
