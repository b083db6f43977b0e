"""Room: the queue, both capacity modes, quotas, spot work (spec/queue#quotas), by real jobs of real clients;
and the failure table's rows for want of room (spec/failures#no-capacity). Nodes of 8 CPUs: each holds two
machines of 4."""

import json
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e import running as services
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
from tests.e2e.stories import Verdict, pools, run, scheduled, story, timeline, verdicts
from tests.failure_entries import toml

NODES, NODE_CPUS, CPUS = 2, 8, 4
MOST = NODES * NODE_CPUS // CPUS
"""Replicas of 4 CPUs that have room at once."""
BACK_OFF = (0.1, 0.1, 0.3)
"""Seconds before each other try at a stock-out."""
WAITS = "import signal; signal.pause()"
JOBS = f"/trainshed/v1/jobs?project={PROJECT}"
DISK_GB = 100
"""What each replica takes of the disk quota if its job says nothing."""


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Strict mode, two nodes, short pauses between tries at a stock-out."""
    data = tmp_path_factory.mktemp("strict")
    config = data / "settings.toml"
    config.write_text(
        f'grace = 1\ncapacity = "strict"\nnodes = {NODES}\nnode_cpus = {NODE_CPUS}\nnode_memory = 256\n'
        'node_accelerators = "NVIDIA_L4=1"\n' + toml("stock_out", back_off=list(BACK_OFF))
    )
    with running(data / "data", "--config", str(config)) as started:
        yield started
    assert not leftovers(data / "data")


@pytest.fixture(autouse=True)
def emptied(strict: Service) -> Iterator[None]:
    """What a test that failed left behind takes no room from the next one."""
    yield
    left = [job for job in strict.call("GET", JOBS)["jobs"] if not job["endTime"]]
    cancel(strict, *(quote(job["name"], safe="") for job in left))


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


def described(service: Service, job_id: str) -> dict[str, Any]:
    return service.call("GET", f"/trainshed/v1/jobs/{job_id}")


def trainshed(service: Service, *args: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """The command line, as a user has it; asserts the exit status."""
    return services.trainshed(*args, data=service.data, status=status)


def quota(service: Service, metric: str) -> dict[str, Any]:
    path = f"/trainshed/v1/quotas?project={PROJECT}&region={REGION}&all=true"
    return next(q for q in service.call("GET", path)["quotas"] if q["metric"] == metric)


def set_quota(service: Service, metric: str, limit: float | None) -> None:
    body: dict[str, Any] = {"project": PROJECT, "region": REGION, "metric": metric}
    wanted = "unlimited" if limit is None else limit
    service.call("POST", "/trainshed/v1/quotas:set", body | {"limit": wanted})


# --- the failure table's rows for want of room ---


def test_stock_out(strict: Service) -> None:
    """spec/failures#no-capacity: three more tries with back-off, then FAILED with code 8. Nothing ran, so
    disableRetries has nothing to forbid."""
    body = scheduled(container_job("print('never')"), disableRetries=True)
    body["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]["machineType"] = "n1-standard-16"
    job_id = submit(strict, body)
    waited = [view["waiting"] for view in strict.watch(job_id) if view.get("waiting")]
    told = story(strict, job_id)
    assert (told.state, told.code) == ("FAILED", 8)
    assert told.message == (
        f"Resources are insufficient in region: {REGION}. "
        "Try a different region or use a different accelerator."
    )
    assert told.verdicts == [
        *(Verdict("stock_out", "job_retries", "", f"{n}/3") for n in (1, 2, 3)),
        Verdict("stock_out", "job_fails", ""),
    ]
    ats = [datetime.fromisoformat(entry["at"]).timestamp() for entry in told.of_kind("verdict")]
    for earlier, later, least in zip(ats, ats[1:], BACK_OFF, strict=False):
        assert later - earlier >= least
    assert "needs 16 CPUs" in told.view["failure"]["reason"]
    assert not told.begun
    assert all(each["reason"] in ("back_off", "stock_out") for each in waited)


# --- the queue ---


def test_a_job_that_waits_says_why_and_what_would_help(strict: Service, tmp_path: Path) -> None:
    """spec/queue#order, spec/operations#why-it-waits, spec/submit#preflight: QUEUED until there is room;
    describe, the command line and the pre-flight say the same."""
    holder = hold(strict, 1)
    job_id = submit(strict, gang(MOST))
    assert strict.call("GET", f"{CUSTOM_JOBS}/{job_id}")["state"] == "JOB_STATE_QUEUED"
    waiting = described(strict, job_id)["waiting"]
    assert waiting["reason"] == "capacity"
    assert waiting["message"] == (
        "needs room for 4 replicas of 4 CPUs and 15 GiB, and there is room for 3 now"
    )
    assert waiting["hint"] == "would start now with at most 2 replicas in workerpool1"
    assert [name.rsplit("/", 1)[1] for name in waiting["blockers"]] == [holder]
    assert waiting["position"] == 1
    shown = trainshed(strict, "jobs", "describe", job_id).stdout
    assert waiting["message"] in shown and waiting["hint"] in shown
    (first,) = [e for e in timeline(strict, job_id) if e["kind"] == "waiting"]
    assert waiting["message"] in first["message"]

    # Backfill: what fits goes first, as the big one's room is not there anyway (spec/queue#order).
    small, large = tmp_path / "small.json", tmp_path / "large.json"
    small.write_text(json.dumps(gang(1)))
    large.write_text(json.dumps(gang(MOST)))
    ours = ("--project", PROJECT, "--region", REGION)
    assert "Would start now" in trainshed(strict, "explain", "-f", str(small), *ours).stdout
    answer = trainshed(strict, "explain", "-f", str(large), *ours, status=3).stdout
    assert "Would wait" in answer and waiting["hint"] in answer
    count = len(strict.call("GET", JOBS)["jobs"])
    backfill = run(strict, "print('small')")
    assert story(strict, backfill).state == "SUCCEEDED"
    assert described(strict, job_id)["state"] == "QUEUED"
    assert len(strict.call("GET", JOBS)["jobs"]) == count + 1

    cancel(strict, holder)
    view = until_running(strict, job_id)
    assert view["waiting"] is None
    cancel(strict, job_id)


def nodes(service: Service) -> list[dict[str, Any]]:
    return service.call("GET", "/trainshed/v1/nodes")["nodes"]


def test_who_must_leave_and_has_nowhere_to_go_waits_and_can_be_cancelled(strict: Service) -> None:
    """spec/failures#maintenance, in strict mode: the other node is full, and what runs there is left
    alone."""
    first, second = hold(strict, 2), hold(strict, 2)
    (node,) = {replica["node"] for replica in described(strict, first)["replicas"]}
    strict.call("POST", f"/trainshed/v1/nodes/{node}:drain", {"reason": "repair"})
    try:
        for view in strict.watch(first):
            if all(replica["state"] == "WAITING" for replica in view["replicas"]):
                break
        waiting = described(strict, first)["waiting"]
        assert waiting["reason"] == "capacity"
        assert f"lost its place on {node}" in waiting["message"]
        assert [name.rsplit("/", 1)[1] for name in waiting["blockers"]] == [second]
        cancel(strict, first)
        assert verdicts(strict, second) == []
    finally:
        strict.call("POST", f"/trainshed/v1/nodes/{node}:undrain", {})
    cancel(strict, second)


def test_queue_quotas_and_preemptions_survive_the_service(data: Path) -> None:
    """spec/invariants#one-incarnation: killed while jobs wait, and in the middle of a preemption; order,
    limits and counts are as before."""
    options = ("--capacity", "strict", "--nodes", str(NODES), "--node-cpus", str(NODE_CPUS))
    options += ("--node-memory", "256")
    service = start(data, *options)
    holder = hold(service, MOST)
    queued = [submit(service, gang(MOST, "pass")) for _ in range(3)]
    set_quota(service, "cpus_n1_e2", MOST * CPUS)
    service.kill()
    service = start(data, *options)
    positions = [described(service, job_id)["waiting"]["position"] for job_id in queued]
    assert positions == [1, 2, 3]
    assert quota(service, "cpus_n1_e2")["limit"] == MOST * CPUS
    cancel(service, holder)
    starts = [story(service, job_id).view["startTime"] for job_id in queued]
    assert starts == sorted(starts)
    spot = hold(service, MOST, strategy="SPOT")
    on_demand = submit(service, gang(MOST))
    service.kill()
    with running(data, *options) as service:
        until_running(service, on_demand)
        cancel(service, on_demand)
        view = until_running(service, spot)
        assert (view["attempt"], view["retries"]) == (2, {"spot_preempted": 1})
        cancel(service, spot)
    assert not leftovers(data)


# --- quotas ---


def test_quotas_hold_jobs_back_until_they_are_raised(strict: Service) -> None:
    """spec/queue#order: per project and region, set by API and command line, at work at once."""
    ours = ("--project", PROJECT, "--region", REGION)
    trainshed(strict, "quotas", "set", "cpus_n1_e2", str(CPUS), *ours)
    holder = hold(strict, 1)
    held_back = submit(strict, gang(1))
    waiting = described(strict, held_back)["waiting"]
    assert waiting["reason"] == "quota"
    assert waiting["message"] == (
        f"needs 4 cpus_n1_e2 in {REGION}, 4 of 4 are used by job {holder}"
    )
    assert quota(strict, "cpus_n1_e2") == {
        "metric": "cpus_n1_e2",
        "user": "",
        "limit": CPUS,
        "used": CPUS,
        "waiting": CPUS,
    }
    assert "cpus_n1_e2" in trainshed(strict, "quotas", "list", *ours).stdout
    # Another project's job and another region's are not concerned.
    others = [
        CUSTOM_JOBS.replace(PROJECT, "other-project"),
        CUSTOM_JOBS.replace(REGION, "europe-west4"),
    ]
    for place in others:
        name = strict.call("POST", place, pools("pass"))["name"]
        assert strict.finish(name.rsplit("/", 1)[1])["state"] == "SUCCEEDED"
    set_quota(strict, "cpus_n1_e2", 2 * CPUS)
    until_running(strict, held_back)
    set_quota(strict, "pd_ssd_gb", 2 * DISK_GB)
    third = submit(strict, gang(1))
    assert "cpus_n1_e2" in described(strict, third)["waiting"]["message"]
    set_quota(strict, "cpus_n1_e2", None)
    assert "pd_ssd_gb" in described(strict, third)["waiting"]["message"]
    # What runs keeps its room, whatever is set; what it gives back is not more than the limit lets others
    # have.
    set_quota(strict, "pd_ssd_gb", DISK_GB)
    assert described(strict, holder)["state"] == "RUNNING"
    cancel(strict, holder)
    assert described(strict, third)["state"] == "QUEUED"
    cancel(strict, held_back)
    until_running(strict, third)
    set_quota(strict, "pd_ssd_gb", None)
    cancel(strict, third)
