"""`aiplatform` v1 persistent resources over REST: names that jobs may give, with nothing reserved behind them
(spec/clients#surface)."""

from typing import Any

import pytest

from tests.contract.api.house import LOCATION, House
from tests.contract.api.refusals import fields
from tests.unit.specs_requests import custom_job
from tests.unit.test_specs_pipeline import inputs, pipeline
from tests.unit.test_specs_tuning import tuning_job

pytestmark = pytest.mark.anyio
RESOURCES = f"{LOCATION}/persistentResources"
NAME = "projects/p1/locations/us-central1/persistentResources/r1"
POOL: dict[str, Any] = {
    "machineSpec": {"machineType": "n1-standard-4"},
    "replicaCount": "2",
    "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100},
}


async def created(house: House, resource_id: str = "r1", **changes: Any) -> dict[str, Any]:
    body = {"displayName": "mine", "resourcePools": [POOL], **changes}
    answer = await house.call("POST", f"{RESOURCES}?persistentResourceId={resource_id}", body)
    assert answer.status == 200, answer.body
    return answer.json


async def test_a_resource_runs_from_the_moment_it_is_created(house: House) -> None:
    done = await created(house, labels={"a": "b"})
    view = (await house.call("GET", f"/v1/{NAME}")).json
    assert done["done"] is True
    assert done["metadata"]["@type"].endswith("CreatePersistentResourceOperationMetadata")
    kind = "type.googleapis.com/google.cloud.aiplatform.v1.PersistentResource"
    assert done["response"] == {"@type": kind, **view}
    assert (view["name"], view["state"]) == (NAME, "RUNNING")
    assert (view["displayName"], view["labels"]) == ("mine", {"a": "b"})
    assert view["createTime"] == view["startTime"] == "2025-10-09T08:53:20Z"
    assert view["resourcePools"] == [POOL | {"id": "pool-0"}]
    assert (await house.call("GET", f"/ui/{done['name']}")).json == done


async def test_an_id_is_used_once(house: House) -> None:
    await created(house)
    body = {"resourcePools": [POOL]}
    answer = await house.call("POST", f"{RESOURCES}?persistentResourceId=r1", body)
    assert (answer.status, answer.error["status"]) == (409, "ALREADY_EXISTS")


async def test_every_violation_is_named_at_once(house: House) -> None:
    """spec/submit#refusals; machines by the rules of a job's pools."""
    pools = [
        {"id": "a", "machineSpec": {"machineType": "n1-standrd-4"}, "replicaCount": "1"},
        {"id": "a", "machineSpec": {"machineType": "n1-standard-4"}},
        {
            "machineSpec": {"machineType": "n1-standard-4"},
            "autoscalingSpec": {"minReplicaCount": "3", "maxReplicaCount": "2"},
        },
    ]
    body: dict[str, Any] = {
        "displayName": "x" * 129,
        "labels": {"A": "b"},
        "resourcePools": pools,
        "resourceRuntimeSpec": {"raySpec": {}},
    }
    answer = await house.call("POST", f"{RESOURCES}?persistentResourceId=R1", body)
    assert fields(answer) == {
        "persistent_resource_id",
        "display_name",
        "labels.A",
        "resource_runtime_spec.ray_spec",
        "resource_pools[0].machine_spec.machine_type",
        "resource_pools[1].id",
        "resource_pools[1].replica_count",
        "resource_pools[2].autoscaling_spec.max_replica_count",
    }
    none = await house.call("POST", f"{RESOURCES}?persistentResourceId=r1", {})
    assert fields(none) == {"resource_pools"}


async def test_lists_page(house: House) -> None:
    for number in range(3):
        await created(house, f"r{number}")
    page = (await house.call("GET", f"{RESOURCES}?pageSize=2")).json
    rest = await house.call("GET", f"{RESOURCES}?pageSize=2&pageToken={page['nextPageToken']}")
    names = [each["name"] for each in page["persistentResources"]]
    names += [each["name"] for each in rest.json["persistentResources"]]
    assert [name.rpartition("/")[2] for name in names] == ["r0", "r1", "r2"]
    assert "nextPageToken" not in rest.json


async def test_reboot_and_delete_are_finished_operations(house: House) -> None:
    await created(house)
    house.clock += 10**9
    rebooted = (await house.call("POST", f"/v1/{NAME}:reboot", {})).json
    assert rebooted["metadata"]["@type"].endswith("UpdatePersistentResourceOperationMetadata")
    assert (rebooted["done"], rebooted["response"]["state"]) == (True, "RUNNING")
    view = (await house.call("GET", f"/v1/{NAME}")).json
    assert view["updateTime"] > view["createTime"]
    assert (await house.call("DELETE", f"/v1/{NAME}")).json["done"] is True
    for method, path in (("GET", NAME), ("DELETE", NAME)):
        assert (await house.call(method, f"/v1/{path}")).status == 404


async def test_jobs_may_name_one_that_is_there_and_are_warned(house: House) -> None:
    """The public service keeps machines for them; here all jobs share the host
    (docs/coming-from-vertex.md)."""
    on_it = custom_job(persistentResourceId="r1")
    refused = await house.call("POST", f"{LOCATION}/customJobs", on_it)
    assert fields(refused) == {"job_spec.persistent_resource_id"}
    await created(house)
    job = (await house.call("POST", f"{LOCATION}/customJobs", on_it)).json
    timeline = await house.call(
        "GET", f"/trainshed/v1/jobs/{job['name'].rpartition('/')[2]}/timeline"
    )
    warned = [e["message"] for e in timeline.json["entries"] if e["kind"] == "warning"]
    assert [text for text in warned if "persistent_resource_id" in text]
    tuning = tuning_job(trialJobSpec=on_it["jobSpec"])
    assert (await house.call("POST", f"{LOCATION}/hyperparameterTuningJobs", tuning)).status == 200
    asked = pipeline(trainingTaskInputs=inputs(persistentResourceId="r1"))
    assert (await house.call("POST", f"{LOCATION}/trainingPipelines", asked)).status == 200
