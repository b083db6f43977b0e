"""Nodes, quotas and preflight over a real store. The tests set the available capacity
(`fake_capacity.FakeCapacity`)."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.api.api_service import LOCATION, ApiService
from tests.contract.api.fake_capacity import node
from tests.contract.api.violations import violations
from tests.contract.store.store_samples import SECOND, make_job
from tests.people import add_user
from tests.unit.specs_requests import REFUSED_IMAGE, container, custom_job, ml_job, pool
from trainshed.core.capacity import Preflight, QuotaKey, Waiting, WaitReason
from trainshed.core.failure.evidence import Cause
from trainshed.core.lifecycle.events import JobAdmitted, PreparationFailed
from trainshed.core.lifecycle.records import Actor, Replica
from trainshed.core.lifecycle.states import AttemptState
from trainshed.core.names import JobUid, ReplicaId, project_number
from trainshed.core.units import text_micros
from trainshed.core.usage import Use
from trainshed.store.port import Commit, NewWork, NodeDrain

NODES, QUOTAS, EXPLAIN, STATUS = (
    f"/trainshed/v1/{name}" for name in ("nodes", "quotas", "jobs:explain", "status")
)
PLACE = {"project": "p1", "region": "us-central1"}
ANA, BO = "ana@corp.example", "bo@corp.example"
WAITING = Waiting(
    WaitReason.QUOTA,
    "needs 8 CPUs, 4 of 8 are used by job 17",
    "would start now with at most 4 replicas",
    ("projects/p1/jobs/a",),
)


async def test_node_list_shows_usage_and_the_replicas_on_each_node(service: ApiService) -> None:
    name = "projects/p1/locations/us-central1/customJobs/7"
    service.capacity.known = (node("node-1", f"{name} workerpool0-0"),)
    (shown,) = (await service.result("GET", NODES))["nodes"]
    assert shown == {
        "name": "node-1",
        "condition": "READY",
        "cause": "",
        "vcpus": 8,
        "usedVcpus": 2,
        "memoryBytes": 32 * 2**30,
        "usedMemoryBytes": 4 * 2**30,
        "othersVcpus": 0,
        "othersMemoryBytes": 0,
        "accelerators": [{"type": "NVIDIA_TESLA_T4", "count": 1, "used": 0, "usedByOthers": 0}],
        "replicas": [{"job": name, "replica": "workerpool0-0"}],
    }
    assert (await service.result("GET", STATUS))["accelerators"] == ["NVIDIA_TESLA_T4"]


async def test_node_is_drained_and_undrained(service: ApiService) -> None:
    """spec/failures#maintenance: a node can be put under maintenance at any time."""
    drained = await service.result("POST", f"{NODES}/node-2:drain", {"reason": "new disk"})
    assert (drained["condition"], drained["cause"]) == ("DRAINED", "new disk")
    assert await service.store.reader.drained_nodes() == (NodeDrain("node-2", service.clock, "new disk"),)
    assert (await service.call("POST", f"{NODES}/node-2:drain")).status == 200, "again is fine"
    assert (await service.result("POST", f"{NODES}/node-2:undrain"))["condition"] == "READY"
    assert await service.store.reader.drained_nodes() == ()
    assert (await service.call("POST", f"{NODES}/node-2:undrain")).status == 200, "again is fine"
    assert service.capacity.readmitted == ["node-2", "node-2"]


@pytest.mark.parametrize("verb", ["drain", "undrain"])
async def test_unknown_node_is_rejected_with_a_list_of_nodes(service: ApiService, verb: str) -> None:
    answer = await service.call("POST", f"{NODES}/node-3:{verb}")
    assert answer.status == 404
    assert "Use one of: node-1, node-2." in answer.error["message"]
    assert await service.store.reader.drained_nodes() == ()


async def test_body_with_unknown_fields_or_wrong_types_is_rejected(service: ApiService) -> None:
    path = f"{NODES}/node-1:drain"
    faults = violations(await service.call("POST", path, {"reason": 7, "reson": "x"}))
    assert faults["reason"] == "Expected `str`, got `int`."
    assert "Did you mean reason?" in faults["reson"]
    for body in (b"{", b"[]"):
        assert (await service.call("POST", path, body)).status == 400
    assert (await service.call("POST", path, b" " * 11_000_000)).status == 400
    assert await service.store.reader.drained_nodes() == ()


async def test_quotas_are_set_listed_and_cleared(service: ApiService) -> None:
    """spec/queue#quotas: quotas per project and region."""
    key = QuotaKey("p1", "us-central1", "cpus_n1_e2")
    service.capacity.used = {key: 12.0}
    quota = {**PLACE, "metric": "cpus_n1_e2"}
    view = await service.result("POST", f"{QUOTAS}:set", {**quota, "limit": 20})
    assert view == {**PLACE, **quota, "user": "", "limit": 20, "used": 12, "waiting": 0}
    assert await service.store.reader.quotas() == ((key, 20.0),)
    path = f"{QUOTAS}?project=p1&region=us-central1"
    (seen,) = (await service.result("GET", path))["quotas"]
    assert (seen["metric"], seen["limit"], seen["used"]) == ("cpus_n1_e2", 20, 12)
    cleared = await service.result("POST", f"{QUOTAS}:set", {**quota, "limit": "unlimited"})
    assert cleared["limit"] == "unlimited"
    assert await service.store.reader.quotas() == ()
    # A quota of a user, in all regions.
    quota = {**PLACE, "metric": "jobs", "user": ANA, "limit": 2}
    view = await service.result("POST", f"{QUOTAS}:set", quota)
    assert (view["user"], view["limit"], view["region"]) == (ANA, 2, "global")
    await service.call("POST", f"{QUOTAS}:set", {**quota, "user": "each", "limit": 1})
    await service.call("POST", f"{QUOTAS}:set", {**quota, "user": "", "limit": 9})
    listed = (await service.result("GET", f"{QUOTAS}?project=p1&region=us-east1"))["quotas"]
    assert [(row["user"], row["limit"]) for row in listed] == [("", 9), (ANA, 2), ("each", 1)]


OWNER_OF_PROJECT = "lead@corp.example"


async def set_limit(service: ApiService, token: str, metric: str, limit: object, user: str = "") -> Any:
    body = {"project": "p1", "metric": metric, "limit": limit, "user": user}
    return await service.call("POST", f"{QUOTAS}:set", body, token=token)


@pytest.mark.parametrize("metric", ["jobs", "cost_per_month_hard", "highest_priority"])
async def test_project_owner_cannot_raise_a_service_owners_limit(service: ApiService, metric: str) -> None:
    """spec/queue#quotas: lowering a limit does not allow to raise it later."""
    lead = add_user(service.tokens, OWNER_OF_PROJECT, project="p1")
    person = "" if metric != "highest_priority" else ANA
    await set_limit(service, "", metric, 5, person)
    for looser in (6, "unlimited"):
        refused = await set_limit(service, lead, metric, looser, person)
        assert refused.status == 403
        assert f"An owner of the service limits {metric} to 5" in refused.error["message"]
    assert (await set_limit(service, lead, metric, 3, person)).json["limit"] == 3
    assert (await set_limit(service, lead, metric, "unlimited", person)).status == 403
    assert (await set_limit(service, lead, metric, 5, person)).json["limit"] == 5
    assert (await set_limit(service, "", metric, "unlimited", person)).status == 200
    assert (await set_limit(service, lead, metric, 9, person)).json["limit"] == 9
    assert (await set_limit(service, lead, metric, "unlimited", person)).status == 200


async def test_project_owner_cannot_exceed_the_service_limit_per_user(service: ApiService) -> None:
    lead = add_user(service.tokens, OWNER_OF_PROJECT, project="p1")
    assert (await set_limit(service, lead, "jobs", 7, "bo@corp.example")).json["limit"] == 7
    await set_limit(service, "", "jobs", 2, "each")
    limits = {key.person: limit for key, limit in await service.store.reader.quotas()}
    assert limits == {"each": 2, "bo@corp.example": 2}, "the former limit is too large now"
    assert (await set_limit(service, lead, "jobs", 3, ANA)).status == 403
    assert (await set_limit(service, lead, "jobs", 1, ANA)).status == 200
    assert (await set_limit(service, lead, "jobs", "unlimited", ANA)).status == 200
    assert (await set_limit(service, lead, "jobs", 50)).status == 200, "the project has no limit"
    await set_limit(service, "", "jobs", 9, ANA)
    assert dict(await service.store.reader.quotas())[QuotaKey("p1", "global", "jobs", ANA)] == 9
    await set_limit(service, "", "share", 2, ANA)
    assert (await set_limit(service, lead, "share", 1, ANA)).status == 403, "no direction is looser"


async def test_list_of_all_quotas_contains_every_metric(service: ApiService) -> None:
    path = f"{QUOTAS}?project=p1&region=us-central1"
    assert (await service.result("GET", path))["quotas"] == []
    metrics = [quota["metric"] for quota in (await service.result("GET", f"{path}&all"))["quotas"]]
    assert {"cpus_n1_e2", "NVIDIA_TESLA_T4", "pd_ssd_gb"} <= set(metrics)
    assert metrics == sorted(metrics)


@pytest.mark.parametrize(
    ("change", "field", "text"),
    [
        ({"metric": "cpus_n1"}, "metric", "Did you mean cpus_n1_e2"),
        ({"region": "us-central"}, "region", "Did you mean us-central1"),
        ({"project": "-p"}, "project", "Did you mean p?"),
        ({"user": "everybody"}, "user", "not an e-mail address. Or 'each'"),
        ({"limit": -1}, "limit", "from 0 to 1e+12"),
        ({"limit": True}, "limit", "got `bool`"),
        ({"limit": 1e300}, "limit", "from 0 to"),
        ({"limit": None}, "limit", "from 0 to"),
        ({"value": 4}, "value", "Unknown field"),
    ],
)
async def test_invalid_quota_error_names_the_wrong_field(
    service: ApiService, change: dict[str, Any], field: str, text: str
) -> None:
    body = {**PLACE, "metric": "cpus_n1_e2", "limit": 4, **change}
    faults = violations(await service.call("POST", f"{QUOTAS}:set", body))
    assert list(faults) == [field]
    assert text in faults[field]
    assert await service.store.reader.quotas() == ()


async def test_only_service_owner_sets_share_and_priority_of_a_project(service: ApiService) -> None:
    """An owner of a project can set these metrics only for its users."""
    ana = add_user(service.tokens, ANA, project="p1")
    for metric, user, status in (
        *(("share", "", 403), ("share", "each", 200), ("share", BO, 200), ("jobs", "", 200)),
        *(("highest_priority", "", 403), ("highest_priority", "each", 200)),
    ):
        quota = {**PLACE, "metric": metric, "user": user, "limit": 9}
        assert (await service.call("POST", f"{QUOTAS}:set", quota, token=ana)).status == status
        assert (await service.call("POST", f"{QUOTAS}:set", quota)).status == 200


async def test_explain_method_returns_placements_and_stores_no_job(service: ApiService) -> None:
    """spec/submit#preflight."""
    service.capacity.answer = Preflight((("workerpool0-0", "node-1"),), position=1)
    gpu = {"acceleratorType": "NVIDIA_TESLA_P4", "acceleratorCount": 1}
    wanted = custom_job(pool(machineSpec={"machineType": "n1-standard-4", **gpu}))
    body = {"api": "vertex", "project": "p1", "location": "us-central1", "job": wanted}
    view = await service.result("POST", EXPLAIN, body)
    assert (view["admitted"], view["waiting"], view["position"]) == (True, None, 1)
    assert view["places"] == [{"replica": "workerpool0-0", "task": "workerpool0-0", "node": "node-1"}]
    text = "No node has NVIDIA_TESLA_P4. The job would receive GPUs of another type."
    assert text in view["notices"]
    (machine,) = view["machines"]
    assert machine["memoryBytes"] > machine["memoryLimitBytes"] > 0
    assert (machine["pool"], machine["machineType"]) == ("workerpool0", "n1-standard-4")
    assert (machine["replicas"], machine["vcpus"], machine["diskGb"]) == (1, 4, 100)
    assert machine["accelerators"] == {"type": "NVIDIA_TESLA_P4", "count": 1}
    assert service.woken == []
    assert (await service.result("GET", "/trainshed/v1/jobs?project=-"))["jobs"] == []


async def test_explain_method_returns_the_reason_why_a_job_would_wait(service: ApiService) -> None:
    service.capacity.answer = Preflight(waiting=WAITING, position=3)
    body = {"api": "ml", "project": "p1", "job": ml_job()}
    view = await service.result("POST", EXPLAIN, body)
    assert not view["admitted"]
    assert view["waiting"] == {
        "reason": "quota",
        "message": WAITING.message,
        "hint": WAITING.hint,
        "blockers": ["projects/p1/jobs/a"],
        "expectedTime": "",
        "position": 3,
    }
    assert any("asked for '2.6'" in notice for notice in view["notices"])
    assert [machine["pool"] for machine in view["machines"]] == ["master"]
    assert service.capacity.asked[0].spec.region == "us-central1"


@pytest.mark.parametrize(
    ("api", "job"),
    [
        ("vertex", custom_job(container(imageUri=REFUSED_IMAGE), pool(replicaCount="-1", odd=1))),
        ("vertex", custom_job() | {"labels": {"trainshed-notify": "nobody"}}),
        ("ml", ml_job(job_id="1", scaleTier="HUGE", jobDir="gs://none/x")),
    ],
)
async def test_explain_method_rejects_the_same_jobs_as_the_create_method(
    service: ApiService, api: str, job: dict[str, Any]
) -> None:
    """spec/submit#preflight, spec/submit#refusals: both report the same violations, all at once.
    Nothing is stored, and nothing is uploaded for a job with an unavailable order."""
    body = {"api": api, "project": "p1", "location": "us-central1", "job": job}
    explained = violations(await service.call("POST", EXPLAIN, body))
    path = f"{LOCATION}/customJobs" if api == "vertex" else "/v1/projects/p1/jobs"
    assert explained == violations(await service.call("POST", path, job))


async def test_explain_request_without_a_job_is_rejected_with_the_missing_fields(service: ApiService) -> None:
    faults = violations(await service.call("POST", EXPLAIN, {"api": "vertx", "jobs": {}}))
    assert set(faults) == {"api", "job", "jobs"}
    assert "Did you mean vertex?" in faults["api"]


async def test_waiting_job_shows_its_reason_and_queue_position(service: ApiService) -> None:
    """spec/queue#order: a waiting job shows why it waits and what would allow it to start."""
    await service.call("POST", "/v1/projects/p1/jobs", ml_job())
    service.capacity.reasons[JobUid(1000)] = WAITING
    service.capacity.positions[JobUid(1000)] = 4
    view = await service.result("GET", "/trainshed/v1/jobs/1000")
    assert view["waits"] == [WAITING.message, WAITING.hint]
    assert (view["waiting"]["reason"], view["waiting"]["position"]) == ("quota", 4)
    assert view["resource"]["jobPosition"] == "4"
    # The public resource contains it too, in get and in list (facts/resources#ml): a string, like
    # every int64.
    assert (await service.result("GET", "/v1/projects/p1/jobs/job_1"))["jobPosition"] == "4"
    (listed,) = (await service.result("GET", "/v1/projects/p1/jobs"))["jobs"]
    assert listed["jobPosition"] == "4"


async def test_retried_job_shows_the_cause_of_its_retry(service: ApiService) -> None:
    """spec/operations#why-it-waits: the delay before the retry does not explain why the job is retried."""
    await service.call("POST", "/v1/projects/p1/jobs", ml_job())
    failed = PreparationFailed(1, "the registry does not answer", cause=Cause.SERVICE)
    await service.apply_events("projects/p1/jobs/job_1", JobAdmitted(()), failed)
    pause = Waiting(WaitReason.BACK_OFF, "retries in 2 s")
    service.capacity.reasons[JobUid(1000)] = pause
    view = await service.result("GET", "/trainshed/v1/jobs/1000")
    assert view["waits"][0] == pause.message
    assert "the registry does not answer" in view["waits"][1] == view["waiting"]["hint"]


# --- quotas of users, and usage ---

USAGE = "/trainshed/v1/usage"


async def record_usage(service: ApiService) -> None:
    """Store one finished hour of Ana's on two GPUs, and a running half hour of Bo's."""
    hour = 3600 * SECOND
    epoch = await service.store.ledger.acquire("test")
    made = replace(make_job(1, project_id="p1"), creator=Actor(ANA))
    await service.store.intake.create(NewWork(made))
    live = await service.store.ledger.load(made.uid)
    assert live is not None
    use = Use(
        "p1", ANA, (("team", "x"),), str(made.name), "node-1", (), service.clock - 2 * hour,
        service.clock - hour, "n1-standard-4", "NVIDIA_L4", 1, 4.0, 15 * 10**9, 2, 3.0, 0.5,
    )  # fmt: skip
    await service.store.ledger.commit(epoch, Commit(made, live.generation, uses=(use,)))
    running = replace(
        make_job(2, project_id="p1"), creator=Actor(BO), placed=service.clock - hour,
        began=service.clock - hour // 2, attempt=1, phase=AttemptState.RUNNING,
        replicas=(Replica(ReplicaId(0, 0), node="node-2"),),
    )  # fmt: skip
    service.capacity.held = (running, replace(running, name=replace(running.name, project_id="p2")))


async def test_usage_includes_finished_and_running_jobs(service: ApiService) -> None:
    await record_usage(service)
    report = await service.result("GET", f"{USAGE}?project=p1")
    ana, bo = report["rows"]
    assert (ana["name"], ana["gpuHours"], ana["cpuHours"], ana["gigabyteHours"]) == (ANA, 2, 4, 15)
    assert (ana["cpuShare"], ana["gpuShare"]) == (0.75, 0.25)
    assert bo["cpuShare"] is None, "its replica has recorded nothing yet"
    assert (bo["name"], bo["gpuHours"], bo["cpuHours"], bo["machineHours"]) == (BO, 0, 2, 0.5)
    record = service.log_root / "2/1/workerpool0-0/usage.jsonl"
    record.parent.mkdir(parents=True)
    look = {"at": service.clock, "cpu": 900.0, "memory": 1, "peak": 1, "processes": 1}
    record.write_text(f'{{"started": {service.clock - 1700 * SECOND}}}\n{json.dumps(look)}\n')
    _, bo = (await service.result("GET", f"{USAGE}?project=p1"))["rows"]
    assert bo["cpuShare"] == 900 / 1800 / 4, "of the time for which it holds its place"
    everywhere = (await service.result("GET", f"{USAGE}?project=-&by=project"))["rows"]
    assert [(row["name"], row["cpuHours"]) for row in everywhere] == [("p1", 6), ("p2", 2)]


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("machine", ["n1-standard-4 + NVIDIA_L4", "n1-standard-4"]),
        ("node", ["node-1", "node-2"]),
        ("labels.team", ["x", ""]),
    ],
)
async def test_usage_is_grouped_by_the_requested_key(service: ApiService, by: str, names: list[str]) -> None:
    await record_usage(service)
    rows = (await service.result("GET", f"{USAGE}?project=p1&by={by}"))["rows"]
    assert [row["name"] for row in rows] == names


async def test_usage_is_limited_to_the_requested_period(service: ApiService) -> None:
    await record_usage(service)
    since, until = (text_micros(service.clock - minutes * 60 * SECOND) for minutes in (90, 15))
    rows = (await service.result("GET", f"{USAGE}?project=p1&since={since}&until={until}"))["rows"]
    assert [(row["name"], row["machineHours"]) for row in rows] == [(ANA, 0.5), (BO, 0.25)]
    faults = violations(await service.call("GET", f"{USAGE}?project=p1&by=colour&since=now&until={until}"))
    assert set(faults) == {"by", "since"}


async def test_jobs_are_listed_by_user(service: ApiService) -> None:
    jobs = [replace(make_job(n, project_id="p1"), creator=Actor(who)) for n, who in ((1, ANA), (2, BO))]
    for made in jobs:
        await service.store.intake.create(NewWork(made))
    await service.store.intake.replace_labels(jobs[0].name, (("a", "b"),), "", service.clock)
    listed = (await service.result("GET", f"/trainshed/v1/jobs?project=p1&user={ANA}"))["jobs"]
    assert [(row["jobId"], row["user"]) for row in listed] == [("job1", ANA)]
    assert (await service.result("GET", "/trainshed/v1/jobs?project=p1&user=me"))["jobs"] == []


async def test_project_number_is_equivalent_to_its_id(service: ApiService) -> None:
    await service.call("POST", "/v1/projects", {"projectId": "vision-lab"})
    place = {"project": str(project_number("vision-lab")), "region": "us-central1"}
    view = (await service.call("POST", f"{QUOTAS}:set", {**place, "metric": "jobs", "limit": 3})).json
    assert view["project"] == "vision-lab"
    [(key, _)] = await service.store.reader.quotas()
    assert key.project_id == "vision-lab"
    numbered = f"/v3/projects/{place['project']}"
    assert (await service.result("GET", numbered))["projectId"] == "vision-lab"
    await service.result("PATCH", f"{numbered}?updateMask=displayName", {"displayName": "Lab"})
    assert (await service.result("GET", "/v3/projects/vision-lab"))["displayName"] == "Lab"
    job, where = custom_job(), {"api": "vertex", "project": "vision-lab", "location": "us-central1"}
    own = f"projects/{place['project']}/locations/us-central1"
    job["jobSpec"]["experiment"] = f"{own}/metadataStores/default/contexts/none"
    answer = await service.call("POST", "/trainshed/v1/jobs:explain", {**where, "job": job})
    assert "another project" not in answer.error["message"]
