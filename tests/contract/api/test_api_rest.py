"""The REST transport: credentials, unknown paths, discovery, health, size limits, internal errors."""

import logging
from pathlib import Path

import pytest

from tests.contract.api.api_service import LOCATION, ApiService
from tests.contract.api.fake_advisor import service_over
from tests.unit.specs_requests import custom_job


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/nothing"),
        ("GET", "/v9/projects"),
        ("PUT", f"{LOCATION}/customJobs"),
        ("GET", f"{LOCATION}//customJobs"),
        ("GET", "/v1"),
        ("GET", "/discovery/v1/apis/ml/v2/rest"),
        ("GET", "/discovery/v1/apis/aiplatform/v1/rest"),
        ("POST", "/healthz"),
    ],
)
async def test_unknown_paths_return_a_json_404(service: ApiService, method: str, path: str) -> None:
    answer = await service.call(method, path)
    assert (answer.status, answer.error["status"]) == (404, "NOT_FOUND")
    assert path in answer.error["message"]


async def test_discovery_needs_no_token_and_returns_the_address_of_the_service(service: ApiService) -> None:
    for path in ("/$discovery/rest?version=v1", "/discovery/v1/apis/ml/v1/rest"):
        document = await service.result("GET", path, token=None)
        assert (document["name"], document["version"]) == ("ml", "v1")
        assert document["rootUrl"] == "http://trainshed.example/"
    logs = await service.result("GET", "/$discovery/rest?version=v2", token=None)
    assert logs["name"] == "logging"


async def test_version_is_shown_only_to_callers_with_a_valid_token(service: ApiService) -> None:
    for path in ("/", "/healthz"):
        assert "version" in await service.result("GET", path)
        for token in (None, "wrong"):
            assert await service.result("GET", path, token=token) == {"service": "trainshed", "status": "ok"}


async def test_project_is_returned_with_its_number(service: ApiService) -> None:
    view = await service.result("GET", "/v1/projects/p1")
    assert (view["projectId"], view["lifecycleState"]) == ("p1", "ACTIVE")
    assert view["projectNumber"].isdigit()
    assert (await service.call("GET", "/v1/projects/-")).status == 400


@pytest.mark.parametrize(
    ("verb", "path", "limit"),
    [
        ("POST", f"{LOCATION}/customJobs", 10 << 20),
        ("POST", f"{LOCATION}/customJobs/1:cancel", 64 << 10),
        ("DELETE", f"{LOCATION}/customJobs/1", 64 << 10),
        ("POST", "/shell/ticket", 4 << 10),  # A caller without a token.
    ],
)
async def test_request_body_over_the_size_limit_is_rejected(
    service: ApiService, verb: str, path: str, limit: int
) -> None:
    answer = await service.call(verb, path, b" " * (limit + 1))
    assert answer.status == 400
    assert f"size exceeds the limit: {limit} bytes" in answer.error["message"]


@pytest.mark.parametrize("transport", ["REST", "gRPC"])
async def test_internal_error_is_logged_and_reveals_no_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, transport: str
) -> None:
    def fail(name: str) -> bool:
        raise RuntimeError(f"the secret inside of {name}")

    async with service_over(transport, tmp_path) as service:
        monkeypatch.setattr(service.buckets, "bucket_location", fail)
        with caplog.at_level(logging.ERROR, "trainshed.api"):
            answer = await service.call("POST", f"{LOCATION}/customJobs", custom_job())
    assert (answer.status, answer.error["status"]) == (500, "INTERNAL")
    assert "secret" not in answer.body.decode()
    assert "the secret inside of bucket" in caplog.text
