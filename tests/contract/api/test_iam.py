"""TestIamPermissions of every kind of resource: it returns exactly the caller's permissions in the
permission table."""

from typing import Any

import pytest

from tests.contract.api.api_service import LOCATION, ApiService
from tests.contract.api.test_job_principals import send_as_program
from tests.contract.api.test_job_principals import service as service  # noqa: PLC0414  a fixture
from tests.contract.api.violations import violations
from trainshed.access.permissions import PERMISSIONS, PROGRAM

RESOURCES = (
    f"{LOCATION}/customJobs/1",
    f"{LOCATION}/hyperparameterTuningJobs/1",
    f"{LOCATION}/trainingPipelines/1",
    f"{LOCATION}/studies/1/trials/1",
    f"{LOCATION}/models/1",
    f"{LOCATION}/persistentResources/1",
    f"{LOCATION}/endpoints/1",
    "/v1/projects/p1/jobs/j",
    "/v1/projects/p1/models/m/versions/v",
    "/v1/projects/p1",
    "/v3/projects/p1",
)
UNKNOWN_PERMISSIONS = ("aiplatform.endpoints.predict", "ml.models.create", "storage.objects.fly", "a.b.c")
STORAGE = ("storage.buckets.create", "storage.objects.get", "storage.buckets.setIamPolicy")


@pytest.mark.parametrize("resource", RESOURCES)
async def test_owner_has_all_permissions_and_a_program_has_the_permissions_of_its_role(
    service: Any, resource: str
) -> None:
    every, path = sorted({*PERMISSIONS.values()}), f"{resource}:testIamPermissions"
    asks = {"permissions": [*every, *UNKNOWN_PERMISSIONS, *STORAGE]}
    owner = await service.call("POST", path, asks)
    assert owner.json == {"permissions": [*every, *STORAGE]}
    program = await send_as_program(service, "POST", path, {"permissions": [*every, *UNKNOWN_PERMISSIONS]})
    assert program.json == {"permissions": [name for name in every if name in PROGRAM]}


@pytest.mark.parametrize("version", ["v1", "v3"])
async def test_iam_policy_is_replaced_with_etag_and_rejects_conditions(
    service: ApiService, version: str
) -> None:
    path = f"/{version}/projects/p1"
    read = await service.result("POST", f"{path}:getIamPolicy", {})
    binding = {"role": "roles/viewer", "members": ["user:a@x.example", "user:b@x.example"]}
    turned = {**binding, "members": binding["members"][::-1]}
    policy = {"policy": {"bindings": [turned], "etag": read["etag"]}}
    written = await service.result("POST", f"{path}:setIamPolicy", policy)
    assert written == await service.result("POST", f"{path}:getIamPolicy", {})
    assert (written["bindings"], written["etag"] != read["etag"]) == ([binding], True)
    assert (await service.call("POST", f"{path}:setIamPolicy", policy)).error["status"] == "ABORTED"
    wrong = {"role": "roles/king", "members": ["all"], "condition": {"expression": "true"}}
    answer = await service.call("POST", f"{path}:setIamPolicy", {"policy": {"bindings": [wrong]}})
    parts = ("role", "condition", "members[0]")
    assert set(violations(answer)) == {f"policy.bindings[0].{part}" for part in parts}


async def test_permissions_are_deduplicated_and_wildcards_rejected(service: ApiService) -> None:
    path = f"{LOCATION}/customJobs/1:testIamPermissions"
    twice = ["aiplatform.customJobs.get"] * 2
    assert await service.result("POST", path, {"permissions": twice}) == {"permissions": twice[:1]}
    for wrong in ("aiplatform.*", "aiplatform"):
        answer = await service.call("POST", path, {"permissions": [wrong]})
        assert answer.error["status"] == "INVALID_ARGUMENT"
