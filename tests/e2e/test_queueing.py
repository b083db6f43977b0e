"""Room: the failure table's rows for want of it (spec/failures#no-capacity), and what of the queue, quotas
and spot work survives the service (spec/queue#quotas). Nodes of 8 CPUs: each holds two machines of 4."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import leftovers
from tests.e2e.running import (
    CUSTOM_JOBS,
    PROJECT,
    REGION,
    Service,
    container_job,
    running,
    start,
    submit,
)
from tests.e2e.stories import Verdict, pools, scheduled, story_of
from tests.failure_entries import toml

NODES, NODE_CPUS, CPUS = 2, 8, 4
MOST = NODES * NODE_CPUS // CPUS
"""Replicas of 4 CPUs that have room at once."""
STRICT = (
    *("--capacity", "strict", "--nodes", str(NODES), "--node-cpus", str(NODE_CPUS)),
    *("--node-memory", "256"),
)
BACK_OFF = (0.1, 0.1, 0.3)
"""Seconds before each other try at a stock-out."""
WAITS = "import signal; signal.pause()"
TASK = "gs://google-cloud-aiplatform/schema/trainingjob/definition/custom_task_1.0.0.yaml"


def gang(replicas: int, script: str = WAITS) -> dict[str, Any]:
    """A job of that many replicas of 4 CPUs, which waits for ever if not told otherwise."""
    return pools(script, *([(WAITS, replicas - 1)] if replicas > 1 else []))


def until_running(service: Service, job_id: str) -> dict[str, Any]:
    return next(view for view in service.watch(job_id) if view["state"] == "RUNNING")


def hold(service: Service, replicas: int, **scheduling: Any) -> str:
    """A job that has so much room, and keeps it."""
    job_id = submit(service, scheduled(gang(replicas), **scheduling))
    until_running(service, job_id)
    return job_id


def cancel(service: Service, *job_ids: str) -> None:
    """Cancel them all, and wait until they have given their room back."""
    for job_id in job_ids:
        service.call("POST", f"/trainshed/v1/jobs/{job_id}:cancel", {})
    for job_id in job_ids:
        assert service.finish(job_id)["state"] == "CANCELLED"


def test_stock_out(data: Path, tmp_path: Path) -> None:
    """spec/failures#no-capacity: three more tries with back-off, then FAILED with code 8. Nothing ran, so
    disableRetries has nothing to forbid."""
    config = tmp_path / "settings.toml"
    config.write_text(toml("stock_out", back_off=list(BACK_OFF)))
    body = scheduled(container_job("print('never')"), disableRetries=True)
    body["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]["machineType"] = "n1-standard-16"
    with running(data, *STRICT, "--config", str(config)) as strict:
        job_id = submit(strict, body)
        waited = [view["waiting"] for view in strict.watch(job_id) if view.get("waiting")]
        story = story_of(strict, job_id)
    assert not leftovers(data)
    assert (story.state, story.code) == ("FAILED", 8)
    assert story.message == (
        f"Resources are insufficient in region: {REGION}. "
        "Try a different region or use a different accelerator."
    )
    assert story.verdicts == [
        *(Verdict("stock_out", "job_retries", "", f"{n}/3") for n in (1, 2, 3)),
        Verdict("stock_out", "job_fails", ""),
    ]
    ats = [datetime.fromisoformat(entry["at"]).timestamp() for entry in story.of_kind("verdict")]
    for earlier, later, least in zip(ats, ats[1:], BACK_OFF, strict=False):
        assert later - earlier >= least
    assert "needs 16 CPUs" in story.view["failure"]["reason"]
    assert not story.begun
    assert all(wait["reason"] in ("back_off", "stock_out") for wait in waited)


def test_of_twenty_submitted_at_once_no_more_wait_than_may(data: Path) -> None:
    """spec/queue#quotas: pipelines and tuning jobs count from the moment in which they are taken."""
    spec = gang(1)["jobSpec"]
    measured = [{"metricId": "loss", "goal": "MINIMIZE"}]
    values = [{"parameterId": "x", "doubleValueSpec": {"minValue": 0, "maxValue": 1}}]
    bodies = {
        "trainingPipelines": {"trainingTaskDefinition": TASK, "trainingTaskInputs": spec},
        "hyperparameterTuningJobs": {
            "studySpec": {"metrics": measured, "parameters": values},
            "trialJobSpec": spec,
            "maxTrialCount": 1,
            "parallelTrialCount": 1,
        },
    }
    with running(data, *STRICT) as service:
        hold(service, MOST)
        limit = {"project": PROJECT, "region": REGION, "metric": "queued_jobs"}
        for most, (collection, body) in zip((3, 6), bodies.items(), strict=True):
            service.call("POST", "/trainshed/v1/quotas:set", limit | {"limit": most})
            path = CUSTOM_JOBS.replace("customJobs", collection)

            def status(_: int, path: str = path, body: Any = body) -> int:
                return service.ask("POST", path, {"displayName": "many"} | body).status

            with ThreadPoolExecutor(20) as threads:
                assert Counter(threads.map(status, range(20))) == {200: 3, 429: 17}


def test_queue_quotas_and_preemptions_survive_the_service(data: Path) -> None:
    """spec/invariants#one-incarnation: killed while jobs wait, and in the middle of a preemption; order,
    limits and counts are as before."""
    service = start(data, *STRICT)
    holder = hold(service, MOST)
    queued = [submit(service, gang(MOST, "pass")) for _ in range(3)]
    of = {"project": PROJECT, "region": REGION, "metric": "cpus_n1_e2"}
    service.call("POST", "/trainshed/v1/quotas:set", of | {"limit": MOST * CPUS})
    service.kill()
    service = start(data, *STRICT)
    views = [service.call("GET", f"/trainshed/v1/jobs/{job_id}") for job_id in queued]
    assert [view["waiting"]["position"] for view in views] == [1, 2, 3]
    quotas = service.call("GET", f"/trainshed/v1/quotas?project={PROJECT}&region={REGION}")[
        "quotas"
    ]
    assert MOST * CPUS in [quota["limit"] for quota in quotas if quota["metric"] == "cpus_n1_e2"]
    cancel(service, holder)
    starts = [story_of(service, job_id).view["startTime"] for job_id in queued]
    assert starts == sorted(starts)
    spot = hold(service, MOST, strategy="SPOT")
    on_demand = submit(service, gang(MOST))
    service.kill()
    with running(data, *STRICT) as service:
        until_running(service, on_demand)
        cancel(service, on_demand)
        view = until_running(service, spot)
        assert (view["attempt"], view["retries"]) == (2, {"preempted": 1})
        cancel(service, spot)
        (row,) = service.call("GET", f"/trainshed/v1/usage?project={PROJECT}")["rows"]
        worked = 3600 * row["cpuHours"] * row["cpuShare"]
        assert worked == pytest.approx(recorded(data), rel=0.01), "docs/team.md: as replicas did"
    assert not leftovers(data)


def recorded(data: Path) -> float:
    """Seconds for which processors were at work, as the replicas themselves have written."""
    files = data.glob("logs/*/*/*/usage.jsonl")
    return sum(json.loads(file.read_text().splitlines()[-1])["cpu"] for file in files)
