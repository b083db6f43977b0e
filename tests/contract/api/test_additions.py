"""Additions: the service finds them by entry points, and they serve methods and paths. Methods that
no addition serves are rejected with an install command."""

import importlib.metadata
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract.api.api_service import HOSTS, LOCATION, ApiService
from tests.unit.specs_requests import custom_job
from trainshed.api.additions import (
    ADDITIONS,
    Addition,
    AdditionContext,
    AdditionUnusable,
    Mounts,
    load_additions,
    mounts_with,
    registry_with,
)
from trainshed.api.calls.call import Call
from trainshed.api.calls.registry import Registry
from trainshed.api.calls.services import Services
from trainshed.api.registry import BUILT_IN
from trainshed.api.rest import ApiApplication
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.httpd.messages import Receive, Request, Response, Scope, Send, serve, sized_response
from trainshed.wire import pool

SERVICE = "google.cloud.aiplatform.v1.MetadataService"
STORE = f"{LOCATION}/metadataStores/default"
HTML = [("accept", "text/html")]
BOARD = f"{LOCATION.removeprefix('/v1/')}/tensorboards/1"


async def store(call: Call, request: Any) -> Any:
    return pool.message_class("google.cloud.aiplatform.v1.MetadataStore")(name=request.name)


def new_addition(context: AdditionContext) -> Addition:
    """Serve one method, and serve the method names at `/toy` to authenticated callers."""

    def mounts(services: Services, registry: Registry) -> Mounts:
        names = registry.handlers.keys() - BUILT_IN.handlers.keys()

        async def answer(request: Request) -> Response:
            await context.authenticate(request.headers.get("authorization"))
            return sized_response(" ".join(names).encode(), b"text/plain")

        def refuse(request: Request, error: Exception) -> Response:
            return sized_response(str(error).encode(), b"text/plain", 400)

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await serve(Request(scope, receive), answer, refuse, receive, send)

        return {"toy": application}

    return Addition({f"{SERVICE}.GetMetadataStore": store}, mounts=mounts)


def new_addition_with_builtin_method(context: AdditionContext) -> Addition:
    return Addition({next(iter(BUILT_IN.handlers)): store})


async def unused_application(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("no test calls this application")


def new_addition_with_storage_path(context: AdditionContext) -> Addition:
    return Addition(mounts=lambda services, registry: {"storage": unused_application})


@pytest.fixture
def service(tmp_path: Path) -> ApiService:
    return ApiService(tmp_path)


def install(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    """Make entry points with these values the only installed ones."""
    points = [EntryPoint("toy", value, ADDITIONS) for value in values]
    for point in points:
        vars(point)["dist"] = SimpleNamespace(name="toy-distribution")

    def select_entry_points(group: str) -> EntryPoints:
        return EntryPoints(points).select(group=group)

    monkeypatch.setattr(importlib.metadata, "entry_points", select_entry_points)


def load_and_serve(service: ApiService, directory: Path) -> None:
    """Serve the methods and paths of the installed additions."""
    loaded = load_additions(service.addition_context(directory))
    registry = registry_with(loaded)
    mounts = mounts_with(loaded, service.services, registry, {"storage": unused_application})
    authenticate = service.issuers.authenticate
    service.app = ApiApplication(service.services, authenticate, mounts, hosts=HOSTS, registry=registry)


async def test_installed_addition_serves_its_api_methods_and_paths(
    service: ApiService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, f"{__name__}:new_addition")
    load_and_serve(service, tmp_path)
    assert (await service.result("GET", STORE))["name"] == STORE.removeprefix("/v1/")
    assert (await service.call("GET", "/toy")).body.decode() == f"{SERVICE}.GetMetadataStore"
    assert (await service.call("GET", STORE, token="unknown")).status == 401
    refused = await service.call("DELETE", STORE)
    assert refused.error["message"].endswith("MetadataService provides GetMetadataStore.")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (f"{__name__}:missing", "'toy' of toy-distribution cannot be loaded (AttributeError: "),
        ("no_such_module:new_addition", "or remove it: pip uninstall toy-distribution"),
        (
            f"{__name__}:new_addition_with_builtin_method",
            "'toy' serves the method google.cloud.aiplatform.v1.JobService.",
        ),
        (
            f"{__name__}:new_addition_with_storage_path",
            "'toy' serves the path /storage, which the service or another addition",
        ),
    ],
)
def test_error_names_an_installed_addition_that_cannot_be_loaded(
    service: ApiService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, words: str
) -> None:
    install(monkeypatch, value)
    with pytest.raises(AdditionUnusable) as refused:
        load_and_serve(service, tmp_path)
    assert words in str(refused.value)


async def test_job_without_tracking_addition_shows_no_tracking_fields(
    service: ApiService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    service.serve(tracking=None)
    load_and_serve(service, tmp_path)
    body = custom_job()
    job = (await service.result("POST", f"{LOCATION}/customJobs", body))["name"]
    described = f"/trainshed/v1/jobs/{job.rpartition('/')[2]}"
    assert "tensorboardUri" not in await service.result("GET", described)
    link = await service.call("POST", f"{described}:tensorboard", {})
    assert (link.status, link.error["status"]) == (400, "UNIMPLEMENTED")
    assert "pip install 'trainshed[tracking]'" in link.error["message"]
    names = {"experiment": "e", "experimentRun": "r", "tensorboard": BOARD}
    body["jobSpec"] |= names | {"baseOutputDirectory": {"outputUriPrefix": "gs://bucket/out"}}
    refused = await service.call("POST", f"{LOCATION}/customJobs", body)
    assert {"job_spec.experiment", "job_spec.experiment_run", "job_spec.tensorboard"} == {
        violation["field"] for violation in refused.error["details"][0]["fieldViolations"]
    }
    assert refused.error["message"].count("pip install 'trainshed[tracking]'") == 3
    await service.apply_events(job, CancelRequested(CancelCause.USER, service.clock))
    await service.result("DELETE", f"/v1/{job}")


async def test_api_method_of_a_missing_addition_returns_the_install_command(
    service: ApiService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    load_and_serve(service, tmp_path)
    refused = await service.call("GET", STORE)
    assert refused.error["status"] == "UNIMPLEMENTED"
    assert "run pip install 'trainshed[tracking]' and restart the service" in refused.error["message"]
    for path in ("/", "/jobs", "/login?code=x"):
        page = await service.call("GET", path, headers=HTML)
        assert (page.status, page.headers["content-type"]) == (404, "text/plain; charset=utf-8")
        assert "pip install 'trainshed[console]'" in page.body.decode()
    agents = await service.call("POST", "/mcp", {})
    assert (agents.status, "trainshed[console]" in agents.body.decode()) == (404, True)
    signing_in = await service.call("POST", "/login/link", {})
    assert "pip install 'trainshed[console]'" in signing_in.error["message"]
    assert (await service.result("GET", "/"))["status"] == "ok", "whoever asks for no page"
