"""Methods of Google's APIs that Trainshed does not implement: REST and gRPC return the same
explanation. Methods that no API has are not found."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api.api_service import LOCATION, ApiService
from tests.contract.api.grpc_service import GrpcApiService, status_of
from tests.contract.api.test_grpc import grpc
from tests.unit.specs_requests import custom_job
from trainshed.api import projects, service_accounts
from trainshed.wire import json as wire_json
from trainshed.wire import pool, routes

KNOWN: list[tuple[str, str, str]] = wire_json.decode_text(pool.read_data("known_methods.json.gz"))
OTHER_METHODS = {**projects.METHODS, **service_accounts.METHODS}
GCLOUD_METHODS = {(verb, re.sub(r"\{\w+\}", "x", path)) for verb, path in OTHER_METHODS}
"""Methods of Resource Manager v1 and IAM that gcloud calls."""
STORES = "google.cloud.aiplatform.v1.FeaturestoreService"


@pytest.fixture
async def grpc_service(tmp_path: Path) -> AsyncGenerator[GrpcApiService]:
    async with GrpcApiService(tmp_path).open() as opened:
        yield opened


def is_served(service: ApiService, verb: str, path: str) -> bool:
    match = routes.match(verb, path.replace("/v1beta1/", "/v1/", 1))
    if match is None:
        return (verb, path) in GCLOUD_METHODS
    return match[0].rpc.full_name in service.registry.methods


async def test_every_public_method_is_served_or_explicitly_unimplemented(service: ApiService) -> None:
    count = 0
    for name, verb, template in KNOWN:
        path = template.replace("*", "x")
        if not verb or is_served(service, verb, path):
            continue
        answer = await service.call(verb, path, {})
        assert (answer.status, answer.error["status"]) == (400, "UNIMPLEMENTED"), (verb, path)
        # The advice comes before the list of other methods of the service.
        assert re.search(r" is not served here\. (?!Of )\w", answer.error["message"]), (name, path)
        count += 1
    assert count > 700


@pytest.mark.parametrize(
    ("verb", "path", "words"),
    [
        ("POST", f"{LOCATION}/endpoints/1:predict", "does not deploy them"),
        ("GET", f"{LOCATION}/datasets/1/annotationSpecs/2", "pass its path to the program, gs://BUCKET/PATH"),
        ("POST", f"{LOCATION}/indexes", "Build the index in a custom job"),
        ("POST", f"{LOCATION}/notebookRuntimes:assign", "run --notebook"),
        ("POST", f"{LOCATION}/tuningJobs", "no language models"),
        ("POST", f"{LOCATION}/publishers/google/models/m:generateContent", "no language models"),
        ("POST", "/v1/projects/p1/models/m/versions", "does not deploy them"),
        ("POST", "/v2/projects/p1/sinks", "Read them with entries:list"),
        ("GET", "/compute/v1/projects/p1/regions/us-central1", "Compute Engine is not served"),
        ("GET", "/v1/projects/p1/secrets/s/versions/latest:access", "--secret VARIABLE=NAME"),
        ("POST", "/v1/projects/p1/serviceAccounts/a@b:setIamPolicy", "projects add-iam-policy"),
        ("POST", "/v1/projects/-/serviceAccounts/a@b:generateIdToken", "Use the account's token"),
        ("GET", f"{LOCATION}/customJobs/1:getIamPolicy", "provides TestIamPermissions."),
        ("POST", "/bigquery/v2/projects/p1/jobs", "copy the files into a bucket"),
    ],
)
async def test_unimplemented_method_returns_advice(
    service: ApiService, verb: str, path: str, words: str
) -> None:
    answer = await service.call(verb, path, {})
    assert answer.error["status"] == "UNIMPLEMENTED"
    assert words in answer.error["message"]


KEY_ONLY: dict[str, Any] = {"encryptionSpec": {"kmsKeyName": "k"}}
NAME_AND_KEY: dict[str, Any] = {"displayName": "x", **KEY_ONLY}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("tensorboards", NAME_AND_KEY),
        ("metadataStores?metadataStoreId=s", KEY_ONLY),
        ("models:upload", {"model": NAME_AND_KEY}),
        ("models:copy", {"sourceModel": f"{LOCATION[4:]}/models/m", **KEY_ONLY}),
    ],
)
async def test_customer_managed_encryption_key_is_rejected(
    service: ApiService, path: str, body: dict[str, Any]
) -> None:
    """Terraform sends this field. Accepting it would suggest an encryption that does not happen."""
    answer = await service.call("POST", f"{LOCATION}/{path}", body)
    assert "encryption_spec; Message: Keys of customers are not" in answer.error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("customJobs", {**custom_job(), "encryptionSpec": {"kmsKeyName": "k" * 1_000_001}}),
        ("models:upload", {"model": {"displayName": "x", "description": "d" * 1_000_001}}),
    ],
)
async def test_size_of_a_stored_resource_is_limited(service: ApiService, path: str, body: Any) -> None:
    answer = await service.call("POST", f"{LOCATION}/{path}", body)
    assert answer.status == 400 and "1,000,000 bytes as JSON" in str(answer.error)


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_unimplemented_method_has_the_same_error_over_grpc(
    grpc_service: GrpcApiService, version: str
) -> None:
    method = f"/{STORES.replace('.v1.', f'.{version}.')}/CreateFeaturestore"
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await grpc_service.send(method, b"")
    path = LOCATION.replace("/v1/", f"/{version}/")
    over_rest = await ApiService.call(grpc_service, "POST", f"{path}/featurestores", {})
    status: Any = status_of(failure.value)
    assert status.code == grpc.StatusCode.UNIMPLEMENTED.value[0]
    assert status.message == over_rest.error["message"]
    assert status.message.startswith(f"{STORES}.CreateFeaturestore is not served here. Put the data")
