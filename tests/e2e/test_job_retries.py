"""What a job may say about its retries, by the official SDK's own arguments (spec/failures#retries)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import Service
from tests.e2e.sdk import pointed_sdk
from tests.e2e.stories import (
    ABORTS,
    PRIMARY,
    WORKER,
    Verdict,
    at,
    make_pipe,
    pools,
    run,
    story,
    user_code,
)

WAITS = "import signal; signal.pause()"


@pytest.fixture(scope="module")
def sdk(service: Service) -> Iterator[Any]:
    """The Vertex SDK, pointed at the service."""
    with pointed_sdk(service, "trainshed") as module:
        yield module


def sdk_job(sdk: Any, body: dict[str, Any], **wishes: bool) -> str:
    """Submit the job's pools by the SDK; returns its id."""
    specs = [
        {
            "machine_spec": {"machine_type": "n1-standard-4"},
            "replica_count": int(pool["replicaCount"]),
            "container_spec": {
                "image_uri": pool["containerSpec"]["imageUri"],
                "command": pool["containerSpec"]["command"],
            },
        }
        for pool in body["jobSpec"]["workerPoolSpecs"]
    ]
    job = sdk.CustomJob(display_name="rows", worker_pool_specs=specs)
    job.submit(**wishes)
    return job.resource_name.rsplit("/", 1)[1]


def test_restart_job_on_worker_restart(service: Service, sdk: Any, gate: Path) -> None:
    """spec/failures#retries: any replica restart becomes a restart of the whole job, by the official SDK's
    own argument."""
    fate = make_pipe(gate.with_name("fate"))
    worker = f"import os\nif open({str(fate)!r}).read():\n    os.kill(os.getpid(), 9)\n"
    body = pools(at(gate), worker + f"open({str(gate)!r}, 'w').close()\n{WAITS}")
    job_id = sdk_job(sdk, body, restart_job_on_worker_restart=True)
    fate.write_text("kill")
    next(view for view in service.watch(job_id) if view["attempt"] == 2)
    fate.write_text("")
    told = story(service, job_id)
    assert told.public["jobSpec"]["scheduling"]["restartJobOnWorkerRestart"] is True
    assert told.state == "SUCCEEDED"
    assert told.verdicts == [Verdict("replica_lost", "job_retries", WORKER, "1/3")]
    assert told.begun[WORKER] == 2
    assert told.view["attempt"] == 2
    assert {entry["details"]["incarnation"] for entry in told.of_kind("replica_started")} == {1}


def test_disable_retries(service: Service, sdk: Any) -> None:
    """spec/failures#retries: forbids job-level retries; a lost replica is restarted in its place all the
    same."""
    crash = sdk_job(sdk, pools(ABORTS), disable_retries=True)
    lost = run(service, "import os; os.kill(os.getpid(), 9)", disableRetries=True)
    told = story(service, crash)
    assert told.public["jobSpec"]["scheduling"]["disableRetries"] is True
    user_code(told, 134)
    assert told.verdicts == [Verdict("transient_exit", "job_fails")]
    assert "the job forbids retries" in told.of_kind("verdict")[0]["message"]
    assert told.begun == {PRIMARY: 1}
    told = story(service, lost)
    user_code(told, 137)
    assert [verdict.effect for verdict in told.verdicts] == ["replica_restarts"] * 5 + ["job_fails"]
    assert told.begun == {PRIMARY: 6}
