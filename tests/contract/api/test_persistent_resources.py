"""`aiplatform` v1 persistent resources over REST, with store and scheduler
(spec/queue#reservations)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.api.house import LOCATION, SECOND, House
from tests.contract.api.refusals import fields, violations
from tests.unit.specs_requests import custom_job
from tests.unit.test_specs_pipeline import inputs, pipeline
from tests.unit.test_specs_tuning import tuning_job
from trainshed.core.capacity import Node
from trainshed.core.units import text_micros
from trainshed.store.sqlite.reader import Reader

RESOURCES = f"{LOCATION}/persistentResources"
NAME = "projects/p1/locations/us-central1/persistentResources/r1"
POOL: dict[str, Any] = {
    "machineSpec": {"machineType": "n1-standard-4"},
    "replicaCount": "2",
    "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100},
}
GIB = 2**30


def nodes(house: House, count: int = 4) -> None:
    house.tracker.set_nodes([Node("node-1", 4 * count, 15 * GIB * count)])
    house.decide()


async def created(house: House, resource_id: str = "r1", **changes: Any) -> dict[str, Any]:
    body = {"displayName": "mine", "resourcePools": [POOL], **changes}
    return await house.result("POST", f"{RESOURCES}?persistentResourceId={resource_id}", body)


async def done(house: House, operation: dict[str, Any]) -> dict[str, Any]:
    return await house.result("POST", f"/v1/{operation['name']}:wait?timeout=20s")


async def running(house: House, resource_id: str = "r1", **changes: Any) -> dict[str, Any]:
    nodes(house)
    ended = await done(house, await created(house, resource_id, **changes))
    assert ended["done"] is True
    assert "error" not in ended, ended
    return ended


async def test_create_operation_finishes_when_machines_are_reserved(house: House) -> None:
    begun = await created(house, labels={"a": "b"})
    assert "done" not in begun
    assert begun["metadata"]["@type"].endswith("CreatePersistentResourceOperationMetadata")
    view = await house.result("GET", f"/v1/{NAME}")
    assert (view["name"], view["state"], view["labels"]) == (NAME, "PROVISIONING", {"a": "b"})
    assert "startTime" not in view
    waits = await house.result("GET", f"/v1/{begun['name']}")
    assert waits["metadata"]["progressMessage"] == "no node is known yet"
    house.clock += 10**9
    nodes(house)
    ended = await done(house, begun)
    kind = "type.googleapis.com/google.cloud.aiplatform.v1.PersistentResource"
    view = await house.result("GET", f"/v1/{NAME}")
    assert view["state"] == "RUNNING"
    assert view["startTime"] > view["createTime"]
    assert view["resourcePools"] == [POOL | {"id": "pool-0"}]
    assert ended["response"]["@type"] == kind
    assert ended["response"]["state"] == "RUNNING"


async def test_create_operation_fails_when_machines_can_never_be_reserved(house: House) -> None:
    nodes(house, 1)
    ended = await done(house, await created(house))
    assert ended["error"]["code"] == 8
    assert "can never be reserved: needs 2 replicas at once" in ended["error"]["message"]
    view = await house.result("GET", f"/v1/{NAME}")
    assert (view["state"], view["error"]["code"]) == ("ERROR", 8)
    nodes(house, 2)
    await done(house, await house.result("POST", f"/v1/{NAME}:reboot", {}))
    assert (await house.result("GET", f"/v1/{NAME}"))["state"] == "RUNNING"


async def test_resource_id_is_unique_and_optional(house: House) -> None:
    await running(house)
    answer = await house.call(
        "POST", f"{RESOURCES}?persistentResourceId=r1", {"resourcePools": [POOL]}
    )
    assert (answer.status, answer.error["status"]) == (409, "ALREADY_EXISTS")
    await house.result("POST", RESOURCES, {"resourcePools": [POOL]})
    listed = (await house.result("GET", RESOURCES))["persistentResources"]
    assert [view["name"].rpartition("/")[2].partition("-")[0] for view in listed] == [
        "r1",
        "resource",
    ]


async def test_all_wrong_fields_of_a_resource_are_reported_at_once(house: House) -> None:
    """spec/submit#refusals; the rules for machines are those of a job's worker pools."""
    pools = [
        {"id": "a", "machineSpec": {"machineType": "n1-standrd-4"}, "replicaCount": "1"},
        {"id": "a", "machineSpec": {"machineType": "n1-standard-4"}},
        {
            "machineSpec": {"machineType": "n1-standard-4"},
            "autoscalingSpec": {"minReplicaCount": "2", "maxReplicaCount": "3"},
        },
    ]
    body: dict[str, Any] = {
        "labels": {"A": "b"},
        "resourcePools": pools,
        "network": "projects/1/global/networks/mine",
        "encryptionSpec": {"kmsKeyName": "k"},
        "resourceRuntimeSpec": {
            "raySpec": {},
            "serviceAccountSpec": {"serviceAccount": "a@p1.iam.gserviceaccount.com"},
        },
    }
    answer = await house.call("POST", f"{RESOURCES}?persistentResourceId=R1", body)
    resource = "persistent_resource"
    assert fields(answer) == {
        "persistent_resource_id",
        f"{resource}.labels.A",
        f"{resource}.network",
        f"{resource}.encryption_spec",
        f"{resource}.resource_runtime_spec.ray_spec",
        f"{resource}.resource_runtime_spec.service_account_spec.service_account",
        f"{resource}.resource_pools[0].machine_spec.machine_type",
        f"{resource}.resource_pools[1].id",
        f"{resource}.resource_pools[1].replica_count",
        f"{resource}.resource_pools[2].autoscaling_spec",
    }
    none = await house.call("POST", f"{RESOURCES}?persistentResourceId=r1", {})
    assert fields(none) == {f"{resource}.resource_pools"}
    assert await house.result("GET", RESOURCES) == {}


async def test_persistent_resources_are_listed_in_pages(house: House) -> None:
    for number in range(3):
        await created(house, f"r{number}")
    page = await house.result("GET", f"{RESOURCES}?pageSize=2")
    rest = await house.result("GET", f"{RESOURCES}?pageSize=2&pageToken={page['nextPageToken']}")
    names = [view["name"] for view in (*page["persistentResources"], *rest["persistentResources"])]
    assert [name.rpartition("/")[2] for name in names] == ["r0", "r1", "r2"]
    assert "nextPageToken" not in rest


async def test_update_changes_only_name_labels_and_replica_counts(house: House) -> None:
    await running(house)
    body: dict[str, Any] = {
        "displayName": "other",
        "labels": {"x": "y"},
        "resourcePools": [{"id": "pool-0", "replicaCount": "4"}],
    }
    mask = "displayName,labels,resourcePools.replicaCount"
    begun = await house.result("PATCH", f"/v1/{NAME}?updateMask={mask}", body)
    assert begun["metadata"]["@type"].endswith("UpdatePersistentResourceOperationMetadata")
    response = (await done(house, begun))["response"]
    assert (response["displayName"], response["labels"]) == ("other", {"x": "y"})
    assert response["resourcePools"][0]["replicaCount"] == "4"
    body["resourcePools"][0]["replicaCount"] = "5"
    path = f"/v1/{NAME}?updateMask=resourcePools"
    waits = await house.result("PATCH", path, body)
    assert "needs 4 CPUs, 16 of 16" in waits["metadata"]["progressMessage"]
    assert (await house.result("GET", f"/v1/{NAME}"))["state"] == "UPDATING"
    body["resourcePools"][0]["replicaCount"] = "3"
    assert "error" not in await done(house, await house.result("PATCH", path, body))
    assert (await done(house, waits))["error"]["code"] == 1
    view = await house.result("GET", f"/v1/{NAME}")
    assert (view["state"], view["resourcePools"][0]["replicaCount"]) == ("RUNNING", "3")
    wrong_bodies: list[dict[str, Any]] = [
        {"resourcePools": []},
        {"resourcePools": [{"id": "pool-1", "replicaCount": "1"}]},
        {"resourcePools": [{"id": "pool-0"}]},
        {
            "resourcePools": [
                {
                    "id": "pool-0",
                    "machineSpec": {"machineType": "n1-standard-8"},
                    "replicaCount": "1",
                }
            ]
        },
    ]
    for wrong in wrong_bodies:
        answer = await house.call("PATCH", f"/v1/{NAME}?updateMask=resourcePools", wrong)
        assert fields(answer), wrong
    answer = await house.call("PATCH", f"/v1/{NAME}?updateMask=network", {"network": "n"})
    assert fields(answer) == {"update_mask"}


async def test_resource_that_is_not_running_cannot_be_changed(house: House) -> None:
    await created(house)
    for method, path in (("POST", f"{NAME}:reboot"), ("PATCH", f"{NAME}?updateMask=labels")):
        answer = await house.call(method, f"/v1/{path}", {})
        assert answer.error["status"] == "FAILED_PRECONDITION", path
        assert "is PROVISIONING" in answer.error["message"]


async def test_usage_counts_machines_released_during_the_report_once(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running(house)
    house.clock += 3600 * SECOND
    until = text_micros(house.clock)
    usage = f"/trainshed/v1/usage?project=p1&by=project&until={until}"
    (before,) = (await house.result("GET", usage))["rows"]
    read = Reader.machine_time

    async def read_and_delete(reader: Reader, *span: Any) -> Any:
        ended = await read(reader, *span)
        if (await house.call("GET", f"/v1/{NAME}")).status == 200:
            await done(house, await house.result("DELETE", f"/v1/{NAME}"))
        return ended

    monkeypatch.setattr(Reader, "machine_time", read_and_delete)
    (after,) = (await house.result("GET", usage))["rows"]
    assert after["machineHours"] == before["machineHours"] == 2


async def test_deleting_a_resource_ends_its_create_operation(house: House) -> None:
    begun = await created(house)
    deleted = await done(house, await house.result("DELETE", f"/v1/{NAME}"))
    assert deleted["response"]["@type"].endswith("google.protobuf.Empty")
    assert (await done(house, begun))["error"]["code"] == 1
    for method in ("GET", "DELETE"):
        assert (await house.call(method, f"/v1/{NAME}")).status == 404
    await running(house)


async def test_job_needs_an_existing_resource_with_its_machine_type(house: House) -> None:
    on_it = custom_job(persistentResourceId="r1")
    tuning = tuning_job(trialJobSpec=on_it["jobSpec"])
    training = pipeline(trainingTaskInputs=inputs(persistentResourceId="r1"))
    requests = {
        "customJobs": (on_it, "job_spec"),
        "hyperparameterTuningJobs": (tuning, "trial_job_spec"),
        "trainingPipelines": (training, "training_pipeline.training_task_inputs"),
    }
    for collection, (body, path) in requests.items():
        answer = await house.call("POST", f"{LOCATION}/{collection}", body)
        (fault,) = violations(answer).items()
        assert fault[0] == f"{path}.persistent_resource_id"
        assert "does not exist. Create it first" in fault[1]
    machine = on_it["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]
    await running(house, resourcePools=[POOL | {"machineSpec": machine}])
    for collection, (body, _) in requests.items():
        await house.result("POST", f"{LOCATION}/{collection}", body)
    await running(house, "r2", resourcePools=[POOL | {"replicaCount": "1"}])
    larger = custom_job(persistentResourceId="r2")
    larger["jobSpec"]["workerPoolSpecs"][0]["machineSpec"] = {"machineType": "n1-standard-8"}
    answer = await house.call("POST", f"{LOCATION}/customJobs", larger)
    ((_, text),) = violations(answer).items()
    assert "needs 1 x n1-standard-8, and" in text
    assert "has 1 x n1-standard-4" in text
    elsewhere = LOCATION.replace("us-central1", "europe-west4")
    assert fields(await house.call("POST", f"{elsewhere}/customJobs", on_it)) == {
        "job_spec.persistent_resource_id"
    }


async def test_cluster_with_its_own_queue_rejects_persistent_resources(house: House) -> None:
    house.serve(settings=replace(house.services.settings, queue="Slurm"))
    answer = await house.call(
        "POST", f"{RESOURCES}?persistentResourceId=r1", {"resourcePools": [POOL]}
    )
    assert answer.error["status"] == "FAILED_PRECONDITION"
    assert "Slurm" in answer.error["message"]
