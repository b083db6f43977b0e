"""Secrets over a real store: accepted values, error texts, and rejected jobs (spec/submit#refusals;
spec/invariants#secrets)."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api import violations as errors
from tests.contract.api.api_service import LOCATION, SECOND, ApiService
from tests.contract.api.test_curves import request
from tests.unit.specs_requests import container, custom_job, package
from trainshed.core.secrets import MAX_VALUE_BYTES

SECRETS = "/trainshed/v1/secrets"
EXPLAIN = "/trainshed/v1/jobs:explain"
VALUE = "corréct horse / battery"


def secret_body(name: str = "db", value: object = VALUE, project: str = "p1") -> dict[str, Any]:
    return {"name": name, "value": value, "project": project}


def violations(answer: Any) -> dict[str, str]:
    assert VALUE.encode() not in answer.body
    return errors.violations(answer)


def files_with_value(directory: Path) -> list[Path]:
    """Return the files that contain the value in any encoding."""
    forms = (VALUE, json.dumps(VALUE)[1:-1], base64.b64encode(VALUE.encode()).decode())
    files = filter(Path.is_file, directory.rglob("*"))
    return [path for path in files if any(form.encode() in path.read_bytes() for form in forms)]


def env_of(*values: str) -> list[dict[str, str]]:
    return [{"name": f"V{n}", "value": value} for n, value in enumerate(values)]


async def test_secret_is_set_listed_and_deleted_but_never_shown(service: ApiService, tmp_path: Path) -> None:
    first = await service.call("POST", SECRETS, secret_body(value="first value"))
    assert first.json["version"] == 1
    service.clock += SECOND
    second = await service.call("POST", SECRETS, secret_body())
    newest = second.json
    assert newest == {"project": "p1", "name": "db", "version": 2, "created": newest["created"]}
    listed = await service.call("GET", f"{SECRETS}?project=p1")
    (secret,) = listed.json["secrets"]
    assert (secret["name"], secret["created"]) == ("db", newest["created"])
    assert [version["version"] for version in secret["versions"]] == [2, 1]
    assert await service.result("DELETE", f"{SECRETS}/db?project=p1&version=2") == {}
    assert await service.result("DELETE", f"{SECRETS}/db?project=p1") == {}
    assert (await service.result("GET", f"{SECRETS}?project=p1"))["secrets"] == []
    for body in (first.body, second.body, listed.body):
        assert VALUE.encode() not in body and b"first value" not in body
    service.close()
    assert files_with_value(tmp_path) == []


@pytest.mark.parametrize(
    ("body", "field", "fault"),
    [
        (secret_body(name=""), "name", "not the name of a secret"),
        (secret_body(name="1a"), "name", "not the name of a secret"),
        (secret_body(value=""), "value", "fewer than 4"),
        (secret_body(value="xyz"), "value", "fewer than 4"),
        (secret_body(value=f"{VALUE}\0"), "value", "zero byte"),
        (secret_body(value=VALUE * MAX_VALUE_BYTES), "value", "at most 65536"),
        (secret_body(value=[VALUE]), "value", "got `array`"),
        (secret_body(project="a/b"), "project", "is not a project ID"),
        ({**secret_body(), "vaule": VALUE}, "vaule", "Unknown field"),
    ],
)
async def test_invalid_secret_is_rejected_without_echoing_its_value(
    service: ApiService, body: dict[str, Any], field: str, fault: str
) -> None:
    faults = violations(await service.call("POST", SECRETS, body))
    assert list(faults) == [field] and fault in faults[field]
    assert not await service.store.secrets.has_any()


async def test_all_wrong_fields_of_a_secret_are_reported_at_once(service: ApiService) -> None:
    faults = violations(await service.call("POST", SECRETS, {"project": "/", "name": "7", "value": "x"}))
    assert set(faults) == {"project", "name", "value"}
    assert set(violations(await service.call("DELETE", f"{SECRETS}/db?project=p1&version=0"))) == {"version"}


async def test_lost_secret_key_is_not_replaced_while_secrets_exist(
    service: ApiService, tmp_path: Path
) -> None:
    await service.call("POST", SECRETS, secret_body())
    (tmp_path / "secrets.key").unlink()
    again = ApiService(tmp_path / "again")
    try:
        await again.store.secrets.add("p1", "db", 1, lambda version: b"sealed with a lost key")
        refused = await again.call("POST", SECRETS, secret_body())
        assert (refused.status, refused.error["status"]) == (400, "FAILED_PRECONDITION")
        assert "from a backup" in refused.error["message"]
        await again.call("DELETE", f"{SECRETS}/db?project=p1")
        assert (await again.result("POST", SECRETS, secret_body()))["version"] == 2
    finally:
        again.close()


async def test_job_with_secret_references_is_accepted_and_shown_unchanged(service: ApiService) -> None:
    await service.call("POST", SECRETS, secret_body())
    env = env_of("x $(secret:db)", "$(secret:db@1)", "$$(secret:nobody)")
    for program in (container(env=env), package(env=env)):
        answer = await service.result("POST", f"{LOCATION}/customJobs", custom_job(program))
        shown = (await service.call("GET", f"/v1/{answer['name']}")).body
        assert b"$(secret:db)" in shown and VALUE.encode() not in shown


async def test_job_with_unknown_secret_is_rejected_naming_its_variable(service: ApiService) -> None:
    await service.call("POST", SECRETS, secret_body())
    await service.call("POST", SECRETS, secret_body(name="other", project="p2"))
    spec = custom_job(
        container(env=env_of("$(secret:db)", "$(secret:db@2)", "a $(secret:other) $(secret:db@1)")),
        package(env=env_of("$(secret:nobody)")),
    )
    wrong = {**spec, "labels": {"Bad": "label"}}
    faults = violations(await service.call("POST", f"{LOCATION}/customJobs", wrong))
    assert "labels.Bad" in faults, "whatever else is wrong is told with it"
    path = "job_spec.worker_pool_specs"
    assert "has no version 2" in faults[f"{path}[0].container_spec.env[1].value"]
    assert "It has: db" in faults[f"{path}[0].container_spec.env[2].value"]
    fault = faults[f"{path}[1].python_package_spec.env[0].value"]
    assert "`trainshed secrets set nobody`" in fault
    assert f"{path}[0].container_spec.env[0].value" not in faults
    assert await service.result("GET", f"{LOCATION}/customJobs") == {}, "nothing is stored"


@pytest.mark.parametrize("kind", ["custom", "tuning", "pipeline", "explain custom", "explain tuning"])
async def test_every_create_method_rejects_a_job_that_refers_to_an_unknown_secret(
    service: ApiService, kind: str
) -> None:
    spec = custom_job(container(env=env_of("$(secret:nobody)")))["jobSpec"]
    path, body, field = request(kind.removeprefix("explain "), spec)
    if kind.startswith("explain"):
        place = {"api": "vertex", "project": "p1", "location": "us-central1"}
        path, body = EXPLAIN, {**place, "job": body}
    where = f"{field}.worker_pool_specs[0].container_spec.env[0].value"
    assert "has no secrets yet" in violations(await service.call("POST", path, body))[where]
    await service.call("POST", SECRETS, secret_body(name="nobody"))
    assert (await service.call("POST", path, body)).status == 200


async def test_unusable_secret_key_is_reported(service: ApiService, tmp_path: Path) -> None:
    """spec/operations#errors. The key file can be replaced while the service runs, so the error is
    a failed precondition and not an internal error."""
    (tmp_path / "secrets.key").write_text("no key\n")
    refused = await service.call("POST", SECRETS, secret_body())
    assert refused.error["status"] == "FAILED_PRECONDITION"
    assert "is not base64" in refused.error["message"]
