"""`aiplatform` v1 persistent resources over REST, with store and scheduler (spec/queue#reservations)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.api.api_service import LOCATION, SECOND, ApiService
from tests.contract.api.violations import fields, violations
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


def nodes(service: ApiService, count: int = 4) -> None:
    service.tracker.set_nodes([Node("node-1", 4 * count, 15 * GIB * count)])
    service.decide()


async def create_resource(service: ApiService, resource_id: str = "r1", **changes: Any) -> dict[str, Any]:
    body = {"displayName": "mine", "resourcePools": [POOL], **changes}
    return await service.result("POST", f"{RESOURCES}?persistentResourceId={resource_id}", body)


async def wait_for_end(service: ApiService, operation: dict[str, Any]) -> dict[str, Any]:
    return await service.result("POST", f"/v1/{operation['name']}:wait?timeout=20s")


async def running(service: ApiService, resource_id: str = "r1", **changes: Any) -> dict[str, Any]:
    nodes(service)
    ended = await wait_for_end(service, await create_resource(service, resource_id, **changes))
    assert ended["done"] is True
    assert "error" not in ended, ended
    return ended


async def test_create_operation_finishes_when_machines_are_reserved(service: ApiService) -> None:
    begun = await create_resource(service, labels={"a": "b"})
    assert "done" not in begun
    assert begun["metadata"]["@type"].endswith("CreatePersistentResourceOperationMetadata")
    view = await service.result("GET", f"/v1/{NAME}")
    assert (view["name"], view["state"], view["labels"]) == (NAME, "PROVISIONING", {"a": "b"})
    assert "startTime" not in view
    waits = await service.result("GET", f"/v1/{begun['name']}")
    assert waits["metadata"]["progressMessage"] == "no node is known yet"
    service.clock += 10**9
    nodes(service)
    ended = await wait_for_end(service, begun)
    kind = "type.googleapis.com/google.cloud.aiplatform.v1.PersistentResource"
    view = await service.result("GET", f"/v1/{NAME}")
    assert view["state"] == "RUNNING"
    assert view["startTime"] > view["createTime"]
    assert view["resourcePools"] == [POOL | {"id": "pool-0"}]
    assert ended["response"]["@type"] == kind
    assert ended["response"]["state"] == "RUNNING"


async def test_create_operation_fails_when_machines_can_never_be_reserved(service: ApiService) -> None:
    nodes(service, 1)
    ended = await wait_for_end(service, await create_resource(service))
    assert ended["error"]["code"] == 8
    assert "can never be reserved: needs 2 replicas at once" in ended["error"]["message"]
    view = await service.result("GET", f"/v1/{NAME}")
    assert (view["state"], view["error"]["code"]) == ("ERROR", 8)
    nodes(service, 2)
    await wait_for_end(service, await service.result("POST", f"/v1/{NAME}:reboot", {}))
    assert (await service.result("GET", f"/v1/{NAME}"))["state"] == "RUNNING"


async def test_persistent_resource_id_is_optional_and_cannot_be_used_twice(service: ApiService) -> None:
    await running(service)
    answer = await service.call("POST", f"{RESOURCES}?persistentResourceId=r1", {"resourcePools": [POOL]})
    assert (answer.status, answer.error["status"]) == (409, "ALREADY_EXISTS")
    await service.result("POST", RESOURCES, {"resourcePools": [POOL]})
    listed = (await service.result("GET", RESOURCES))["persistentResources"]
    assert [view["name"].rpartition("/")[2].partition("-")[0] for view in listed] == ["r1", "resource"]


async def test_all_wrong_fields_of_a_persistent_resource_are_reported_at_once(service: ApiService) -> None:
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
    answer = await service.call("POST", f"{RESOURCES}?persistentResourceId=R1", body)
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
    none = await service.call("POST", f"{RESOURCES}?persistentResourceId=r1", {})
    assert fields(none) == {f"{resource}.resource_pools"}
    assert await service.result("GET", RESOURCES) == {}


async def test_persistent_resources_are_listed_in_pages(service: ApiService) -> None:
    for number in range(3):
        await create_resource(service, f"r{number}")
    page = await service.result("GET", f"{RESOURCES}?pageSize=2")
    rest = await service.result("GET", f"{RESOURCES}?pageSize=2&pageToken={page['nextPageToken']}")
    names = [view["name"] for view in (*page["persistentResources"], *rest["persistentResources"])]
    assert [name.rpartition("/")[2] for name in names] == ["r0", "r1", "r2"]
    assert "nextPageToken" not in rest


async def test_update_changes_only_name_labels_and_replica_counts_of_a_persistent_resource(
    service: ApiService,
) -> None:
    await running(service)
    body: dict[str, Any] = {
        "displayName": "other",
        "labels": {"x": "y"},
        "resourcePools": [{"id": "pool-0", "replicaCount": "4"}],
    }
    mask = "displayName,labels,resourcePools.replicaCount"
    begun = await service.result("PATCH", f"/v1/{NAME}?updateMask={mask}", body)
    assert begun["metadata"]["@type"].endswith("UpdatePersistentResourceOperationMetadata")
    response = (await wait_for_end(service, begun))["response"]
    assert (response["displayName"], response["labels"]) == ("other", {"x": "y"})
    assert response["resourcePools"][0]["replicaCount"] == "4"
    body["resourcePools"][0]["replicaCount"] = "5"
    path = f"/v1/{NAME}?updateMask=resourcePools"
    waits = await service.result("PATCH", path, body)
    assert "needs 4 CPUs, 16 of 16" in waits["metadata"]["progressMessage"]
    assert (await service.result("GET", f"/v1/{NAME}"))["state"] == "UPDATING"
    body["resourcePools"][0]["replicaCount"] = "3"
    assert "error" not in await wait_for_end(service, await service.result("PATCH", path, body))
    assert (await wait_for_end(service, waits))["error"]["code"] == 1
    view = await service.result("GET", f"/v1/{NAME}")
    assert (view["state"], view["resourcePools"][0]["replicaCount"]) == ("RUNNING", "3")
    wrong_bodies: list[dict[str, Any]] = [
        {"resourcePools": []},
        {"resourcePools": [{"id": "pool-1", "replicaCount": "1"}]},
        {"resourcePools": [{"id": "pool-0"}]},
        {
            "resourcePools": [
                {"id": "pool-0", "machineSpec": {"machineType": "n1-standard-8"}, "replicaCount": "1"}
            ]
        },
    ]
    for wrong in wrong_bodies:
        answer = await service.call("PATCH", f"/v1/{NAME}?updateMask=resourcePools", wrong)
        assert fields(answer), wrong
    answer = await service.call("PATCH", f"/v1/{NAME}?updateMask=network", {"network": "n"})
    assert fields(answer) == {"update_mask"}


async def test_persistent_resource_that_is_not_running_cannot_be_changed(service: ApiService) -> None:
    await create_resource(service)
    for method, path in (("POST", f"{NAME}:reboot"), ("PATCH", f"{NAME}?updateMask=labels")):
        answer = await service.call(method, f"/v1/{path}", {})
        assert answer.error["status"] == "FAILED_PRECONDITION", path
        assert "is PROVISIONING" in answer.error["message"]


async def test_machine_released_while_its_usage_is_read_is_counted_once(
    service: ApiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running(service)
    service.clock += 3600 * SECOND
    until = text_micros(service.clock)
    usage = f"/trainshed/v1/usage?project=p1&by=project&until={until}"
    (before,) = (await service.result("GET", usage))["rows"]
    read = Reader.machine_time

    async def read_and_delete(reader: Reader, *span: Any) -> Any:
        ended = await read(reader, *span)
        if (await service.call("GET", f"/v1/{NAME}")).status == 200:
            await wait_for_end(service, await service.result("DELETE", f"/v1/{NAME}"))
        return ended

    monkeypatch.setattr(Reader, "machine_time", read_and_delete)
    (after,) = (await service.result("GET", usage))["rows"]
    assert after["machineHours"] == before["machineHours"] == 2


async def test_deleting_a_persistent_resource_ends_its_create_operation(service: ApiService) -> None:
    begun = await create_resource(service)
    deleted = await wait_for_end(service, await service.result("DELETE", f"/v1/{NAME}"))
    assert deleted["response"]["@type"].endswith("google.protobuf.Empty")
    assert (await wait_for_end(service, begun))["error"]["code"] == 1
    for method in ("GET", "DELETE"):
        assert (await service.call(method, f"/v1/{NAME}")).status == 404
    await running(service)


async def test_job_needs_an_existing_resource_with_its_machine_type(service: ApiService) -> None:
    on_it = custom_job(persistentResourceId="r1")
    tuning = tuning_job(trialJobSpec=on_it["jobSpec"])
    training = pipeline(trainingTaskInputs=inputs(persistentResourceId="r1"))
    requests = {
        "customJobs": (on_it, "job_spec"),
        "hyperparameterTuningJobs": (tuning, "trial_job_spec"),
        "trainingPipelines": (training, "training_pipeline.training_task_inputs"),
    }
    for collection, (body, path) in requests.items():
        answer = await service.call("POST", f"{LOCATION}/{collection}", body)
        (fault,) = violations(answer).items()
        assert fault[0] == f"{path}.persistent_resource_id"
        assert "does not exist. Create it first" in fault[1]
    machine = on_it["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]
    await running(service, resourcePools=[POOL | {"machineSpec": machine}])
    for collection, (body, _) in requests.items():
        await service.result("POST", f"{LOCATION}/{collection}", body)
    await running(service, "r2", resourcePools=[POOL | {"replicaCount": "1"}])
    larger = custom_job(persistentResourceId="r2")
    larger["jobSpec"]["workerPoolSpecs"][0]["machineSpec"] = {"machineType": "n1-standard-8"}
    answer = await service.call("POST", f"{LOCATION}/customJobs", larger)
    ((_, text),) = violations(answer).items()
    assert "needs 1 x n1-standard-8, and" in text
    assert "has 1 x n1-standard-4" in text
    elsewhere = LOCATION.replace("us-central1", "europe-west4")
    assert fields(await service.call("POST", f"{elsewhere}/customJobs", on_it)) == {
        "job_spec.persistent_resource_id"
    }


async def test_persistent_resource_is_rejected_if_the_cluster_manages_the_job_queue(
    service: ApiService,
) -> None:
    service.serve(settings=replace(service.services.settings, queue="Slurm"))
    answer = await service.call("POST", f"{RESOURCES}?persistentResourceId=r1", {"resourcePools": [POOL]})
    assert answer.error["status"] == "FAILED_PRECONDITION"
    assert "Slurm" in answer.error["message"]
